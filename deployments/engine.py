"""One engine replica: a vLLM engine with vLLM's own OpenAI app on a private port of the same process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from ray import serve

from app.config.live import PrewarmConfig
from app.config.telemetry import TelemetryConfig
from app.requests import RequestPath
from app.state.block_ledger import BlockLedger
from app.state.chain_hashes import ChainHasher
from app.state.lately import BusyTime
from app.state.prefill_progress import PrefillProgress
from deployments.application_secret import RayStore, feed_keys
from deployments.device_stats import open_devices
from deployments.engine_events import EventEndpoints
from deployments.engine_load import EngineLoad
from deployments.engine_telemetry import EngineTelemetry, step_statistics
from deployments.prewarm import prewarmed
from deployments.private_server import LeasedAnswers, PrivateServer, without_middleware
from deployments.pulse_messages import PulseMessages
from deployments.pulse_publisher import PulsePublisher
from deployments.sequences import follow_sequences
from deployments.step_statistics import StepStatistics
from deployments.telemetry import Telemetry
from deployments.tracing import engine_trace_arguments

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What one path's replicas are made of.

    Args:
        path: `hot` or `cold`.
        engine_arguments: keyword arguments of vLLM's `AsyncEngineArgs`.
        frontend_arguments: keyword arguments of vLLM's `FrontendArgs` (parsers, templates).
        telemetry: what it measures of itself.
        prewarm: what it computes before it serves.
        niceness: of the engine process's threads.
    """

    path: str
    engine_arguments: dict[str, Any]
    frontend_arguments: dict[str, Any]
    telemetry: TelemetryConfig
    prewarm: PrewarmConfig
    niceness: int = 0


def openai_arguments(spec_engine: Any, frontend: dict[str, Any]) -> argparse.Namespace:
    """The namespace that vLLM's OpenAI app and its renderer read their options from."""
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    return argparse.Namespace(**(vars(FrontendArgs(**frontend)) | vars(spec_engine)))


