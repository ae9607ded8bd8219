"""What the defaults are derived from, and what they become: the machine, the model, the resolved path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

SET_IN_FILE = "set in serve_config.yaml"


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine that the engines run on.

    Args:
        kind: what vLLM runs on here.
        device_name: e.g. `NVIDIA H100 80GB HBM3`, or the processor's architecture on a CPU.
        device_count: CUDA devices; 1 on a CPU.
        device_memory_bytes: memory of one device; the host's memory on a CPU.
        cores: processor cores that this process may use.
        host_memory_bytes: memory that this process may use.
        compute_capability: (major, minor) of the CUDA device, None on a CPU.
        mps_running: the control daemon of CUDA MPS answers here and may be used.
        kv_cache_bytes: CPU: the KV caches of both paths together; 0 on CUDA, where the device's memory bounds them.
        core_sharing, cold_time_ratio: CPU: see HardwareConfig.
    """

    kind: Literal["cpu", "cuda"]
    device_name: str
    device_count: int
    device_memory_bytes: int
    cores: int
    host_memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    mps_running: bool = False
    kv_cache_bytes: int = 0
    core_sharing: Literal["priority", "split"] = "priority"
    cold_time_ratio: float = 0.2


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's own files say about it.

    Args:
        architecture: the class name in config.json, e.g. `LlamaForCausalLM`.
        registered: vLLM can serve that architecture.
        max_context_tokens: longest sequence that the model was made for.
        kv_bytes_per_token: KV cache of one token over all layers and heads at 16 bits (an upper bound where some layers
            keep only a window); 0 when the model keeps none or config.json does not say.
        weight_bytes: size of the weights as stored; None while they are not on this machine.
        attention: `sliding` when every layer keeps a window, `mixed` when only some do.
        uses_mla: multi-head latent attention (the DeepSeek family).
        head_size: dimension of one attention head, None when config.json does not say.
        quantization: the method that the stored weights are already quantised with, or None.
    """

    architecture: str
    registered: bool
    max_context_tokens: int
    kv_bytes_per_token: int
    weight_bytes: int | None
    attention: Literal["full", "sliding", "mixed"]
    uses_mla: bool
    head_size: int | None = None
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedOption:
    """One engine argument with the rule that chose it. `value` None leaves the choice to vLLM."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """One path after every `auto` has become a value.

    Args:
        name: `hot` or `cold`.
        kind: what its engines run on.
        share: fraction of a device per replica.
        threads: processor threads per replica.
        decode_threads: of those, for steps of a few tokens.
        niceness: of its engine's threads, as `nice` has it; above 0 they yield to those of the other path.
        options: vLLM's engine arguments.
        max_ongoing_requests: per replica, running plus queued in the engine.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    share: float
    threads: int
    decode_threads: int
    niceness: int
    options: tuple[ResolvedOption, ...]
    max_ongoing_requests: int

    def option(self, name: str) -> ResolvedOption:
        """Raises KeyError when the path has no such option."""
        for option in self.options:
            if option.name == name:
                return option
        raise KeyError(name)

    def value(self, name: str) -> Any:
        """The value of the option `name`; raises KeyError when the path has no such option."""
        return self.option(name).value

    @property
    def devices(self) -> int:
        """Devices that one replica spans."""
        return int(self.value("tensor_parallel_size") * self.value("pipeline_parallel_size"))


def block_multiple(hardware: Hardware, model: ModelFacts) -> int | None:
    """Tokens that a KV block must be a multiple of; None where vLLM's kernels fix the size by themselves."""
    if model.architecture.startswith("DeepseekV41"):
        return None
    if model.architecture.startswith("DeepseekV4"):
        return 256
    if model.uses_mla:
        return None if hardware.kind == "cpu" else 64
    return 32 if hardware.kind == "cpu" else 16
