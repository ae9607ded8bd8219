"""What is worth waking somebody, or telling them in the morning. Prometheus's and Grafana's rules are made from this.

Each alert compares one expression with one value, so Grafana can show both; what must hold besides (enough traffic, a
second window) is part of the expression.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app import metrics
from app.config.admission import AdmissionConfig
from dashboards.queries import PromQL, ratio, zero_if_absent

RUNBOOK = "docs/operations.md"  # of this repository; where it is published, `kvpulse dashboards` can be told
RULE_GROUP = "kvpulse"
EVALUATED_EVERY_S = 30

_MARKS = AdmissionConfig().watermarks
KV_MARKS = (_MARKS.kv_usage_ratio.alert, _MARKS.kv_usage_ratio.refuse_long, _MARKS.kv_usage_ratio.compress)
HIT_RATIO = 0.75
ENOUGH_LOOKUPS_TOKENS_PER_S = 200.0  # about one short chat each second; below, single requests decide the ratio
EVICT_AND_ALLOCATE_PER_S = 5.0
SPARSITY_RATIO = 0.7
GOODPUT_OBJECTIVE = 0.95
REFUSED_RATIO = 0.02
ENOUGH_REQUESTS_PER_S = 0.02  # six in five minutes: a single late request at night wakes nobody
# Burn of the budget of missed requests: at 14.4 a month's is gone in two days, at 6 in five.
FAST_BURN, SLOW_BURN = 14.4, 6.0

# Endings that say nothing about the service: the client's error or choice, or the limits of its own key.
NOT_OFFERED = (
    "client_error",
    "invalid_request_error",
    "other",
    "cancelled",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
)

_BY = ("application", "engines")
_PER_PATH = ("application", "path")


class Severity(StrEnum):
    CRITICAL = "critical"  # clients suffer now
    WARNING = "warning"  # they will
    INFO = "info"  # money or memory is wasted


@dataclass(frozen=True, slots=True)
class Alert:
    """
    Args:
        name: unique, and a heading of the operations handbook.
        value: what is compared.
        above: it fires above the limit, else below.
        for_minutes: how long it must hold.
        summary: one line, with `{{labels}}` in the form of both Prometheus and Grafana.
        description: what it means. `VALUE` stands for the value, written as `ratio` or a plain number.
    """

    name: str
    severity: Severity
    value: str
    limit: float
    for_minutes: int
    summary: str
    description: str
    above: bool = True
    ratio: bool = False

    @property
    def condition(self) -> str:
        return f"({self.value}) {'>' if self.above else '<'} {self.limit:g}"

    def annotations(self, shown_value: str, runbook: str) -> dict[str, str]:
        """
        Args:
            shown_value: the rule engine's template for the value.
            runbook: address of the operations handbook, without an anchor.
        """
        written = f"{{{{ {shown_value} | {'humanizePercentage' if self.ratio else 'humanize'} }}}}"
        return {
            "summary": self.summary,
            "description": self.description.replace("VALUE", written),
            "runbook_url": f"{runbook}#{self.anchor}",
        }

    @property
    def anchor(self) -> str:
        """Of this alert's heading in the handbook."""
        return self.name.lower()


def _per(minutes: int) -> PromQL:
    return PromQL(window=f"{minutes}m")


_5M = _per(5)
_ENGINES = "{{ $labels.engines }} engines of {{ $labels.application }}"


def _kv_alert(name: str, severity: Severity, limit: float, what_follows: str) -> Alert:
    """Of the least loaded replica, as admission has it: while one has room, nobody is refused."""
    return Alert(
        name,
        severity,
        _5M.lowest(metrics.KV_USAGE, *_BY),
        limit,
        2,
        f"KV usage above {limit:.0%}: {_ENGINES}",
        f"Running sequences hold VALUE of the KV blocks of even the least loaded replica. {what_follows}",
        ratio=True,
    )


def _burn_alert(name: str, severity: Severity, burn: float, long_minutes: int, short_minutes: int) -> Alert:
    """Both windows must burn: the long one for evidence, the short one so that it ends soon after the trouble."""
    limit = burn * (1 - GOODPUT_OBJECTIVE)
    long, short = _per(long_minutes), _per(short_minutes)
    return Alert(
        name,
        severity,
        f"{_missed(long)} and {_missed(short)} > {limit:g} and {_offered(short)} > {ENOUGH_REQUESTS_PER_S:g}",
        limit,
        2,
        "Requests miss their objective: {{ $labels.path }} path of {{ $labels.application }}",
        f"VALUE of the offered requests of the last {long_minutes} minutes were refused, failed or late. The budget of "
        f"{1 - GOODPUT_OBJECTIVE:.0%} burns {burn:g} times too fast.",
        ratio=True,
    )


def _missed(window: PromQL) -> str:
    good = window.rate(metrics.REQUESTS_WITHIN_OBJECTIVE, *_PER_PATH)
    return f"(1 - {ratio(good, _offered(window))})"


def _offered(window: PromQL) -> str:
    return window.rate_except(metrics.REQUESTS, "outcome", NOT_OFFERED, *_PER_PATH)


