"""vLLM's own server with the engine options of a path: what KVPulse's answers are compared with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from app.config.schema import AppConfig
from deployments import model_store
from deployments.application import frontend_arguments
from deployments.effective import effective_config
from deployments.engine_options import engine_arguments
from tests.integration.stack import START_TIMEOUT_S, free_port


class BareVllm:
    """One `vllm.entrypoints.openai.api_server` on a port of its own."""

    def __init__(self, config: dict[str, Any], path: str, log_path: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log_path = log_path
        self._command, self._environment = _launch(AppConfig.model_validate(config), path)

    def start(self) -> None:
        """Start without waiting. `wait_until_ready` is the other half."""
        where = ["--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - vLLM's own server
                [*self._command, *where],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=10).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"vLLM did not start:\n{self._log_path.read_text(errors='replace')[-8000:]}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _launch(config: AppConfig, path: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of an engine like those of the path."""
    model_path = model_store.resolve(config.model.source)
    effective = effective_config(config, model_path)
    options = engine_arguments(effective.paths[path], config.model, model_path) | frontend_arguments(config.model)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in options.items():
        command += _flag(name.replace("_", "-"), value)
    return command, effective.resources[path].environment


def _flag(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]
