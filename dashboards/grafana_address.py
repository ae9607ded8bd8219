"""Where Grafana is, and who asks."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from grafana_client.api import GrafanaApi

TIMEOUT_S = 15.0


def connect(url: str, credential: str | tuple[str, str] | None) -> GrafanaApi:
    """
    Args:
        url: of Grafana with the path it is served under, if any; it may carry user and password.
        credential: a token, or user and password.
    """
    # The client takes the path as a prefix of `api`.
    grafana: GrafanaApi = GrafanaApi.from_url(url.rstrip("/") + "/", credential, timeout=TIMEOUT_S)
    return grafana


def without_credentials(url: str) -> str:
    """The address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def has_credentials(url: str) -> bool:
    return bool(urlsplit(url).password)