def _refused() -> str:
    """Share of the requests that admission refused for want of room. Limits of API keys are none of it."""
    refused = _5M.rate_except(metrics.ADMISSIONS, "reason", NOT_OFFERED, *_PER_PATH, action="refuse")
    return ratio(refused, _5M.rate(metrics.CLASSIFICATIONS, *_PER_PATH))


def _missing_replicas() -> str:
    wanted = _5M.highest(metrics.DESIRED_REPLICAS, *_BY)
    return f"{wanted} - ({zero_if_absent(_5M.reporting(metrics.KV_BLOCKS, *_BY), wanted)})"


ALERTS: tuple[Alert, ...] = (
    _kv_alert(
        "KVPulseKvUsageAlert",
        Severity.WARNING,
        KV_MARKS[0],
        "Admission watches; at the next mark it refuses long prompts.",
    ),
    _kv_alert(
        "KVPulseKvUsageRefusing",
        Severity.WARNING,
        KV_MARKS[1],
        "Admission refuses long prompts that are not hot.",
    ),
    _kv_alert(
        "KVPulseKvUsageExhausted",
        Severity.CRITICAL,
        KV_MARKS[2],
        "Admission shortens cold answers, then refuses the lowest priority; preemptions are near.",
    ),
    Alert(
        "KVPulseHitRatioLow",
        Severity.WARNING,
        f"{_5M.ratio_of_rates(metrics.PREFIX_HIT_TOKENS, metrics.PREFIX_QUERY_TOKENS, *_BY, engines='hot')}"
        f" and {_5M.rate(metrics.PREFIX_QUERY_TOKENS, *_BY, engines='hot')} > {ENOUGH_LOOKUPS_TOKENS_PER_S:g}",
        HIT_RATIO,
        10,
        f"Prefix hit ratio below {HIT_RATIO:.0%}: {_ENGINES}",
        "Only VALUE of the looked up tokens were in the cache: returning sessions pay their prefill again.",
        above=False,
        ratio=True,
    ),
    Alert(
        "KVPulseEvictAndAllocate",
        Severity.WARNING,
        _5M.rate(metrics.EVICT_AND_ALLOCATE, *_BY, "replica"),
        EVICT_AND_ALLOCATE_PER_S,
        2,
        "The prefix cache thrashes: replica {{ $labels.replica }} of " + _ENGINES,
        "VALUE engine steps per second evict cached blocks to store new ones in their place.",
    ),
    Alert(
        "KVPulsePreemptionStorm",
        Severity.CRITICAL,
        ratio(_5M.rate(metrics.PREEMPTIONS, *_BY), _5M.reporting(metrics.KV_BLOCKS, *_BY)),
        _MARKS.preemptions_per_s.refuse_long,
        1,
        f"Sequences are preempted: {_ENGINES}",
        "VALUE sequences per second and replica lose their blocks and start anew; long prompts are refused.",
    ),
    Alert(
        "KVPulseBlockTableSparsity",
        Severity.INFO,
        _5M.mean(metrics.BLOCK_TABLE_SPARSITY, *_BY),
        SPARSITY_RATIO,
        30,
        f"Block tables are sparse: {_ENGINES}",
        "VALUE of the entries of the live block tables are unused.",
        ratio=True,
    ),
    Alert(
        "KVPulseRefusals",
        Severity.WARNING,
        _refused(),
        REFUSED_RATIO,
        5,
        "Requests are refused for want of room: {{ $labels.path }} path of {{ $labels.application }}",
        "Admission refuses VALUE of the requests.",
        ratio=True,
    ),
    _burn_alert("KVPulseObjectiveFastBurn", Severity.CRITICAL, FAST_BURN, 60, 5),
    _burn_alert("KVPulseObjectiveSlowBurn", Severity.WARNING, SLOW_BURN, 360, 30),
    Alert(
        "KVPulseStaleReplicas",
        Severity.WARNING,
        _5M.highest(metrics.STALE_REPLICAS, *_BY),
        0,
        2,
        f"An ingress does not hear from engines: {_ENGINES}",
        "VALUE replicas have sent no pulse in time; they get traffic only when the others are full.",
    ),
    Alert(
        "KVPulseCircuitOpen",
        Severity.CRITICAL,
        _5M.highest(metrics.CIRCUIT_OPEN, *_BY),
        0,
        1,
        f"Engines fail: {_ENGINES}",
        "An ingress holds these engines to fail and sends their requests elsewhere, or refuses them.",
    ),
    Alert(
        "KVPulseMetricsAbsent",
        Severity.CRITICAL,
        f"absent({_5M.gauge(metrics.KV_BLOCKS)})",
        0,
        5,
        "No engine reports metrics",
        "Prometheus has no metric of any engine: none runs, Ray's metrics ports are not scraped, or telemetry is off.",
    ),
    Alert(
        "KVPulseScrapeFailing",
        Severity.WARNING,
        'min by (instance) (up{job="ray"})',
        1,
        5,
        "Prometheus cannot scrape {{ $labels.instance }}",
        "The metrics port of this Ray node does not answer; what runs there is missing from every panel and alert.",
        above=False,
    ),
    Alert(
        "KVPulseScaleUpStuck",
        Severity.WARNING,
        _missing_replicas(),
        0,
        15,
        f"Wanted replicas do not start: {_ENGINES}",
        "The policy has wanted VALUE more replicas than run for a quarter of an hour.",
    ),
)
