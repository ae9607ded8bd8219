"""`python -m benchmarks.telemetry_cost`: what telemetry costs the processors, per request and per collection.

One request = 127 tokens in a batch of 8, so 127 engine steps shared by 8 requests, each step told to the stat logger as
vLLM tells it, and one `RequestRecord` at the ingress. Off is the same with a logger that keeps what routing and
admission need and no more. Everything is measured in CPU seconds of this process, the thread that exports included;
Ray's own agent, which gets a fixed number of values per collection, is not in it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource

from app.config.telemetry import ObjectivesConfig, TelemetryConfig
from app.decisions.admission import Action, AdmissionDecision, Placement
from app.decisions.classifier import Classification
from app.decisions.routing import RoutingDecision, RoutingReason, RoutingRequest
from app.requests import Outcome, RequestFeatures, RequestPath
from app.state.block_ledger import BlockLedger
from app.state.chain_hashes import ChainHasher
from app.state.lately import BusyTime
from app.state.pulse import ReplicaLoad
from app.state.watermarks import Level
from deployments.engine_telemetry import EngineTelemetry, step_statistics
from deployments.ingress_telemetry import IngressTelemetry
from deployments.ray_metrics import RayExporter
from deployments.request_record import RequestRecord
from deployments.step_statistics import Step
from deployments.telemetry import Telemetry
from deployments.triage import Triaged

BATCH, ANSWER_TOKENS, PROMPT_TOKENS = 8, 127, 892
HOT = RequestPath.HOT


class _Minimal:
    """What would be kept of a step without telemetry."""

    def __init__(self) -> None:
        self.last = Step()

    def record(self, scheduler: Any, iteration: Any) -> None:
        preemptions = self.last.preemptions + iteration.num_preempted_reqs
        self.last = Step(scheduler.num_running_reqs, scheduler.kv_cache_usage, preemptions)


def steps() -> list[tuple[Any, Any]]:
    """Of `BATCH` requests that begin and end together, made by vLLM's own classes."""
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.stats import IterationStats, PrefixCacheStats, RequestStateStats, SchedulerStats

    made = []
    for number in range(ANSWER_TOKENS):
        lookups, iteration = PrefixCacheStats(), IterationStats()  # type: ignore[no-untyped-call]  # its library's
        if number == 0:
            lookups.queries, lookups.hits = BATCH * PROMPT_TOKENS, BATCH * PROMPT_TOKENS // 2
            iteration.prompt_token_stats.total = BATCH * PROMPT_TOKENS
        else:
            iteration.inter_token_latencies_iter = [0.012] * BATCH
        if number == ANSWER_TOKENS - 1:
            times = RequestStateStats(ANSWER_TOKENS, 0, 0.0, 1.0, 1.1, 1.4, 3.0)
            for request in range(BATCH):
                iteration.update_from_finished_request(FinishReason.STOP, str(request), PROMPT_TOKENS, 127, times)
        iteration.num_generation_tokens = BATCH
        made.append((SchedulerStats(num_running_reqs=BATCH, prefix_cache_stats=lookups), iteration))
    return made


def request_record() -> RequestRecord:
    found = Classification(HOT, "short_prompt_and_output", 50)
    triaged = Triaged(RequestFeatures(PROMPT_TOKENS, ANSWER_TOKENS), found, RoutingRequest(PROMPT_TOKENS, (), 32), True)
    admission = AdmissionDecision(Action.START, HOT, Placement.HOME, Level.NORMAL)
    routing = RoutingDecision("r", RoutingReason.PREFIX_HIT, 448, 1.0)
    return RequestRecord(triaged, Outcome.ANSWERED, HOT, admission, routing, "r", 1.5, 0.1, 0.0, 1019)


def cpu_us(action: Callable[[], object], times: int) -> float:
    """Microseconds of CPU per call, the least of five runs."""
    runs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            action()
        runs.append((time.process_time() - began) / times)
    return 1e6 * min(runs)


def engine(exporters: list[tuple[otel.MetricExporter, float]]) -> tuple[Telemetry, Any]:
    telemetry = Telemetry(Resource.get_empty(), exporters)
    statistics, clock = step_statistics(telemetry, HOT), time.monotonic
    ledger = BlockLedger(ChainHasher(b"benchmark", 32), 1000)
    EngineTelemetry(telemetry, HOT, statistics, ReplicaLoad, ledger, BusyTime(clock))
    return telemetry, statistics


def measure(requests_per_s: float) -> dict[str, float]:
    """Microseconds of CPU."""
    ray_s = TelemetryConfig().ray_period_s
    engine_telemetry, statistics = engine([(RayExporter(), 3600.0)])
    ingress_telemetry = Telemetry(Resource.get_empty(), [(RayExporter(), 3600.0)])
    ingress = IngressTelemetry(ingress_telemetry, ObjectivesConfig(), 256, dict, {})
    told, record, minimal = steps(), request_record(), _Minimal()

    def batch(logger: Any) -> Callable[[], None]:
        def run() -> None:
            for scheduler, iteration in told:
                logger.record(scheduler, iteration)

        return run

    on, off = (cpu_us(batch(logger), 40) / BATCH for logger in (statistics, minimal))

    def at_ingress() -> None:
        ingress.arrived(record.triaged)
        ingress.observe(record)

    ended = cpu_us(at_ingress, 2000)
    collections = [cpu_us(each.flush, 50) for each in (engine_telemetry, ingress_telemetry)]
    per_request = on - off + ended
    return {
        "engine_per_request_on": on,
        "engine_per_request_off": off,
        "ingress_per_request": ended,
        "collection_engine": collections[0],
        "collection_ingress": collections[1],
        "per_request_with_collections": per_request + sum(collections) / ray_s / requests_per_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests-per-s", type=float, default=5.0, help="that share the collections")
    parser.add_argument("--request-cpu-ms", type=float, help="CPU of one whole request, to tell the share of it")
    options = parser.parse_args()
    measured = measure(options.requests_per_s)
    if options.request_cpu_ms:
        share = measured["per_request_with_collections"] / (1000 * options.request_cpu_ms)
        measured["share_of_request_percent"] = 100 * share
    print(json.dumps({name: round(value, 2) for name, value in measured.items()}, indent=2))


if __name__ == "__main__":
    main()
