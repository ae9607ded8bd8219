"""Where Grafana is, and who asks."""

from __future__ import annotations

import contextlib
from urllib.parse import SplitResult, urlsplit, urlunsplit

from grafana_client.api import GrafanaApi

from dashboards.grafana_errors import PushError

TIMEOUT_S = 15.0


def connect(url: str, credential: str | tuple[str, str] | None) -> GrafanaApi:
    """
    Args:
        url: of Grafana with the path it is served under, if any; it may carry user and password.
        credential: a token, or user and password.
    """
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PushError(f"{without_credentials(url)} is no address of a Grafana server, such as http://127.0.0.1:3000")
    with_slash = urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/"))  # it becomes a prefix of `api`
    grafana: GrafanaApi = GrafanaApi.from_url(with_slash, credential, timeout=TIMEOUT_S)
    return grafana


def without_credentials(url: str) -> str:
    """The address as it may be shown."""
    parts = _split(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def has_credentials(url: str) -> bool:
    return bool(_split(url).password)


def _split(url: str) -> SplitResult:
    """A path alone where it is no address."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.port != 0:
            return parts
    return SplitResult("", "", url.rpartition("@")[2], "", "")
