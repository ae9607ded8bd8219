"""An application with the names of ours and no engine: each replica reports what a file says.

`serve run` imports it. The file's `engine` is what every hot and cold replica reports, `ingress` what the ingress does;
where one is null, that replica fails to report.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request

from deployments.autoscaling import autoscaling_config

LOAD_FILE = "load.json"


class _Reporting:
    def __init__(self, folder: str, *handles: Any) -> None:
        self._file = Path(folder, LOAD_FILE)
        self._handles = handles

    def _report(self, key: str) -> dict[str, float]:
        report: dict[str, float] | None = json.loads(self._file.read_text())[key]
        if report is None:
            raise RuntimeError("nothing to report")
        return report


class ReportingEngine(_Reporting):
    async def record_autoscaling_stats(self) -> dict[str, float]:
        return self._report("engine")

    async def attend(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"


class ReportingIngress(_Reporting):
    async def __call__(self, request: Request) -> str:
        if "attend" in request.query_params:
            return str(await self._handles[0].attend.remote(float(request.query_params["attend"])))
        return "ready"

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return self._report("ingress")


def build(arguments: dict[str, Any]) -> Application:
    """`folder` holds the file, `settings` are the policy's, `bounds` the replicas of each engine deployment."""

    def options(name: str) -> dict[str, Any]:
        scaling = autoscaling_config(arguments["settings"], *arguments["bounds"].get(name, (1, 1)))
        actor = {"num_cpus": 0, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
        return {"name": name, "autoscaling_config": scaling, "ray_actor_options": actor}

    folder = arguments["folder"]
    hot, cold = (
        serve.deployment(graceful_shutdown_timeout_s=60, **options(name))(ReportingEngine).bind(folder)
        for name in ("HotEngine", "ColdEngine")
    )
    return serve.deployment(**options("Ingress"))(ReportingIngress).bind(folder, hot, cold)
