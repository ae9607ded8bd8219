"""The valid name that a mistyped one most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A sentence that names the nearest valid name, or, when none is near, all of them if they are few."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if 0 < len(names) <= 12:
        return f"valid: {', '.join(names)}"
    return "there is no similar name"
