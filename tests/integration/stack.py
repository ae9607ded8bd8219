"""The product as a user starts it: `serve run <yaml>` in a process of its own, on ports of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from loadtest.isolation import free_port, isolated_ray

START_TIMEOUT_S = 420.0
STOP_TIMEOUT_S = 150.0
SERVE_RUN = (Path(sys.executable).with_name("serve"), "run")


def process_name(process: psutil.Process) -> str:
    """What the process calls itself; empty when it is gone, or dead and not yet reaped."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


class Stack:
    """One running `serve run`.

    Args:
        config: the whole YAML document; its HTTP port is replaced by a free one.
        command: what runs the document; its path is appended.

    Everything it writes lies in `folder`, which `stop` removes.
    """

    def __init__(self, config: dict[str, Any], command: Sequence[str | Path] = SERVE_RUN) -> None:
        self._command = command
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="kvp-"))  # short: Unix sockets below it have at most 107 characters
        self.log_path = self.folder / "serve.log"
        self.config = {**config, "http_options": {**config["http_options"], "port": self.port}}
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    def start(self) -> None:
        """Start without waiting. `wait_until_ready` is the other half."""
        path = self.write_config(self.config)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the environment's own command
                [*self._command, path],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def write_config(self, config: dict[str, Any]) -> Path:
        path = self.folder / "serve_config.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def _environment(self) -> dict[str, str]:
        own = {
            **isolated_ray(self.folder),  # another stack may be running
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "RAY_metrics_report_interval_ms": "1000",  # ten times as often as usual: nobody wants to wait for metrics
        }
        return {**os.environ, **own}

    @property
    def pid(self) -> int:
        assert self._process is not None, "the stack has not been started"
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Raises AssertionError with the end of the log as soon as the deploy has failed, or at the deadline."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.readiness() == 200:
                return
            log = self.log_text()
            if self._process.poll() is not None or "DEPLOY_FAILED" in log or "failed with exception" in log:
                raise AssertionError(f"the deploy failed:\n{log[-8000:]}")
            time.sleep(0.5)
        raise AssertionError(f"not ready within {START_TIMEOUT_S:g} s:\n{self.log_text()[-8000:]}")

    def readiness(self) -> int | None:
        """The status of `/ready`, None while nothing listens."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=10).status_code
        except httpx.TransportError:
            return None

    @property
    def scrape_targets(self) -> Path:
        """Ray's file of metrics ports, as Prometheus' file_sd reads it."""
        return self.folder / "ray" / "prom_metrics_service_discovery.json"

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_files(self) -> Iterator[Path]:
        """Every log of this run: what `serve run` prints, and all that Ray's processes write."""
        yield self.log_path
        yield from (path for path in self.folder.glob("ray/session_2*/logs/**/*") if path.is_file())

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Living descendants of `serve run` whose command line contains `name`."""
        try:
            family = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in family if name in process_name(process)]

    def interrupt(self) -> None:
        """What Ctrl-C does: `serve run` shuts Serve down, which drains the replicas."""
        self._signal(signal.SIGINT)

    def wait_until_stopped(self) -> list[str]:
        """After a signal, wait for the end of every process of the stack. Kill what stays, and return its names."""
        assert self._process is not None
        _, alive = psutil.wait_procs(self._family, timeout=STOP_TIMEOUT_S)
        left = [name for name in map(process_name, alive) if name]
        for process in alive:
            process.kill()
        self._process.wait()
        return left

    def stop(self) -> list[str]:
        """End it as a supervisor does, and remove its folder. Returns the names of processes that had to be killed."""
        self._signal(signal.SIGTERM)
        left = self.wait_until_stopped()
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            root = psutil.Process(self.pid)
            self._family = [root, *root.children(recursive=True)]  # listed before: orphans lose their parent
            self._process.send_signal(number)
