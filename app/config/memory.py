"""How many bytes and tokens an engine's KV cache holds, from the options chosen for it."""

from __future__ import annotations

from typing import Any, Protocol

from app.config.facts import Hardware, ModelFacts

GIB = 1024**3


class Options(Protocol):
    """Engine options by name: a resolved path, or one on its way there."""

    def value(self, name: str, /) -> Any: ...


def gib(size: int) -> str:
    """A size in bytes for people."""
    return f"{size / GIB:.2f} GiB"


def weight_bytes(options: Options, model: ModelFacts) -> int:
    """Weights on one device. FP8 halves the linear layers; embeddings stay at 16 bits: about 60 % in all."""
    stored = model.weight_bytes or 0
    if options.value("quantization") == "fp8" and model.quantization is None:
        stored = int(stored * 0.6)
    devices: int = options.value("tensor_parallel_size") * options.value("pipeline_parallel_size")
    return stored // devices


def reserve_bytes(options: Options, hardware: Hardware) -> int:
    """A tenth of the engine's memory, at least 2 GiB: activations of the largest step, CUDA context and graphs."""
    return max(2 * GIB, int(hardware.device_memory_bytes * options.value("gpu_memory_utilization") * 0.1))


def cuda_kv_bytes(options: Options, hardware: Hardware, model: ModelFacts) -> int:
    """What a CUDA device leaves for the KV cache; negative when the weights do not fit."""
    own = int(hardware.device_memory_bytes * options.value("gpu_memory_utilization"))
    return own - weight_bytes(options, model) - reserve_bytes(options, hardware)


def kv_bytes(options: Options, hardware: Hardware, model: ModelFacts) -> int | None:
    """KV cache of one device; None when that is not known before the engine runs."""
    chosen: int | None = options.value("kv_cache_memory_bytes")
    if chosen is not None or hardware.kind == "cpu" or model.weight_bytes is None:
        return chosen
    return max(0, cuda_kv_bytes(options, hardware, model))


def kv_capacity_tokens(options: Options, hardware: Hardware, model: ModelFacts) -> int | None:
    """Tokens that the KV cache of one replica holds; None when that is not known before the engine runs."""
    per_device = kv_bytes(options, hardware, model)
    per_token = model.kv_bytes_per_token
    if options.value("kv_cache_dtype").startswith("fp8"):
        per_token //= 2
    if per_device is None or per_token == 0:
        return None
    # MLA's latent is the same for all heads: every tensor-parallel rank keeps all of it.
    ranks: int = 1 if model.uses_mla else options.value("tensor_parallel_size")
    stages: int = options.value("pipeline_parallel_size")
    return per_device * ranks * stages // per_token