class EngineReplica:
    """The deployment class of both `HotEngine` and `ColdEngine`."""

    async def __init__(self, spec: EngineSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        began = time.monotonic()
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app

        replica, service = serve.get_replica_context().replica_id.unique_id, f"kvpulse-{spec.path}-engine"
        model = spec.engine_arguments["served_model_name"][0]
        self._telemetry = Telemetry.of_replica(spec.telemetry, service, replica, model)
        self._events = EventEndpoints.private()
        statistics = step_statistics(self._telemetry, spec.path)
        engine_args, self._engine = _start_engine(spec, self._events, statistics)
        follow_sequences(self._engine.output_processor)
        self._start_measuring(spec, statistics)
        arguments = openai_arguments(engine_args, spec.frontend_arguments)
        tasks = await self._engine.get_supported_tasks()
        openai_app = without_middleware(build_app(arguments, tasks, self._engine.model_config))
        await init_app_state(self._engine, openai_app.state, arguments, tasks)

        self._token = secrets.token_urlsafe(32)
        self._answers = LeasedAnswers(openai_app, self._token, lambda: self._engine.errored)
        self._server = PrivateServer(self._answers, _bind_address())
        await self._server.start()
        _make_nice(spec.niceness)
        statistics.serving = False
        tokens = await prewarmed(self._engine, RequestPath(spec.path), spec.prewarm)
        self._measured.serves(tokens)
        logger.info("%s engine ready after %.1f s", spec.path, time.monotonic() - began)

    def _start_measuring(self, spec: EngineSpec, statistics: StepStatistics) -> None:
        """Follow the engine's cache and load, and tell the ingresses, the instruments and the autoscaling policy."""
        from deployments.block_tables import BlockTableWatch, is_measurable

        ledger, busy = _ledger(self._engine), BusyTime(time.monotonic)
        requests, progress = self._engine.output_processor.request_states, PrefillProgress(ledger)
        load = EngineLoad(requests, statistics, progress, self._engine.vllm_config.cache_config.num_gpu_blocks, busy)
        keys = feed_keys(serve.get_replica_context().app_name, RayStore())
        self._feed = PulsePublisher(ledger, self._events, load, PulseMessages(keys.signing), _bind_address())
        self._measured = EngineTelemetry(self._telemetry, spec.path, statistics, lambda: load.last, ledger, busy)
        devices = open_devices(spec.telemetry.device_period_s) if spec.telemetry.enabled else None
        if devices is not None:
            devices.register(self._telemetry)
        if spec.telemetry.enabled and is_measurable(self._engine.vllm_config):
            tables = BlockTableWatch(self._telemetry, spec.path, self._engine, lambda: bool(requests))
            self._watching = asyncio.create_task(tables.run(spec.telemetry.block_table_period_s))

    def record_replica_metadata(self) -> dict[str, Any]:
        """What the ingress needs to reach and to follow this replica. Travels inside the cluster only."""
        return {"address": self._server.address, "token": self._token, "feed": asdict(self._feed.endpoint)}

    async def attend(self, lease_id: str) -> int | None:
        """The companion of one HTTP answer: runs exactly as long, so that Serve's counts, limits and drain are true.
        Returns the tokens that the answer cost.
        """
        return await self._answers.attend(lease_id)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """`EngineStats`, for the policy."""
        return self._measured.stats()

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. False, and nothing is forgotten, while a request uses the cache."""
        done: bool = await self._engine.reset_prefix_cache()
        if done:
            self._feed.forget_all()
        return done

    async def statistics(self) -> dict[str, int]:
        """Requests that the engine has not finished, and HTTP answers that have not ended."""
        return {
            "unfinished_requests": self._unfinished_requests(),
            "running_answers": self._answers.running,
        }

    def _unfinished_requests(self) -> int:
        count: int = self._engine.output_processor.get_num_unfinished_requests()
        return count

    async def check_health(self) -> None:
        """Raises when the engine process or the private server is gone; Serve then replaces the replica."""
        await self._engine.check_health()
        if not self._server.alive:
            raise RuntimeError("the engine's private HTTP server has stopped")
        if not self._feed.alive:
            raise RuntimeError("the engine's pulse feed has stopped")

    async def __del__(self) -> None:
        """Serve calls this once the replica's answers have drained."""
        if hasattr(self, "_watching"):
            self._watching.cancel()
        if hasattr(self, "_server"):
            await self._server.stop()
        if hasattr(self, "_feed"):
            self._feed.close()
        if hasattr(self, "_engine"):
            self._engine.shutdown()
        if hasattr(self, "_events"):
            self._events.remove()
        if hasattr(self, "_telemetry"):
            await asyncio.to_thread(self._telemetry.shutdown)


def _start_engine(spec: EngineSpec, events: EventEndpoints, statistics: StepStatistics) -> tuple[Any, Any]:
    """vLLM's engine arguments and the engine."""
    # It would override kv_cache_memory_bytes, and Ray's runtime environments cannot unset it.
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    # How vLLM exports its span of each request, if it does.
    os.environ.setdefault("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    os.environ.setdefault("OTEL_SERVICE_NAME", f"kvpulse-{spec.path}-engine")
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    from deployments.block_tables import make_measurable

    arguments = {**engine_trace_arguments(spec.telemetry), **spec.engine_arguments}
    engine_args = AsyncEngineArgs(**arguments, kv_events_config=KVEventsConfig(**events.config_fields()))
    config = engine_args.create_engine_config(UsageContext.ENGINE_CONTEXT)
    make_measurable(config)
    engine = AsyncLLM.from_vllm_config(
        config,
        usage_context=UsageContext.ENGINE_CONTEXT,
        stat_loggers=[statistics],  # type: ignore[list-item]  # called as the factory it is
        enable_log_requests=engine_args.enable_log_requests,
    )
    return engine_args, engine


def _ledger(engine: Any) -> BlockLedger:
    """Of what the engine's cache holds. What it is to be told apart by, the engine has decided: a backend may have
    changed the block size.
    """
    cache = engine.vllm_config.cache_config
    keys = feed_keys(serve.get_replica_context().app_name, RayStore())
    hasher = ChainHasher(keys.hashing, cache.effective_attention_block_size or cache.block_size)
    return BlockLedger(hasher, cache.num_gpu_blocks, caches_prefixes=bool(cache.enable_prefix_caching))


def _make_nice(niceness: int) -> None:
    """Have the engine's processes yield to others. Not this one: it streams, and answers Serve's health checks."""
    for engine in psutil.Process().children(recursive=True) if niceness else ():
        for thread in engine.threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, niceness)


def _bind_address() -> str:
    """Loopback where this is the only node, else the address by which the other nodes' ingresses reach this one."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # its library leaves it untyped
    if len([node for node in nodes if node["Alive"]]) <= 1:
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # its library leaves it untyped
