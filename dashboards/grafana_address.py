"""Where Grafana is, and who asks."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from grafana_client.api import GrafanaApi

from dashboards.grafana_errors import PushError

TIMEOUT_S = 15.0


def connect(url: str, credential: str | tuple[str, str] | None) -> GrafanaApi:
    """
    Args:
        url: of Grafana with the path it is served under, if any; it may carry user and password.
        credential: a token, or user and password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PushError(f"{without_credentials(url)} is no address of a Grafana server, such as http://127.0.0.1:3000")
    with_slash = urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/"))  # it becomes a prefix of `api`
    grafana: GrafanaApi = GrafanaApi.from_url(with_slash, credential, timeout=TIMEOUT_S)
    return grafana


def without_credentials(url: str) -> str:
    """The address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def has_credentials(url: str) -> bool:
    return bool(urlsplit(url).password)
