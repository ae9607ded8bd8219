"""What clients get: goodput, latency by path, refusals, waiting."""

from __future__ import annotations

from app import metrics
from dashboards.alerts import GOODPUT_OBJECTIVE, NOT_OFFERED
from dashboards.boards import Board, Row
from dashboards.panels import (
    COUNT,
    ORANGE,
    QUERIES,
    RATIO,
    RED,
    REQUESTS_PER_S,
    SECONDS,
    TOKENS_PER_S,
    Display,
    Needs,
    Panel,
    Target,
)
from dashboards.queries import ratio

_GOOD = QUERIES.rate(metrics.REQUESTS_WITHIN_OBJECTIVE)
_OFFERED = QUERIES.rate_except(metrics.REQUESTS, "outcome", NOT_OFFERED)


def _latency(title: str, metric: metrics.Metric, label: str, description: str) -> Panel:
    """Median and tail of one histogram, for each value of the label."""
    targets = tuple(
        Target(QUERIES.quantile(q, metric, label), f"{{{{{label}}}}} p{q * 100:g}") for q in (0.5, 0.95, 0.99)
    )
    return Panel(title, description, SECONDS, targets)


OBJECTIVES = Row(
    "Objectives",
    (
        Panel(
            "Goodput",
            "Share of the offered requests that were answered completely with their first token in time "
            "(telemetry.ttft_objective_s). Refused, failed and late requests lower it; what clients did wrong, called "
            "off, or sent above their own key's limits does not count.",
            RATIO,
            (Target(ratio(_GOOD, _OFFERED), "goodput"),),
            highest=1,
            display=Display.NUMBER,
            width=6,
        ),
        Panel(
            "Requests",
            "Requests that ended in each second, however they ended.",
            REQUESTS_PER_S,
            (Target(QUERIES.rate(metrics.REQUESTS), "requests"),),
            display=Display.NUMBER,
            width=6,
        ),
        Panel(
            "TTFT, 95th percentile",
            "Of all paths chosen above. Long documents take long: choose a path to see it against its objective.",
            SECONDS,
            (Target(QUERIES.quantile(0.95, metrics.TTFT), "p95"),),
            display=Display.NUMBER,
            width=6,
        ),
        Panel(
            "Generated tokens",
            "Tokens per second of all engines together: the throughput.",
            TOKENS_PER_S,
            (Target(QUERIES.rate(metrics.GENERATED_TOKENS), "generated"),),
            display=Display.NUMBER,
            width=6,
        ),
        Panel(
            "Goodput by path",
            f"The objective is {GOODPUT_OBJECTIVE:.0%}, the line. One path alone below it: look at its queue, engines "
            "and refusals. All paths: look at the engines' KV usage and at the circuit.",
            RATIO,
            (
                Target(
                    ratio(
                        QUERIES.rate(metrics.REQUESTS_WITHIN_OBJECTIVE, "path"),
                        QUERIES.rate_except(metrics.REQUESTS, "outcome", NOT_OFFERED, "path"),
                    ),
                    "{{path}}",
                ),
            ),
            marks=((0, RED), (GOODPUT_OBJECTIVE, "green")),
            highest=1,
        ),
        Panel(
            "How requests end",
            "Stacked by outcome. `answered` is the one you want; other names are the reasons that clients were told, "
            "unchanged.",
            REQUESTS_PER_S,
            (Target(QUERIES.rate(metrics.REQUESTS, "outcome"), "{{outcome}}"),),
            display=Display.STACKED,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        _latency(
            "Time to first token",
            metrics.TTFT,
            "path",
            "From arrival at the ingress to the first byte. The hot path should stay flat while cold work runs: when "
            "it rises with the cold load, the paths disturb each other.",
        ),
        _latency(
            "Inter-token latency",
            metrics.ITL,
            "engines",
            "Between two tokens of one sequence. It rises with the batch; a tail far above the median is long "
            "prefills between decoding steps, or preemptions.",
        ),
        _latency(
            "Duration",
            metrics.REQUEST_DURATION,
            "path",
            "From arrival to the end of the answer. It grows with the answers' lengths: compare like with like.",
        ),
        _latency(
            "Wait for a slot",
            metrics.QUEUE_WAIT,
            "path",
            "How long requests that started had waited in the ingress. It is part of the time to first token; near "
            "the deadline of their path (admission.queues) requests begin to be refused.",
        ),
    ),
)

ADMISSION = Row(
    "Paths and admission",
    (
        Panel(
            "Classification",
            "Stacked by path and the reason for it. A sudden move to cold is a change of the clients' prompts.",
            REQUESTS_PER_S,
            (Target(QUERIES.rate(metrics.CLASSIFICATIONS, "path", "reason"), "{{path}}: {{reason}}"),),
            display=Display.STACKED,
        ),
        Panel(
            "Refusals by reason",
            "What admission refused, stacked. kv_cache_high, prefill_queue_long and preemption_storm protect the "
            "engines; queue_full and deadline_passed mean too little capacity; *_per_minute and concurrent_requests "
            "are limits of API keys. Empty while nothing was ever refused.",
            REQUESTS_PER_S,
            (Target(QUERIES.rate(metrics.ADMISSIONS, "path", "reason", action="refuse"), "{{path}}: {{reason}}"),),
            display=Display.STACKED,
            needs=Needs.EVENT,
        ),
        Panel(
            "Admission decisions",
            "Start, wait or refuse, by the engines asked for. Much waiting on one path and none on the other: their "
            "shares do not fit the traffic.",
            REQUESTS_PER_S,
            (Target(QUERIES.rate(metrics.ADMISSIONS, "action", "engines"), "{{engines}}: {{action}}"),),
        ),
        Panel(
            "Waiting in the ingress",
            "Requests without a slot, of all ingress replicas. A line that stays above zero is demand above capacity.",
            COUNT,
            (Target(QUERIES.total(metrics.QUEUED_REQUESTS, "engines"), "{{engines}}"),),
        ),
        Panel(
            "Prompt tokens waiting in the ingress",
            "The same in tokens: how much prefill the queue is worth.",
            COUNT,
            (Target(QUERIES.total(metrics.QUEUED_TOKENS, "engines"), "{{engines}}"),),
        ),
        Panel(
            "Pressure level",
            "0 normal, 1 alert, 2 long prompts are refused, 3 cold answers are shortened, 4 the lowest priority is "
            "refused. The worst of the ingress replicas.",
            COUNT,
            (Target(QUERIES.highest(metrics.PRESSURE_LEVEL, "engines"), "{{engines}}"),),
            marks=((1, ORANGE), (2, RED)),
            highest=4,
        ),
    ),
)

SERVING = Board(
    "kvpulse-serving",
    "KVPulse: serving",
    "Start here: do clients get their answers in time, and if not, why.",
    (OBJECTIVES, LATENCY, ADMISSION),
)
