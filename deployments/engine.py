"""One engine replica: a vLLM engine with vLLM's own OpenAI app on a private port of the same process."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import time
from dataclasses import dataclass
from typing import Any

from deployments.private_server import LeasedAnswers, PrivateServer

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What one path's replicas are made of.

    Args:
        path: `hot` or `cold`.
        engine_arguments: keyword arguments of vLLM's `AsyncEngineArgs`.
        frontend_arguments: keyword arguments of vLLM's `FrontendArgs` (parsers, templates).
    """

    path: str
    engine_arguments: dict[str, Any]
    frontend_arguments: dict[str, Any]


def openai_arguments(spec_engine: Any, frontend: dict[str, Any]) -> argparse.Namespace:
    """The namespace that vLLM's OpenAI app and its renderer read their options from."""
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    return argparse.Namespace(**(vars(FrontendArgs(**frontend)) | vars(spec_engine)))


class EngineReplica:
    """The deployment class of both `HotEngine` and `ColdEngine`."""

    async def __init__(self, spec: EngineSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        began = time.monotonic()
        # It would override kv_cache_memory_bytes, and Ray's runtime environments cannot unset it.
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
        from vllm.v1.engine.async_llm import AsyncLLM

        engine_args = AsyncEngineArgs(**spec.engine_arguments)
        self._engine = AsyncLLM.from_engine_args(engine_args)
        arguments = openai_arguments(engine_args, spec.frontend_arguments)
        tasks = await self._engine.get_supported_tasks()
        openai_app = build_app(arguments, tasks, self._engine.model_config)
        await init_app_state(self._engine, openai_app.state, arguments, tasks)

        self._token = secrets.token_urlsafe(32)
        self._answers = LeasedAnswers(openai_app, self._token, lambda: self._engine.errored)
        self._server = PrivateServer(self._answers, _bind_address())
        await self._server.start()
        logger.info("%s engine ready after %.1f s", spec.path, time.monotonic() - began)

    def record_replica_metadata(self) -> dict[str, str]:
        """What the ingress needs to reach this replica. Travels inside the cluster only."""
        return {"address": self._server.address, "token": self._token}

    async def attend(self, lease_id: str) -> None:
        """The companion of one HTTP answer: runs exactly as long, so that Serve's counts, limits and drain are true."""
        await self._answers.attend(lease_id)

    async def statistics(self) -> dict[str, int]:
        """Requests that the engine has not finished, and HTTP answers that have not ended."""
        return {
            "unfinished_requests": self._unfinished_requests(),
            "running_answers": self._answers.running,
        }

    def _unfinished_requests(self) -> int:
        count: int = self._engine.output_processor.get_num_unfinished_requests()  # type: ignore[no-untyped-call]  # its library leaves it untyped
        return count

    async def check_health(self) -> None:
        """Raises when the engine process or the private server is gone; Serve then replaces the replica."""
        await self._engine.check_health()
        if not self._server.alive:
            raise RuntimeError("the engine's private HTTP server has stopped")

    async def __del__(self) -> None:
        """Serve calls this once the replica's answers have drained."""
        if hasattr(self, "_server"):
            await self._server.stop()
        if hasattr(self, "_engine"):
            self._engine.shutdown()


def _bind_address() -> str:
    """Loopback where this is the only node, else the address by which the other nodes' ingresses reach this one."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # its library leaves it untyped
    if len([node for node in nodes if node["Alive"]]) <= 1:
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # its library leaves it untyped
