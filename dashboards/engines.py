"""Each engine replica by itself, and its device."""

from __future__ import annotations

from app import metrics
from dashboards.alerts import KV_MARKS
from dashboards.boards import Board, Row
from dashboards.panels import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    DARK_RED,
    ORANGE,
    PER_S,
    QUERIES,
    RATIO,
    RED,
    SECONDS,
    TOKENS_PER_S,
    Needs,
    Panel,
    Target,
)

_REPLICA = "{{engines}} {{replica}}"
_DEVICE = "{{replica}} {{device}}"
_BY = ("engines", "replica")


def _device(title: str, description: str, unit: str, *targets: tuple[str, str], highest: float | None = None) -> Panel:
    lines = tuple(Target(expr, legend) for expr, legend in targets)
    return Panel(title, description, unit, lines, highest=highest, needs=Needs.DEVICE, empty="no GPU")


_BATCH = Row(
    "Batch",
    (
        Panel(
            "Running sequences",
            "The batch of each replica. Larger is more throughput and a higher inter-token latency.",
            COUNT,
            (Target(QUERIES.gauge(metrics.RUNNING_REQUESTS), _REPLICA),),
        ),
        Panel(
            "Waiting sequences",
            "Queued in the engine. Hot engines should show next to none: their queue is the ingress's.",
            COUNT,
            (Target(QUERIES.gauge(metrics.WAITING_REQUESTS), _REPLICA),),
        ),
        Panel(
            "Queued prefill",
            "Prompt tokens accepted and not computed. One replica above the others: long prompts met there.",
            COUNT,
            (Target(QUERIES.gauge(metrics.QUEUED_PREFILL_TOKENS), _REPLICA),),
        ),
        Panel(
            "KV usage",
            "Of each replica; the lines are the default watermarks. Replicas of one path far apart: routing by prefix "
            "outweighs load (routing.kv_penalty_tokens).",
            RATIO,
            (Target(QUERIES.gauge(metrics.KV_USAGE), _REPLICA),),
            marks=tuple(zip(KV_MARKS, (ORANGE, RED, DARK_RED), strict=True)),
            highest=1,
        ),
    ),
)

_SPEED = Row(
    "Speed",
    (
        Panel(
            "Prefill, 95th percentile",
            "From a sequence's first scheduling to its first token, in the engine.",
            SECONDS,
            (Target(QUERIES.quantile(0.95, metrics.PREFILL_TIME, *_BY), _REPLICA),),
        ),
        Panel(
            "Queue of the engine, 95th percentile",
            "From arrival in the engine to the first scheduling. Rising with a free batch: no KV blocks are left.",
            SECONDS,
            (Target(QUERIES.quantile(0.95, metrics.ENGINE_QUEUE_TIME, *_BY), _REPLICA),),
        ),
        Panel(
            "Generated tokens",
            "Per second and replica. One replica below the others at an equal batch is a slow device or node.",
            TOKENS_PER_S,
            (Target(QUERIES.rate(metrics.GENERATED_TOKENS, *_BY), _REPLICA),),
        ),
        Panel(
            "Prefilled tokens",
            "Prompt tokens of finished prefills, cached ones included.",
            TOKENS_PER_S,
            (Target(QUERIES.rate(metrics.PROMPT_TOKENS, *_BY), _REPLICA),),
        ),
        Panel(
            "Preemptions",
            "Sequences that lost their blocks, by replica.",
            PER_S,
            (Target(QUERIES.rate(metrics.PREEMPTIONS, *_BY), _REPLICA),),
            needs=Needs.EVENT,
        ),
        Panel(
            "Cached blocks",
            "Blocks that a prefix hit can use. A replica that falls to zero has restarted.",
            COUNT,
            (Target(QUERIES.gauge(metrics.CACHED_BLOCKS), _REPLICA),),
        ),
    ),
)

_DEVICES = Row(
    "Devices",
    (
        _device(
            "Device memory",
            "Used and all. It is taken once at start; growth afterwards is a leak or another process.",
            BYTES,
            (QUERIES.highest(metrics.DEVICE_MEMORY_USED, "replica", "device"), f"{_DEVICE} used"),
            (QUERIES.highest(metrics.DEVICE_MEMORY_TOTAL, "replica", "device"), f"{_DEVICE} all"),
        ),
        _device(
            "Kernels",
            "Share of the time in which a kernel ran. Low with a full queue: the host does not keep up.",
            RATIO,
            (QUERIES.gauge(metrics.DEVICE_UTILIZATION), _DEVICE),
            highest=1,
        ),
        _device(
            "Memory traffic",
            "Share of the time in which memory was read or written. Decoding is bound by it, prefill by kernels.",
            RATIO,
            (QUERIES.gauge(metrics.DEVICE_BANDWIDTH), _DEVICE),
            highest=1,
        ),
        _device(
            "PCIe",
            "Between host and device. High while serving: KV blocks are swapped or offloaded.",
            BYTES_PER_S,
            (QUERIES.gauge(metrics.DEVICE_PCIE), f"{_DEVICE} {{{{direction}}}}"),
        ),
    ),
)

ENGINES = Board(
    "kvpulse-engines",
    "KVPulse: engines",
    "Each replica by itself: batch, speed, device.",
    (_BATCH, _SPEED, _DEVICES),
)
