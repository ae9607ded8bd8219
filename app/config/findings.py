"""What a check of the configuration found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding: `why` names the field and its value, `remedy` says what to write instead."""

    severity: Severity
    name: str
    why: str
    remedy: str


def error(name: str, why: str, remedy: str) -> Advice:
    return Advice(Severity.ERROR, name, why, remedy)


def warning(name: str, why: str, remedy: str) -> Advice:
    return Advice(Severity.WARNING, name, why, remedy)
