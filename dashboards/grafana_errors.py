"""What can go wrong with a Grafana server, as one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from grafana_client.client import (
    GrafanaClientError,
    GrafanaException,
    GrafanaTimeoutError,
    GrafanaUnauthorizedError,
)
from niquests.exceptions import JSONDecodeError, RequestException

T = TypeVar("T")


class PushError(Exception):
    """Why a push, or one part of it, was not done; in words for who ran it."""


def or_none(ask: Callable[[], T]) -> T | None:
    """What `ask` finds; None where Grafana says that there is no such thing."""
    try:
        return ask()
    except GrafanaClientError as error:
        if error.status_code == 404:
            return None
        raise


@contextmanager
def explained(url: str) -> Iterator[None]:
    """
    Args:
        url: of the Grafana server, without credentials.

    Raises:
        PushError: for whatever Grafana, or the way to it, answers.
    """
    try:
        yield
    except GrafanaException as error:
        raise PushError(f"{url}: {_reason(error)}") from None
    except JSONDecodeError:
        raise PushError(not_grafana(url)) from None
    except RequestException as error:
        raise PushError(f"{url} cannot be reached: {_cause(error)}") from None


def not_grafana(url: str) -> str:
    return f"{url} does not answer as Grafana does; is it the right address, with its path?"


def answer_of(error: GrafanaException) -> str:
    """Grafana's own words."""
    answer = error.response
    return str(answer.get("message", answer)) if isinstance(answer, dict) else str(answer or error)


def _reason(error: GrafanaException) -> str:
    if isinstance(error, GrafanaTimeoutError):
        return "no answer in time"
    if isinstance(error, GrafanaUnauthorizedError):
        return "it does not know this token or user (401); make a service account's token and set GRAFANA_TOKEN"
    if error.status_code == 403:
        return (
            f"this token or user may not do that (403: {answer_of(error)}); it needs the role Admin, or permissions to "
            "write folders, data sources, dashboards and alert rules"
        )
    return f"it refused ({error.status_code}: {answer_of(error)})"


def _cause(error: RequestException) -> str:
    """Its innermost reason, without the objects that the layers above name; its type where it has no words."""
    inner = error.args[0] if error.args else error
    words = str(getattr(inner, "reason", inner)) or type(error).__name__
    return words.splitlines()[0].rpartition(">: ")[2]
