"""How hard a path's engines are pressed: readings of replicas, the signals made of them, the level they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.config.admission import Marks, WatermarksConfig
from app.state.pulse import ReplicaLoad
from app.state.watermarks import Level, Sustained, next_level


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """What a view knows of one replica now.

    Args:
        load: its last report, None before the first.
        age_s: of that report.
        kv_debit_tokens: cache that requests sent since then will take.
        prefill_debit_tokens: prompt tokens of them still to compute.
    """

    replica_id: str
    load: ReplicaLoad | None
    age_s: float
    kv_debit_tokens: int = 0
    prefill_debit_tokens: int = 0


class Signal(StrEnum):
    KV_USAGE_RATIO = "kv_usage_ratio"
    QUEUED_PREFILL_S = "queued_prefill_s"
    PREEMPTIONS_PER_S = "preemptions_per_s"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The signals of one replica, or of a path. `queued_prefill_s` is None until the prefill speed is known."""

    kv_usage_ratio: float
    queued_prefill_s: float | None
    preemptions_per_s: float

    def value(self, signal: Signal) -> float | None:
        values = {Signal.KV_USAGE_RATIO: self.kv_usage_ratio, Signal.PREEMPTIONS_PER_S: self.preemptions_per_s}
        return values.get(signal, self.queued_prefill_s)


def water_level(levels: Sequence[float], poured: float) -> float:
    """The lowest of several levels after something was poured over them, each drop where the level was lowest.

    Args:
        levels: at least one, in rising order.
        poured: in the units of the levels.
    """
    filled = levels[0]
    for count, level in enumerate(levels[1:], start=1):
        if poured <= level * count - filled:  # what brings the lower ones up to this one
            return (filled + poured) / count
        filled += level
    return (filled + poured) / len(levels)


class PressureGauge:
    """The level of one replica or path, with its memory: hysteresis, how long it has been high, how long unknown.

    Unknown is neither free nor full. The level holds while the last report is not long gone; then it is ALERT, which
    refuses nobody: the bounds of the queue and of the engines remain.
    """

    def __init__(self, rules: WatermarksConfig) -> None:
        self._rules = rules
        self._marks: dict[Signal, Marks] = {signal: getattr(rules, signal) for signal in Signal}
        self._levels = dict.fromkeys(Signal, Level.NORMAL)
        self._unknown = Sustained()
        self._high = Sustained()
        self.level = Level.NORMAL
        self.signal: Signal | None = None  # which one the level comes from; None: none, or unknown

    def update(self, pressure: Pressure | None, now_s: float) -> Level:
        """Take a reading; None when no report is fresh."""
        unknown_s = self._unknown.update(pressure is None, now_s)
        if pressure is None:
            if unknown_s >= self._rules.hold_unknown_s:
                self._forget(now_s)
            return self.level
        for signal, marks in self._marks.items():
            self._levels[signal] = next_level(self._levels[signal], pressure.value(signal), marks)
        worst = max(self._levels, key=self._levels.__getitem__)
        self.level = self._levels[worst]
        self.signal = worst if self.level > Level.NORMAL else None
        if self._high.update(self.level is Level.COMPRESS, now_s) >= self._rules.shed_after_s:
            self.level = Level.SHED
        return self.level

    def _forget(self, now_s: float) -> None:
        self._levels = dict.fromkeys(Signal, Level.NORMAL)
        self._high.update(False, now_s)
        self.level, self.signal = Level.ALERT, None
