"""CPU seconds of every process of the machine over a span: who used the cores that a stack shares with its load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

NOTICEABLE_S = 0.05


@dataclass(frozen=True)
class ProcessCpu:
    """`name` is the title a process gives itself (Ray names its replicas), else its program and script or module."""

    pid: int
    name: str
    cpu_s: float


def cpu_seconds() -> dict[int, float]:
    """User and system seconds by pid, so far."""
    return {
        process.pid: times.user + times.system
        for process in psutil.process_iter(["cpu_times"])
        if (times := process.info["cpu_times"]) is not None
    }


def tree_cpu_seconds(pid: int) -> dict[int, float]:
    """The same of a process and all that it has started."""
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return {process.pid: times.user + times.system for process in tree if (times := _cpu_times(process)) is not None}


def _cpu_times(process: psutil.Process) -> psutil._ntuples.pcputimes | None:
    try:
        return process.cpu_times()
    except psutil.Error:
        return None


def cpu_since(before: Mapping[int, float]) -> list[ProcessCpu]:
    """What each process used since `before`, most first; less than NOTICEABLE_S is left out."""
    used = {pid: now_s - before.get(pid, 0.0) for pid, now_s in cpu_seconds().items()}
    busy = sorted(((cpu_s, pid) for pid, cpu_s in used.items() if cpu_s >= NOTICEABLE_S), reverse=True)
    return [ProcessCpu(pid, process_name(pid), cpu_s) for cpu_s, pid in busy]


def process_name(pid: int) -> str:
    """The title a process gives itself, else its program and script; `ended` when it is gone."""
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return "ended"
    if not command:
        return "kernel"
    program = command[0] if "::" in command[0] else Path(command[0].split(" ")[0]).name
    script = next((part for part in command[1:] if not part.startswith("-")), "")
    return f"{program} {Path(script).name}".strip()[:60]
