"""Rates that forget: what happened, weighted by how long ago."""

from __future__ import annotations

import math


class DecayingRate:
    """Amount per second over roughly the last `time_constant_s`.

    A young one divides by the time it has watched, so that it does not begin at zero, but by a quarter of the time
    constant at least, so that its first event is no storm.
    """

    def __init__(self, time_constant_s: float, now_s: float) -> None:
        self._time_constant_s = time_constant_s
        self._amount = 0.0
        self._at_s = self._since_s = now_s

    def add(self, amount: float, now_s: float) -> None:
        self._amount = self._faded(now_s) + amount
        self._at_s = now_s

    def per_s(self, now_s: float) -> float:
        watched_s = max(now_s - self._since_s, self._time_constant_s / 4)
        return self._faded(now_s) / (self._time_constant_s * -math.expm1(-watched_s / self._time_constant_s))

    def _faded(self, now_s: float) -> float:
        return self._amount * math.exp(-(now_s - self._at_s) / self._time_constant_s)


class CounterRate:
    """The rate of a counter that only its readings tell of, e.g. an engine's preemptions."""

    def __init__(self, time_constant_s: float, first: int, now_s: float) -> None:
        self._rate = DecayingRate(time_constant_s, now_s)
        self._last = first

    def read(self, count: int, now_s: float) -> float:
        """Events per second. A counter that fell has begun anew: its events so far are unknown, not negative."""
        self._rate.add(max(0, count - self._last), now_s)
        self._last = count
        return self._rate.per_s(now_s)


class PrefillSpeed:
    """Tokens per second at which engines take in prompts, from what first tokens waited for.

    A request that found `queued` tokens ahead and adds `own` sees its first token after `queued + own` have been
    computed. Fixed costs dominate short ones, so only long waits teach anything, and short ones that prove the engines
    far faster than they are taken to be: else one hiccup would be believed until a long prompt comes.
    """

    LEAST_TOKENS = 256
    FAR_FASTER = 2.0

    def __init__(self, time_constant_s: float, now_s: float) -> None:
        self._tokens = DecayingRate(time_constant_s, now_s)
        self._seconds = DecayingRate(time_constant_s, now_s)
        self._known: float | None = None

    def add(self, tokens: float, seconds: float, now_s: float) -> None:
        if seconds <= 0:
            return
        far_faster = self._known is not None and tokens / seconds >= self.FAR_FASTER * self._known
        if tokens >= self.LEAST_TOKENS or far_faster:
            self._tokens.add(tokens, now_s)
            self._seconds.add(seconds, now_s)
            self._known = self._tokens.per_s(now_s) / self._seconds.per_s(now_s)

    @property
    def tokens_per_s(self) -> float | None:
        """None until it has been seen; then the last known speed: engines do not slow down by being idle."""
        return self._known
