"""The HTTP side of KVPulse: authenticate, render, classify, lease an engine, stream its answer."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from ray import serve

from app.config.keys import Client, KeyRing
from app.config.schema import AppConfig
from app.decisions.classifier import classify
from app.errors import (
    AuthenticationError,
    BodyTooLargeError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from app.requests import RequestPath
from deployments.answers import TIMEOUT_HEADER, Dispatch, EngineResponse, Suspects, request_timeout_s
from deployments.application_secret import RayStore, feed_keys
from deployments.explanation import explanation
from deployments.forwarding import EngineConnections
from deployments.http_errors import openai_shaped_app
from deployments.path_replicas import PathReplicas
from deployments.pulse_messages import PulseMessages
from deployments.pulse_subscriber import PulseSubscriber
from deployments.readiness import Readiness
from deployments.rendering import CHAT, COMPLETIONS, RESPONSES, OpenAIRoute, Rendered, Renderer, resolve_model
from deployments.replica_sets import IN_THIS_PROCESS
from deployments.routed_request import RoutedRequest

# Serve copies the app and the class when it decorates: all that they use stands above them.

# Fields of vLLM's request bodies that reach into the engine. The first three a client may be permitted to set.
PERMITTABLE_FIELDS = ("priority", "cache_salt", "kv_transfer_params")
ENGINE_FIELDS = (*PERMITTABLE_FIELDS, "ec_transfer_params", "request_id", "session_id", "mm_payload", "vllm_xargs")
PATH_HEADER = "x-kvpulse-path"

ROUTES = (CHAT, COMPLETIONS, RESPONSES)

http = openai_shaped_app()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _follow_replicas(config: AppConfig, engines: Mapping[RequestPath, Any]) -> dict[RequestPath, PathReplicas]:
    """Know each path's caches and loads from now on, requests or not."""
    keys = feed_keys(serve.get_replica_context().app_name, RayStore())
    subscriber = PulseSubscriber(PulseMessages(keys.signing))
    replicas = {}
    for path, handle in engines.items():
        replicas[path] = PathReplicas(config.routing, keys.hashing, subscriber, random.Random())  # noqa: S311 - ties
        IN_THIS_PROCESS.listen(handle.deployment_name, replicas[path].told)
        handle.options()  # makes Serve build the router, which is told the replicas
    return replicas


@dataclass(frozen=True)
class IngressSpec:
    """What the ingress needs to know of the rest.

    Args:
        config: the whole configuration.
        engine_arguments: of the path with the longest context; the renderer is made from them.
        frontend_arguments: parsers and templates, as the engines have them.
        context_tokens: longest prompt plus answer, by path.
        key_ring: None serves without keys.
    """

    config: AppConfig
    engine_arguments: dict[str, Any]
    frontend_arguments: dict[str, Any]
    context_tokens: dict[RequestPath, int]
    key_ring: KeyRing | None


