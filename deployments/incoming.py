"""What a client has sent, checked as far as that goes without the model: who it is, its body, its wishes."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from app.config.keys import Client, KeyRing
from app.config.schema import AppConfig
from app.errors import AuthenticationError, BodyTooLargeError, InvalidRequestError
from app.requests import RequestPath
from deployments.rendering import resolve_model

# Fields of vLLM's request bodies that reach into the engine. The first three a client may be permitted to set.
PERMITTABLE_FIELDS = ("priority", "cache_salt", "kv_transfer_params")
ENGINE_FIELDS = (*PERMITTABLE_FIELDS, "ec_transfer_params", "request_id", "session_id", "mm_payload", "vllm_xargs")
PATH_HEADER = "x-kvpulse-path"
SESSION_HEADER = "x-session-id"
SESSION_FIELDS = ("prompt_cache_key", "user")
TIMEOUT_HEADER = "x-request-timeout-seconds"
# Serve heeds the same header and would answer in plain text: this ends the request just before it does.
BEFORE_SERVE_S = 0.25


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request to generate.

    Args:
        body: without what the client may not say; `model` is a served name.
        forced_path: the path it asked for, and may.
        session_label: what holds its requests together, in the client's words.
        timeout_s: its own deadline.
        told: response headers about all that.
    """

    body: dict[str, Any]
    forced_path: RequestPath | None
    session_label: str | None
    timeout_s: float | None
    told: dict[str, str]


class Intake:
    """Authenticates and reads requests.

    Args:
        key_ring: None serves without keys.
        served_names: models that `model` may name.
    """

    def __init__(self, config: AppConfig, key_ring: KeyRing | None, served_names: frozenset[str]) -> None:
        self._config = config
        self._key_ring = key_ring
        self._served_names = served_names
        # Without keys every client on this machine is this one.
        may_force = ("path",) if config.routing.allow_forced_path else ()
        self._anonymous = Client("anonymous", frozenset(("pulse", *config.auth.engine_fields, *may_force)))

    def authenticate(self, request: Request) -> Client:
        """Who sends it. Raises AuthenticationError."""
        if self._key_ring is None:
            host = request.client.host if request.client else ""
            if not self._config.auth.anonymous_network and not _is_loopback(host):
                raise AuthenticationError(
                    "this server has no API keys and answers clients on its own machine only; "
                    "the operator can set auth.key_file",
                    code="keys_required",
                )
            return self._anonymous
        scheme, _, presented = request.headers.get("authorization", "").partition(" ")
        client = self._key_ring.identify(presented.strip()) if scheme.lower() == "bearer" else None
        if client is None:
            raise AuthenticationError("missing or wrong API key: send `Authorization: Bearer <key>`")
        return client

    async def read(self, request: Request, client: Client) -> Incoming:
        """A request to generate. Raises ApiError."""
        body, ignored = self._sanitised(await self.json_body(request), client)
        forced_path = self._forced_path(request, body, client, ignored)
        return Incoming(
            body,
            forced_path,
            _session_label(request, body),
            request_timeout_s(request.headers.get(TIMEOUT_HEADER)),
            {"x-kvpulse-ignored": ",".join(ignored)} if ignored else {},
        )

    async def named_body(self, request: Request) -> dict[str, Any]:
        """A body whose `model`, if it names any, is served."""
        body = await self.json_body(request)
        wanted = {"model": body.get("model") or next(iter(self._served_names))}
        body["model"], _ = resolve_model(wanted, self._served_names, False)
        return body

    async def json_body(self, request: Request) -> dict[str, Any]:
        """Raises ApiError when it is too long, or no JSON object."""
        raw = await self._raw_body(request)
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"the body is not valid JSON in UTF-8: {error}", code="invalid_json") from None
        if not isinstance(body, dict):
            raise InvalidRequestError("the body must be a JSON object", code="invalid_json")
        return body

    def _sanitised(self, body: dict[str, Any], client: Client) -> tuple[dict[str, Any], list[str]]:
        """Drops what this client may not tell the engine; returns the names of what was dropped."""
        permitted = client.permissions | set(self._config.auth.engine_fields)
        ignored = [name for name in ENGINE_FIELDS if body.get(name) is not None and name not in permitted]
        body = {name: value for name, value in body.items() if name not in ENGINE_FIELDS or name in permitted}
        if client.cache_salt is not None:
            body["cache_salt"] = client.cache_salt
        return body, ignored

    def _forced_path(
        self, request: Request, body: dict[str, Any], client: Client, ignored: list[str]
    ) -> RequestPath | None:
        """What the model suffix or the header forces. Replaces `model` in the body by the served name, and adds to
        `ignored` a header that this client may not use.
        """
        may_force = "path" in client.permissions
        body["model"], forced = resolve_model(body, self._served_names, may_force)
        wanted = request.headers.get(PATH_HEADER)
        if forced is not None or wanted is None:
            return forced
        if not may_force:
            ignored.append(PATH_HEADER)
            return None
        if wanted not in (RequestPath.HOT, RequestPath.COLD):
            raise InvalidRequestError(f"{PATH_HEADER}: `{wanted}` is no path; use `hot` or `cold`", param=PATH_HEADER)
        return RequestPath(wanted)

    async def _raw_body(self, request: Request) -> bytes:
        limit = self._config.limits.max_body_bytes
        declared = request.headers.get("content-length", "")
        raw = bytearray()
        if not (declared.isdigit() and int(declared) > limit):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > limit:
                    break
            else:
                return bytes(raw)
        raise BodyTooLargeError(f"the body is longer than {limit} bytes (limits.max_body_bytes)")


def request_timeout_s(header: str | None) -> float | None:
    """The client's deadline from `x-request-timeout-seconds`. Like Serve: none, or not above 0, is no deadline."""
    try:
        wished = float(header) if header is not None else 0.0
    except ValueError:
        return None
    return max(wished - BEFORE_SERVE_S, wished / 2) if 0 < wished < math.inf else None


def _session_label(request: Request, body: dict[str, Any]) -> str | None:
    named = (request.headers.get(SESSION_HEADER), *map(body.get, SESSION_FIELDS))
    return next((label for label in named if isinstance(label, str) and label), None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
