"""From records to figures: quantiles, throughput, refusals, goodput over what was offered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from loadtest.records import Objective, Outcome, RequestRecord, TrafficClass


def quantile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between the two nearest of `values`; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True)
class Quantiles:
    """In seconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        ordered = sorted(values)
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.95), quantile(ordered, 0.99))


@dataclass(frozen=True)
class GroupSummary:
    """Requests that are reported together: a class, or its first touches.

    Latencies are those of answered requests; counts and goodput are over all that were offered.
    """

    name: str
    offered: int
    ok: int
    refused: int
    failed: int
    unfinished: int
    good: int
    ttft_s: Quantiles
    itl_s: Quantiles
    e2e_s: Quantiles
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float

    @property
    def goodput_ratio(self) -> float | None:
        return self.good / self.offered if self.offered else None

    @property
    def cached_ratio(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True)
class RunSummary:
    """One run. `groups` are the classes without their first touches, `first_touches` those apart, `total` is all.

    Args:
        span_s: from the start to the end of the last answer, at least the planned duration.
        lag_s: how late the generator sent requests; it is part of their latency.
    """

    span_s: float
    groups: tuple[GroupSummary, ...]
    first_touches: tuple[GroupSummary, ...]
    total: GroupSummary
    reasons: Mapping[str, int]
    cut_requests: int
    cut_tokens: int
    lag_s: Quantiles


Objectives = Mapping[TrafficClass, Objective]


def summarise_group(name: str, records: Sequence[RequestRecord], objectives: Objectives, span_s: float) -> GroupSummary:
    outcomes = Counter(record.outcome for record in records)
    answered = [record for record in records if record.outcome is Outcome.OK]
    output_tokens = sum(record.output_tokens for record in answered)
    return GroupSummary(
        name=name,
        offered=len(records),
        ok=outcomes[Outcome.OK],
        refused=outcomes[Outcome.REFUSED],
        failed=outcomes[Outcome.FAILED],
        unfinished=outcomes[Outcome.UNFINISHED],
        good=sum(record.meets(objectives.get(record.traffic_class, Objective())) for record in records),
        ttft_s=Quantiles.of(record.ttft_s for record in answered if record.ttft_s is not None),
        itl_s=Quantiles.of(gap for record in answered for gap in record.itl_s),
        e2e_s=Quantiles.of(record.e2e_s for record in answered if record.e2e_s is not None),
        prompt_tokens=sum(record.prompt_tokens for record in answered),
        cached_tokens=sum(record.cached_tokens for record in answered),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / span_s,
    )


def tokens_until(record: RequestRecord, end_s: float) -> float:
    """Output tokens that had arrived by `end_s` of the run. Chunks of one answer count as equally many tokens each.

    Unlike the total, it is not the same for a fast and a slow server that both answer everything in the end.
    """
    if record.ttft_s is None or record.outcome not in (Outcome.OK, Outcome.UNFINISHED):
        return 0.0
    arrivals = list(accumulate(record.itl_s, initial=record.at_s + record.ttft_s))
    tokens_per_chunk = record.output_tokens / len(arrivals) if record.output_tokens else 1.0
    return tokens_per_chunk * sum(at_s <= end_s for at_s in arrivals)


def span_of(records: Sequence[RequestRecord], duration_s: float) -> float:
    ends = (record.at_s + record.e2e_s for record in records if record.e2e_s is not None)
    return max([duration_s, *ends])


def summarise(records: Sequence[RequestRecord], objectives: Objectives, duration_s: float) -> RunSummary:
    span_s = span_of(records, duration_s)

    def groups(first_touch: bool) -> tuple[GroupSummary, ...]:
        chosen = {
            name: [r for r in records if r.traffic_class is name and r.first_touch is first_touch]
            for name in TrafficClass
        }
        return tuple(summarise_group(name, group, objectives, span_s) for name, group in chosen.items() if group)

    return RunSummary(
        span_s=span_s,
        groups=groups(first_touch=False),
        first_touches=groups(first_touch=True),
        total=summarise_group("all", records, objectives, span_s),
        reasons=dict(Counter(record.reason for record in records if record.reason)),
        cut_requests=sum(record.cut_tokens > 0 for record in records),
        cut_tokens=sum(record.cut_tokens for record in records),
        lag_s=Quantiles.of(record.lag_s for record in records),
    )


def missed_objectives(records: Sequence[RequestRecord], objectives: Objectives, min_goodput: float) -> list[str]:
    """One line for each class whose share of good requests, first touches included, is below `min_goodput`."""
    missed = []
    for name in TrafficClass:
        offered = [record for record in records if record.traffic_class is name]
        good = sum(record.meets(objectives.get(name, Objective())) for record in offered)
        if offered and good < min_goodput * len(offered):
            missed.append(f"{name}: {good} of {len(offered)} requests met the objective, wanted {min_goodput:.0%}")
    return missed
