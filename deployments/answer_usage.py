"""How many tokens an HTTP answer cost its engine, read from vLLM's own table of requests: also of one that broke off,
and without looking into what is streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class AnswerUsage:
    """The sequences that the engine was asked for to make one answer."""

    def __init__(self) -> None:
        self._sequences: list[Any] = []

    def note(self, sequence: Any) -> None:
        """vLLM's state of one sequence, which goes on counting until the sequence ends."""
        self._sequences.append(sequence)

    @property
    def tokens(self) -> int | None:
        """Each prompt once, and all that was generated. None: the engine keeps no statistics."""
        if any(sequence.stats is None for sequence in self._sequences):
            return None
        prompts = {_prompt_of(sequence): int(sequence.prompt_len) for sequence in self._sequences}
        return sum(prompts.values()) + sum(int(sequence.stats.num_generation_tokens) for sequence in self._sequences)


_CURRENT: ContextVar[AnswerUsage | None] = ContextVar("kvpulse_answer_usage", default=None)


@contextmanager
def measured_usage() -> Iterator[AnswerUsage]:
    """Whatever this task, and tasks that it starts, ask of the engine is counted in the usage."""
    usage = AnswerUsage()
    token = _CURRENT.set(usage)
    try:
        yield usage
    finally:
        _CURRENT.reset(token)


def note_sequence(sequence: Any) -> None:
    """Count a sequence, as vLLM has just entered it, for the answer that asks for it."""
    usage = _CURRENT.get()
    if usage is not None:
        usage.note(sequence)


def _prompt_of(sequence: Any) -> str:
    """With `n` the sequences of one prompt have a parent in common."""
    return str(sequence.request_id if sequence.parent_req is None else sequence.parent_req.request_id)
