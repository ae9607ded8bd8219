"""Dangerous combinations, refused or warned about by name when the configuration is read.

An ERROR refuses to start: the engines would not start, or would answer wrongly. A WARNING starts and is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.config import engine_advice
from app.config.facts import Hardware, ModelFacts, ResolvedPath
from app.config.findings import Advice, Severity, error, warning
from app.config.schema import AppConfig, PathConfig

__all__ = ["Advice", "Severity", "advise"]


def advise(
    config: AppConfig,
    hardware: Hardware,
    model: ModelFacts,
    paths: Mapping[str, ResolvedPath],
    environment: Mapping[str, str],
    loopback: bool,
) -> tuple[Advice, ...]:
    """Judge a resolved configuration, errors first.

    Args:
        paths: the resolved paths by name.
        environment: the process's environment variables.
        loopback: the public HTTP port listens on this machine only.
    """
    found = [*_model(model), *_access(config, loopback), *_environment(hardware, environment)]
    found += [*_mps(config, hardware, paths), *_devices(config, hardware, paths), *_scaling(config, paths)]
    for path in paths.values():
        found += engine_advice.advise(path, getattr(config.paths, path.name).traffic, hardware, model)
    order = list(Severity)
    return tuple(sorted(found, key=lambda advice: order.index(advice.severity)))


def _model(model: ModelFacts) -> Iterator[Advice]:
    if not model.registered:
        yield error(
            "model_not_registered",
            f"vLLM does not know the architecture {model.architecture}.",
            "Install the plugin that registers it, set model.trust_remote_code if the model brings its own code, "
            "or serve another model.",
        )


def _access(config: AppConfig, loopback: bool) -> Iterator[Advice]:
    if loopback or config.auth.key_file is not None:
        return
    why = "http_options.host opens the port to the network, and auth.key_file is not set:"
    if config.auth.anonymous_network:
        yield warning("open_to_everyone", f"{why} anyone who reaches it may send requests.", "Set auth.key_file.")
    else:
        yield error("no_keys", f"{why} every client there would be refused.", "Set auth.key_file, or host: 127.0.0.1.")


def _environment(hardware: Hardware, environment: Mapping[str, str]) -> Iterator[Advice]:
    if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield warning(
            "cuda_launch_blocking",
            "CUDA_LAUNCH_BLOCKING=1 makes every kernel launch wait for the device.",
            "Unset it outside debugging.",
        )
    if hardware.kind == "cpu" and environment.get("VLLM_CPU_KVCACHE_SPACE"):
        yield warning(
            "kv_space_in_environment",
            f"VLLM_CPU_KVCACHE_SPACE={environment['VLLM_CPU_KVCACHE_SPACE']} would override kv_cache_memory_bytes, so "
            "the engines are started without it.",
            "Unset it and say hardware.kv_cache_gib.",
        )


def _mps(config: AppConfig, hardware: Hardware, paths: Mapping[str, ResolvedPath]) -> Iterator[Advice]:
    if hardware.kind == "cpu" or hardware.mps_running:
        return
    if config.hardware_wish.mps is True:
        yield warning(
            "mps_not_running",
            "hardware.mps is true, but no CUDA MPS control daemon runs here: the paths take turns on the device.",
            "Start nvidia-cuda-mps-control -d before Ray, or set hardware.mps: auto.",
        )
    elif any(path.share < 1 for path in paths.values()):
        yield Advice(
            Severity.INFO,
            "device_without_mps",
            "engines that share a device without CUDA MPS take turns on it: the shares bound memory, not compute.",
            "Start nvidia-cuda-mps-control -d before Ray.",
        )


def _devices(config: AppConfig, hardware: Hardware, paths: Mapping[str, ResolvedPath]) -> Iterator[Advice]:
    shares = sum(path.share for path in paths.values())
    if hardware.kind == "cpu":
        if shares > 1 + 1e-9:
            yield error(
                "shares_above_one",
                f"the shares of the paths add up to {shares:g} of this machine's cores and KV budget.",
                "Lower paths.hot.share or paths.cold.share until they add up to 1 or less.",
            )
        return
    wanted = {name: _least_replicas(getattr(config.paths, name)) * p.share * p.devices for name, p in paths.items()}
    if sum(wanted.values()) > hardware.device_count + 1e-9:
        parts = " + ".join(f"{name} {devices:g}" for name, devices in wanted.items())
        yield error(
            "shares_above_one" if hardware.device_count == 1 else "too_few_devices",
            f"the paths need {parts} devices, and there are {hardware.device_count}: Ray would wait for ever.",
            "Lower shares, replicas or tensor_parallel_size, or say hardware.devices for a cluster of several nodes.",
        )


def _scaling(config: AppConfig, paths: Mapping[str, ResolvedPath]) -> Iterator[Advice]:
    """Requests must not be refused for a pressure that replicas are not yet added for."""
    if not config.scales:
        return
    rules, marks = config.scaling, config.admission.watermarks
    for name, scales_at, refuses_at in (
        ("kv_usage_ratio", rules.target_kv_usage_ratio, marks.kv_usage_ratio.refuse_long),
        ("preemptions_per_s", rules.preemptions_per_s, marks.preemptions_per_s.refuse_long),
    ):
        if scales_at >= refuses_at:
            key = "target_kv_usage_ratio" if name == "kv_usage_ratio" else name
            yield warning(
                "refuses_before_scaling",
                f"scaling.{key} ({scales_at:g}) is not below admission.watermarks.{name}.refuse_long ({refuses_at:g}): "
                "long prompts are refused before replicas are added.",
                f"Lower scaling.{key}.",
            )
    least = sum(
        _least_replicas(getattr(config.paths, name)) * path.share * path.devices for name, path in paths.items()
    )
    if rules.budget != "auto" and least > rules.budget + 1e-9:
        yield warning(
            "budget_below_minimum",
            f"scaling.budget ({rules.budget:g}) is less than the {least:g} that the fewest replicas hold.",
            "Raise scaling.budget, or lower replicas.min or share: the fewest run all the same.",
        )


def _least_replicas(path: PathConfig) -> int:
    return path.replicas if isinstance(path.replicas, int) else path.replicas.min
