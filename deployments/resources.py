"""A path's share -> Ray resources, placement group and environment of its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.config.defaults import Hardware, ResolvedPath

# Small on a CPU: threads and their priority bound it, and a further replica must still find room on the node.
_CPU_REPLICA_CPUS = 0.1
_CUDA_REPLICA_CPUS = 1.0
DECODE_THREADS_VARIABLE = "KVPULSE_DECODE_THREADS"  # read by deployments.cpu_worker
ALONE_THREADS_VARIABLE = "KVPULSE_ALONE_THREADS"  # likewise; unset: cores are not lent
TURNS_VARIABLE = "KVPULSE_TURNS"  # likewise; set where engines yield


@dataclass(frozen=True, slots=True)
class PathResources:
    """What one replica asks Ray for.

    Args:
        ray_actor_options: of the replica's actor; the environment is apart, so that it can be merged.
        environment: variables of the replica's process, which its engine process inherits.
        placement_group_bundles: one per device of an engine that spans several, the actor in the first; else None.
        placement_group_strategy: set with the bundles.
    """

    ray_actor_options: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    placement_group_bundles: list[dict[str, float]] | None = None
    placement_group_strategy: str | None = None


def path_resources(path: ResolvedPath, engine: Mapping[str, Any], hardware: Hardware) -> PathResources:
    """Translate one path.

    Args:
        engine: the engine arguments of the path (`engine_options.engine_arguments`).
    """
    environment = {"HF_HUB_OFFLINE": "1"} if Path(engine["model"]).is_dir() else {}
    if hardware.kind == "cpu":
        return PathResources({"num_cpus": _CPU_REPLICA_CPUS}, environment | _cpu_environment(path, engine, hardware))
    if path.devices == 1:
        options = {"num_cpus": _CUDA_REPLICA_CPUS, "num_gpus": path.share}
        return PathResources(options, environment | _mps_environment(path, hardware))
    # The devices belong to vLLM's worker actors, one in each bundle; the replica's actor needs a processor beside the
    # first. Tensor-parallel ranks stay on one node (NVLink); pipeline stages may spread when one node is too small.
    bundles = [{"CPU": _CUDA_REPLICA_CPUS, "GPU": 1.0}] + [{"GPU": 1.0} for _ in range(path.devices - 1)]
    strategy = "STRICT_PACK" if path.value("pipeline_parallel_size") == 1 else "PACK"
    return PathResources({"num_cpus": _CUDA_REPLICA_CPUS, "num_gpus": 0}, environment, bundles, strategy)


def _cpu_environment(path: ResolvedPath, engine: Mapping[str, Any], hardware: Hardware) -> dict[str, str]:
    environment = {
        "OMP_NUM_THREADS": str(path.threads),
        # vLLM's own binding puts the threads of every engine on the same first cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        DECODE_THREADS_VARIABLE: str(path.decode_threads),
    }
    if hardware.core_sharing == "priority":
        environment[ALONE_THREADS_VARIABLE] = str(hardware.cores)
        if path.niceness:
            environment[TURNS_VARIABLE] = str(hardware.cold_time_ratio)
    if engine.get("enforce_eager"):
        # Eager engines still compile at the first request with logprobs, for ten seconds.
        environment["TORCHDYNAMO_DISABLE"] = "1"
    return environment


def _mps_environment(path: ResolvedPath, hardware: Hardware) -> dict[str, str]:
    if not hardware.mps_running or path.share == 1:
        return {}
    return {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(round(path.share * 100)),
        "CUDA_MPS_CLIENT_PRIORITY": "0" if path.name == "hot" else "1",  # 0 is normal, 1 below normal
    }
