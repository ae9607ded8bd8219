"""Every metric: name, kind, unit, labels, what it says. Telemetry makes its instruments from these, dashboards their
queries.

A name is Prometheus's, with the unit in it, and the same everywhere: as OpenTelemetry instrument, on an OTLP endpoint,
and with the prefix `ray_` on Ray's metrics ports, where Ray adds `application`, `deployment` and `replica`. What
OpenTelemetry's GenAI conventions name keeps their name on OTLP.

Labels have few values: `path` is hot, warm or cold, what a request was classified as; `engines` is hot or cold, the
engines that it runs on, or that report.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RAY_PREFIX = "ray_"


class Kind(StrEnum):
    COUNTER = "counter"  # only rises while its process lives
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument.

    Args:
        name: as Prometheus has it.
        unit: in UCUM, as OpenTelemetry wants it.
        labels: what the product adds itself.
        otel_name: of the GenAI conventions, where they have one.
        bounds: upper bounds of a histogram's buckets.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    otel_name: str | None = None
    bounds: tuple[float, ...] = ()

    @property
    def instrument_name(self) -> str:
        """On OTLP."""
        return self.otel_name or self.name

    @property
    def ray_name(self) -> str:
        """On the metrics port of a Ray node; of a histogram without `_bucket`, `_sum`, `_count`."""
        return RAY_PREFIX + self.name


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, unit, text, labels)


def _seconds(name: str, text: str, *labels: str, otel_name: str | None = None, fine: bool = False) -> Metric:
    bounds = _FINE_SECONDS if fine else _SECONDS
    return Metric(name, Kind.HISTOGRAM, "s", text, labels, otel_name, bounds)


_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_FINE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)

# Requests, as the ingress sees them.
REQUESTS = _counter(
    "kvpulse_requests_total", "{request}", "Requests that have ended, by how: answered, or why not.", "path", "outcome"
)
REQUESTS_WITHIN_OBJECTIVE = _counter(
    "kvpulse_requests_within_objective_total",
    "{request}",
    "Requests answered completely whose first token came within telemetry.ttft_objective_s of their path.",
    "path",
)
CLASSIFICATIONS = _counter(
    "kvpulse_classifications_total", "{request}", "Requests by path, and why they have it.", "path", "reason"
)
ADMISSIONS = _counter(
    "kvpulse_admissions_total",
    "{request}",
    "What admission decided: start, wait or refuse, on which engines, and why.",
    "path",
    "engines",
    "action",
    "reason",
)
ROUTING_DECISIONS = _counter(
    "kvpulse_routing_decisions_total", "{request}", "Leases by why their replica was chosen.", "engines", "reason"
)
ROUTED_PROMPT_TOKENS = _counter(
    "kvpulse_routed_prompt_tokens_total", "{token}", "Prompt tokens sent to engines.", "engines"
)
PREDICTED_HIT_TOKENS = _counter(
    "kvpulse_predicted_hit_tokens_total",
    "{token}",
    "Of those, tokens that the chosen replica's cache was known to hold.",
    "engines",
)
QUEUED_REQUESTS = _gauge(
    "kvpulse_queued_requests", "{request}", "Requests that wait in this ingress for a slot.", "engines"
)
QUEUED_TOKENS = _gauge(
    "kvpulse_queued_tokens",
    "{token}",
    "Prompt tokens still to compute of the requests that wait in this ingress.",
    "engines",
)
QUEUE_WAIT = _seconds("kvpulse_queue_wait_seconds", "How long requests that started had waited for a slot.", "path")
PRESSURE_LEVEL = _gauge(
    "kvpulse_pressure_level",
    "{level}",
    "Watermark level of a path's engines: 0 normal, 1 alert, 2 refuse_long, 3 compress, 4 shed.",
    "engines",
)
CIRCUIT_OPEN = _gauge("kvpulse_circuit_open", "1", "1 while a path's engines are held to fail.", "engines")
STALE_REPLICAS = _gauge(
    "kvpulse_stale_replicas", "{replica}", "Replicas whose pulse this ingress has not heard in time.", "engines"
)
TTFT = _seconds(
    "gen_ai_server_time_to_first_token_seconds",
    "From a request's arrival at the ingress to the first byte of its streamed answer.",
    "path",
    otel_name="gen_ai.server.time_to_first_token",
)
REQUEST_DURATION = _seconds(
    "gen_ai_server_request_duration_seconds",
    "From a request's arrival at the ingress to the end of its answer.",
    "path",
    otel_name="gen_ai.server.request.duration",
)

# Engines. What vLLM counts is taken from its stat logger, what the cache does from its KV events.
ITL = _seconds(
    "gen_ai_server_time_per_output_token_seconds",
    "Inter-token latency, between two tokens of one sequence.",
    "engines",
    otel_name="gen_ai.server.time_per_output_token",
    fine=True,
)
PREFILL_TIME = _seconds(
    "kvpulse_prefill_seconds", "From a sequence's first scheduling to its first token, in the engine.", "engines"
)
ENGINE_QUEUE_TIME = _seconds(
    "kvpulse_engine_queue_seconds", "From a sequence's arrival in the engine to its first scheduling.", "engines"
)
PROMPT_TOKENS = _counter("kvpulse_prompt_tokens_total", "{token}", "Prompt tokens of finished prefills.", "engines")
GENERATED_TOKENS = _counter("kvpulse_generated_tokens_total", "{token}", "Tokens generated.", "engines")
RUNNING_REQUESTS = _gauge("kvpulse_running_requests", "{request}", "Sequences in the engine's batch.", "engines")
WAITING_REQUESTS = _gauge("kvpulse_waiting_requests", "{request}", "Sequences queued in the engine.", "engines")
QUEUED_PREFILL_TOKENS = _gauge(
    "kvpulse_queued_prefill_tokens",
    "{token}",
    "Prompt tokens that the engine has accepted and not computed.",
    "engines",
)
KV_USAGE = _gauge(
    "kvpulse_kv_usage_ratio",
    "1",
    "Blocks of running sequences over all blocks. Cached blocks that no sequence uses are free.",
    "engines",
)
KV_BLOCKS = _gauge("kvpulse_kv_blocks", "{block}", "Blocks of the whole KV cache.", "engines")
CACHED_BLOCKS = _gauge("kvpulse_cached_blocks", "{block}", "Blocks whose content a prefix hit can use.", "engines")
PREFIX_QUERY_TOKENS = _counter(
    "kvpulse_prefix_query_tokens_total",
    "{token}",
    "Prompt tokens looked up in the prefix cache. Lookups after a preemption do not count.",
    "engines",
)
PREFIX_HIT_TOKENS = _counter(
    "kvpulse_prefix_hit_tokens_total", "{token}", "Of those, tokens that the cache held.", "engines"
)
PREFIX_HIT_RATIO = _gauge(
    "kvpulse_prefix_hit_ratio",
    "1",
    "Hit tokens over looked up tokens of the last minute; no value without lookups.",
    "engines",
)
STORED_BLOCKS = _counter("kvpulse_stored_blocks_total", "{block}", "Blocks that entered the prefix cache.", "engines")
EVICTED_BLOCKS = _counter(
    "kvpulse_evicted_blocks_total", "{block}", "Blocks that left the prefix cache for others.", "engines"
)
EVICT_AND_ALLOCATE = _counter(
    "kvpulse_evict_and_allocate_total",
    "{step}",
    "Engine steps that evicted cached blocks to store new ones in their place.",
    "engines",
)
PREEMPTIONS = _counter(
    "kvpulse_preemptions_total", "{preemption}", "Sequences preempted for lack of blocks.", "engines"
)
BLOCK_TABLE_SPARSITY = _gauge(
    "kvpulse_block_table_sparsity_ratio", "1", "Unused share of the entries of the live block tables.", "engines"
)
INTERNAL_FRAGMENTATION = _gauge(
    "kvpulse_internal_fragmentation_ratio", "1", "Share of the slots of blocks in use that hold no token.", "engines"
)
BLOCK_SHARING = _gauge(
    "kvpulse_block_sharing_ratio",
    "1",
    "Share of the entries of block tables that need no block of their own.",
    "engines",
)
PREWARMED_TOKENS = _counter(
    "kvpulse_prewarmed_tokens_total", "{token}", "Prompt tokens computed before the replica took traffic.", "engines"
)
DEVICE_MEMORY_USED = _gauge("kvpulse_device_memory_used_bytes", "By", "Memory in use on the device.", "device")
DEVICE_MEMORY_TOTAL = _gauge("kvpulse_device_memory_bytes", "By", "Memory of the device.", "device")
DEVICE_UTILIZATION = _gauge(
    "kvpulse_device_utilization_ratio", "1", "Share of the last moment in which a kernel ran.", "device"
)
DEVICE_BANDWIDTH = _gauge(
    "kvpulse_device_memory_utilization_ratio", "1", "Share of it in which memory was read or written.", "device"
)
DEVICE_PCIE = _gauge(
    "kvpulse_device_pcie_bytes_per_second", "By/s", "Traffic between host and device.", "device", "direction"
)

# Scaling, from the Serve controller, which belongs to no application and so says of which one it speaks.
DESIRED_REPLICAS = _gauge(
    "kvpulse_desired_replicas",
    "{replica}",
    "What the autoscaling policy wants; in a dry run, what it would.",
    "application",
    "engines",
)
SCALING_DECISIONS = _counter(
    "kvpulse_scaling_decisions_total",
    "{decision}",
    "Changes that the policy asked for, and times that it began to hold the number, by why.",
    "application",
    "engines",
    "reason",
)
DEMAND_TOKENS = _gauge(
    "kvpulse_demand_tokens_per_second",
    "{token}/s",
    "Prompt and answer tokens that arrive.",
    "application",
    "engines",
)
FORECAST_TOKENS = _gauge(
    "kvpulse_forecast_tokens_per_second",
    "{token}/s",
    "Upper bound of what is expected to arrive by the time a new replica would be ready.",
    "application",
    "engines",
)

DEVICE_METRICS = (
    DEVICE_MEMORY_USED,
    DEVICE_MEMORY_TOTAL,
    DEVICE_UTILIZATION,
    DEVICE_BANDWIDTH,
    DEVICE_PCIE,
)
SCALING_METRICS = (DESIRED_REPLICAS, SCALING_DECISIONS, DEMAND_TOKENS, FORECAST_TOKENS)
ALL: tuple[Metric, ...] = tuple(value for value in globals().values() if isinstance(value, Metric))
