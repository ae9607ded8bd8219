"""What can go wrong with a Grafana server, as one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grafana_client.client import (
    GrafanaClientError,
    GrafanaException,
    GrafanaTimeoutError,
    GrafanaUnauthorizedError,
)
from niquests.exceptions import JSONDecodeError, RequestException


class PushError(Exception):
    """Why a push ended, in words for who ran it."""


def is_missing(error: Exception) -> bool:
    return isinstance(error, GrafanaClientError) and error.status_code == 404


@contextmanager
def explained(url: str) -> Iterator[None]:
    """
    Args:
        url: of the Grafana server, without credentials.

    Raises:
        PushError: for whatever Grafana or the way to it answers.
    """
    try:
        yield
    except GrafanaException as error:
        raise PushError(f"{url}: {_reason(error)}") from None
    except (JSONDecodeError, AttributeError, KeyError, TypeError):
        raise PushError(f"{url} does not answer as Grafana's API does; is it Grafana, and the right path?") from None
    except RequestException as error:
        raise PushError(f"{url} cannot be reached: {str(error).splitlines()[0]}") from None


def _reason(error: GrafanaException) -> str:
    said = _message(error)
    if isinstance(error, GrafanaTimeoutError):
        return "no answer in time"
    if isinstance(error, GrafanaUnauthorizedError):
        return "it does not know this token or user (401); make a service account token and set GRAFANA_TOKEN"
    if error.status_code == 403:
        return f"this token or user may not do that (403: {said}); it needs the role Admin, or the permissions to write "\
            "folders, data sources, dashboards and alert rules"
    if error.status_code == 412:
        return f"changed in Grafana while this ran (412: {said}); look at it there, then push with --overwrite"
    return f"Grafana refused it ({error.status_code}: {said})"


def _message(error: GrafanaException) -> str:
    answer = error.response
    return str(answer.get("message", answer)) if isinstance(answer, dict) else str(answer or error)
