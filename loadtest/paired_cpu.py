"""What two stacks that run at the same time spend per request: short blocks of load alternate between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from loadtest.bootstrap import Ratio, ratio_of_means

LIMIT = 1.02
WHOLE, WITH_IDLE = "whole stack", "whole stack and what it adds while idle"
REST = "rest"
# Parts of a process's name, and what it counts as; the first that fits.
_ROLES = (
    ("EngineCore", "engine cores"),
    (":Ingress", "ingress"),
    ("HotEngine", "engine replicas"),
    ("ColdEngine", "engine replicas"),
    ("ServeController", "controller"),
    ("Proxy", "proxy"),
    ("haproxy", "proxy"),
    ("Agent", "Ray's agents"),
    ("PulseBoard", "board"),
)


class Side(StrEnum):
    ON = "on"
    OFF = "off"

    @property
    def other(self) -> Side:
        return Side.OFF if self is Side.ON else Side.ON


class Verdict(StrEnum):
    WITHIN = "within the limit"
    TOO_WIDE = "the interval is too wide to tell"
    BEYOND = "beyond the limit"


def order(pair: int) -> tuple[Side, Side]:
    """ABBA: a steady drift of the machine falls on both alike."""
    return (Side.ON, Side.OFF) if pair % 2 == 0 else (Side.OFF, Side.ON)


def role_of(process: str) -> str:
    """What a process of a stack, by the title it has, counts as."""
    return next((role for part, role in _ROLES if part in process), REST)


def used_by_role(before: Mapping[int, float], now: Mapping[int, float], names: Mapping[int, str]) -> dict[str, float]:
    """CPU seconds between two looks at a stack's processes, by role. One that has begun between them counts whole."""
    used: dict[str, float] = {}
    for pid, cpu_s in now.items():
        role = role_of(names[pid])
        used[role] = used.get(role, 0.0) + cpu_s - before.get(pid, 0.0)
    return used


@dataclass(frozen=True)
class Block:
    """One stack under load while the other is idle.

    Args:
        cpu_s: of the loaded stack, by role.
        idle_cpu_s: of the other, by role.
    """

    requests: int
    span_s: float
    cpu_s: Mapping[str, float]
    idle_cpu_s: Mapping[str, float]

    def per_request_ms(self, role: str) -> float:
        return 1000 * _of(self.cpu_s, role) / self.requests


Pair = Mapping[Side, Block]


@dataclass(frozen=True)
class Cost:
    """Milliseconds of CPU per request with telemetry over without.

    Args:
        added_ratio: the difference as a share of the whole stack without telemetry.
    """

    name: str
    ratio: Ratio
    added_ratio: float


def roles_in(pairs: Sequence[Pair]) -> list[str]:
    """The dearest first."""
    used: Counter[str] = Counter()
    for block in pairs[0].values():
        used.update(block.cpu_s)
    return [role for role, _ in used.most_common()]


def costs_of(pairs: Sequence[Pair]) -> list[Cost]:
    """The whole stack, the same with what telemetry adds to a stack that is idle, and each role.

    The idle difference is that of the other's block, in the same pair: a stack that is loaded half of the time.
    """
    whole = [_per_request_ms(pair, WHOLE) for pair in pairs]
    with_idle = [(on + _idle_added_ms(pair), off) for pair, (on, off) in zip(pairs, whole, strict=True)]
    by_role = {role: [_per_request_ms(pair, role) for pair in pairs] for role in roles_in(pairs)}
    base_ms = sum(off for _, off in whole) / len(whole)
    costs = []
    for name, values in {WHOLE: whole, WITH_IDLE: with_idle, **by_role}.items():
        added_ms = sum(on - off for on, off in values) / len(values)
        costs.append(Cost(name, ratio_of_means(values), added_ms / base_ms))
    return costs


def idle_ms_per_s(pairs: Sequence[Pair], side: Side) -> float:
    """Milliseconds of CPU per second of a stack without requests."""
    blocks = [pair[side.other] for pair in pairs]
    return 1000 * sum(_of(block.idle_cpu_s, WHOLE) for block in blocks) / sum(block.span_s for block in blocks)


def verdict_of(ratio: Ratio, limit: float = LIMIT) -> Verdict:
    if ratio.low is None or ratio.high is None:
        return Verdict.TOO_WIDE
    if ratio.low > limit:
        return Verdict.BEYOND
    return Verdict.WITHIN if ratio.high <= limit else Verdict.TOO_WIDE


def cost_rows(costs: Sequence[Cost]) -> list[list[str]]:
    """Cells: name, on, off (ms per request), ratio, interval, added share."""
    return [
        [
            cost.name,
            f"{cost.ratio.ours:.2f}",
            f"{cost.ratio.theirs:.2f}",
            _figure(cost.ratio.value),
            f"{_figure(cost.ratio.low)} to {_figure(cost.ratio.high)}",
            f"{cost.added_ratio:+.2%}",
        ]
        for cost in costs
    ]


def _per_request_ms(pair: Pair, role: str) -> tuple[float, float]:
    return pair[Side.ON].per_request_ms(role), pair[Side.OFF].per_request_ms(role)


def _idle_added_ms(pair: Pair) -> float:
    """Per request: the rates of both idle stacks, over as long as the block of the loaded one."""
    on, off = pair[Side.ON], pair[Side.OFF]
    on_idle, off_idle = _of(off.idle_cpu_s, WHOLE) / off.span_s, _of(on.idle_cpu_s, WHOLE) / on.span_s
    return 1000 * (on_idle - off_idle) * on.span_s / on.requests


def _of(cpu_s: Mapping[str, float], role: str) -> float:
    return sum(cpu_s.values()) if role == WHOLE else cpu_s.get(role, 0.0)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
