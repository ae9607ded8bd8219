"""How many threads an engine on a CPU takes for a step: every core while no other engine of the machine computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.engine_activity import Others

# A step of so few tokens gains a fourth from a second thread and costs half as much again in processor time: its parts
# are so small that threads mostly spin, waiting for one another.
SMALL_STEP_TOKENS = 16


def is_small(tokens: int) -> bool:
    return tokens <= SMALL_STEP_TOKENS


@dataclass(slots=True)
class StepThreads:
    """One engine's choice for each step.

    A matrix product keeps the division of work that it was first computed with, for as many threads as there were then;
    later it may get fewer, but profits from no more. So the sizes that come again and again, small steps and full ones,
    are first computed with every core, whoever else computes.

    Args:
        prompt: while others compute, for prompts.
        decode: while others compute, for steps of a few tokens, and for any step while one of them has its turn.
        alone: while nobody else computes; None: as if somebody did.
        full_step_tokens: the most that a step can hold.
    """

    prompt: int
    decode: int
    alone: int | None
    full_step_tokens: int
    _met: set[int] = field(default_factory=set)

    def of_step(self, tokens: int, others: Others) -> int:
        small = is_small(tokens)
        first = (small or tokens == self.full_step_tokens) and tokens not in self._met
        self._met.add(tokens)
        if self.alone is not None and (first or not others.compute):
            return self.alone
        return self.decode if small or others.turn else self.prompt