@serve.ingress(http)
class Ingress:
    """One ingress replica. Holds no state that a request needs to outlive it."""

    async def __init__(self, spec: IngressSpec, hot: Any, cold: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        self._spec = spec
        self._config = spec.config
        # Without keys every client on this machine is this one.
        self._anonymous = Client(
            "anonymous",
            frozenset((*spec.config.auth.engine_fields, *(("path",) if spec.config.routing.allow_forced_path else ()))),
        )
        self._engines = {RequestPath.HOT: hot, RequestPath.COLD: cold}
        self._replicas = _follow_replicas(spec.config, self._engines)
        self._readiness = Readiness(("HotEngine", "ColdEngine"))
        self._connections = EngineConnections(spec.config.limits.engine_silence_timeout_s)
        self._suspects = Suspects()
        self._renderer = await Renderer.load(spec.engine_arguments, spec.frontend_arguments)

    @http.post(CHAT.url)
    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(CHAT, request)

    @http.post(COMPLETIONS.url)
    async def completions(self, request: Request) -> Response:
        return await self._generate(COMPLETIONS, request)

    @http.post(RESPONSES.url)
    async def responses(self, request: Request) -> Response:
        return await self._generate(RESPONSES, request)

    @http.post("/tokenize")
    async def tokenize(self, request: Request) -> Response:
        self._authenticate(request)
        body = await self._named_body(request)
        return JSONResponse(await self._renderer.tokenize(body))

    @http.post("/detokenize")
    async def detokenize(self, request: Request) -> Response:
        self._authenticate(request)
        body = await self._named_body(request)
        return JSONResponse(await self._renderer.detokenize(body))

    @http.get("/v1/models")
    async def models(self, request: Request) -> Response:
        self._authenticate(request)
        return JSONResponse(await self._renderer.models())

    @http.get("/v1/models/{model:path}")
    async def model(self, model: str, request: Request) -> Response:
        self._authenticate(request)
        for card in (await self._renderer.models())["data"]:
            if card["id"] == model:
                return JSONResponse(card)
        raise NotFoundError(f"The model `{model}` does not exist.", param="model", code="model_not_found")

    @http.get("/health")
    async def health(self) -> Response:
        """The ingress is alive. Says nothing of the engines."""
        return JSONResponse({"status": "alive"})

    @http.get("/ready")
    async def ready(self) -> Response:
        """Every path has a ready engine."""
        waiting = await asyncio.to_thread(self._readiness.waiting_for)
        if waiting:
            raise UnavailableError(f"not ready: {waiting}", code="not_ready", retry_after_s=1.0)
        return JSONResponse({"status": "ready"})

    @http.post("/v1/explain")
    async def explain(self, request: Request) -> Response:
        """What would become of this chat, completion or response, without running it."""
        client = self._authenticate(request)
        body, ignored = self._sanitise(await self._json_body(request), client)
        route = next((route for route in ROUTES if route.prompt_field in body), CHAT)
        forced, ignored = self._forced_path(request, body, client, ignored)
        rendered = await self._renderer.render(route, body, forced)
        classification = classify(rendered.features, self._config.routing, self._spec.context_tokens)
        replicas = self._replicas[classification.path]
        return JSONResponse(explanation(rendered, classification, *replicas.explain(replicas.request(rendered.prompt))))

    async def _generate(self, route: OpenAIRoute, request: Request) -> Response:
        client = self._authenticate(request)
        body, ignored = self._sanitise(await self._json_body(request), client)
        forced, ignored = self._forced_path(request, body, client, ignored)
        rendered = await self._renderer.render(route, body, forced)
        most = self._config.limits.max_sequences
        if rendered.features.sequences > most:
            raise InvalidRequestError(f"prompts times `n` is above {most} (limits.max_sequences)", param="n")
        classification = classify(rendered.features, self._config.routing, self._spec.context_tokens)
        return EngineResponse(
            Dispatch(
                route=route,
                rendered=rendered,
                classification=classification,
                handle=self._engines[classification.path],
                routed=self._routed(rendered, classification.path),
                connections=self._connections,
                suspects=self._suspects,
                lease_timeout_s=self._config.limits.lease_timeout_s,
                timeout_s=request_timeout_s(request.headers.get(TIMEOUT_HEADER)),
                headers={"x-kvpulse-ignored": ",".join(ignored)} if ignored else {},
            )
        )

    def _routed(self, rendered: Rendered, path: RequestPath) -> Callable[[frozenset[str]], RoutedRequest]:
        replicas = self._replicas[path]
        request = replicas.request(rendered.prompt)
        expected_tokens = rendered.features.max_output_tokens or self._config.routing.assumed_output_tokens
        return lambda excluded: replicas.routed(msgspec.structs.replace(request, excluded=excluded), expected_tokens)

    def _authenticate(self, request: Request) -> Client:
        if self._spec.key_ring is None:
            host = request.client.host if request.client else ""
            if not self._config.auth.anonymous_network and not _is_loopback(host):
                raise AuthenticationError(
                    "this server has no API keys and answers clients on its own machine only; "
                    "the operator can set auth.key_file",
                    code="keys_required",
                )
            return self._anonymous
        scheme, _, presented = request.headers.get("authorization", "").partition(" ")
        client = self._spec.key_ring.identify(presented.strip()) if scheme.lower() == "bearer" else None
        if client is None:
            raise AuthenticationError("missing or wrong API key: send `Authorization: Bearer <key>`")
        return client

    def _sanitise(self, body: dict[str, Any], client: Client) -> tuple[dict[str, Any], list[str]]:
        """Drop what this client may not tell the engine; returns the names of what was dropped."""
        permitted = client.permissions | set(self._config.auth.engine_fields)
        ignored = [name for name in ENGINE_FIELDS if body.get(name) is not None and name not in permitted]
        body = {name: value for name, value in body.items() if name not in ENGINE_FIELDS or name in permitted}
        if client.cache_salt is not None:
            body["cache_salt"] = client.cache_salt
        return body, ignored

    def _forced_path(
        self, request: Request, body: dict[str, Any], client: Client, ignored: list[str]
    ) -> tuple[RequestPath | None, list[str]]:
        """The path that the model suffix or the header forces. Replaces `model` in the body by the served name."""
        may_force = "path" in client.permissions
        body["model"], forced = resolve_model(body, self._renderer.served_names, may_force)
        wanted = request.headers.get(PATH_HEADER)
        if forced is not None or wanted is None:
            return forced, ignored
        if not may_force:
            return None, [*ignored, PATH_HEADER]
        if wanted not in (RequestPath.HOT, RequestPath.COLD):
            raise InvalidRequestError(f"{PATH_HEADER}: `{wanted}` is no path; use `hot` or `cold`", param=PATH_HEADER)
        return RequestPath(wanted), ignored

    async def _named_body(self, request: Request) -> dict[str, Any]:
        body = await self._json_body(request)
        body["model"], _ = resolve_model(
            {"model": body.get("model") or next(iter(self._renderer.served_names))}, self._renderer.served_names, False
        )
        return body

    async def _json_body(self, request: Request) -> dict[str, Any]:
        raw = await self._raw_body(request)
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"the body is not valid JSON in UTF-8: {error}", code="invalid_json") from None
        if not isinstance(body, dict):
            raise InvalidRequestError("the body must be a JSON object", code="invalid_json")
        return body

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
