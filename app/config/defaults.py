"""What every `auto` of a path becomes on which hardware, and why.

Each engine option has one rule, and the rules run in the order of `_RULES`: a rule may read what earlier ones chose.
The thresholds come from vLLM's own backends and defaults; where they were measured, the rule says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.config import memory
from app.config.facts import SET_IN_FILE, Hardware, ModelFacts, ResolvedOption, ResolvedPath, block_multiple
from app.config.memory import GIB, gib
from app.config.schema import PathConfig, ReplicaRange

__all__ = ["Hardware", "ModelFacts", "ResolvedOption", "ResolvedPath", "block_multiple", "resolve_path"]

LARGE_CARD_BYTES = 80 * 10**9  # an H100 or A100 of "80 GB" reports 85 * 10**9
SHORT_ANSWER_TOKENS = 512
CPU_STEP_TOKENS_PER_THREAD = 128
# A seventieth of the weight of a thread at 0: cold engines yield at once, and yet go on when hot ones are never idle.
YIELDING_NICENESS = 19
CPU_STEP_TOKENS = 2048
FLASHINFER_HEAD_SIZES = (64, 128, 256, 512)
OFFLOAD_RATIO = 0.25
QUEUE_DEPTH = 4

_Choice = tuple[Any, str]


@dataclass(frozen=True, slots=True)
class _Situation:
    """Everything a rule may look at; `chosen` grows while the rules run."""

    name: str
    path: PathConfig
    hardware: Hardware
    model: ModelFacts
    chosen: dict[str, ResolvedOption] = field(default_factory=dict)

    @property
    def cpu(self) -> bool:
        return self.hardware.kind == "cpu"

    @property
    def hot(self) -> bool:
        return self.name == "hot"

    @property
    def threads(self) -> int:
        """A hot prompt takes every core for a moment. What goes on for long keeps to its share: a step waits for its
        slowest thread, and one that shares its core with others' work holds up all of them.
        """
        if self.hardware.core_sharing == "split" or not self.hot:
            return self.decode_threads
        replicas = self.path.replicas
        return max(1, self.hardware.cores // (replicas.max if isinstance(replicas, ReplicaRange) else replicas))

    @property
    def decode_threads(self) -> int:
        return max(1, math.floor(self.path.share * self.hardware.cores + 0.5))

    @property
    def niceness(self) -> int:
        return YIELDING_NICENESS if self.cpu and self.hardware.core_sharing == "priority" and not self.hot else 0

    def value(self, option: str) -> Any:
        return self.chosen[option].value

    @property
    def shares_a_device(self) -> bool:
        return self.path.share < 1

    @property
    def has_fp8(self) -> bool:
        return (self.hardware.compute_capability or (0, 0)) >= (8, 9)


def resolve_path(name: str, path: PathConfig, hardware: Hardware, model: ModelFacts) -> ResolvedPath:
    """Turn every `auto` of the path `name` (`hot` or `cold`) into a value with its reason."""
    situation = _Situation(name, path, hardware, model)
    engine = path.engine
    for option, rule in _RULES:
        setting = getattr(engine, option)
        if setting == "auto":
            value, reason = rule(situation)
        else:
            value, reason = setting, SET_IN_FILE if option in engine.model_fields_set else "default"
        situation.chosen[option] = ResolvedOption(option, value, reason)
    for option, value in engine.other.items():
        situation.chosen[option] = ResolvedOption(option, value, SET_IN_FILE)
    ongoing = path.max_ongoing_requests
    if ongoing == "auto":
        ongoing = QUEUE_DEPTH * situation.value("max_num_seqs")
    return ResolvedPath(
        name=name,
        kind=hardware.kind,
        share=path.share,
        threads=situation.threads,
        decode_threads=min(situation.decode_threads, situation.threads),
        niceness=situation.niceness,
        options=tuple(situation.chosen.values()),
        max_ongoing_requests=ongoing,
    )


def _set_by_default(value: Any) -> Callable[[_Situation], _Choice]:
    return lambda _: (value, "default")


def _dtype(at: _Situation) -> _Choice:
    if at.cpu:
        return "bfloat16", "half the memory traffic of float32, and every x86 and ARM build of vLLM has it"
    return "auto", "the checkpoint's own precision"


def _quantization(at: _Situation) -> _Choice:
    if at.model.quantization is not None:
        return None, f"the checkpoint is already quantised ({at.model.quantization}); vLLM reads that from the model"
    if at.hot and at.has_fp8:
        return "fp8", f"hot: FP8 weights, compute capability {_capability(at)} >= 8.9"
    return None, "no FP8 tensor cores here" if at.hot else "cold: the checkpoint's own precision"


def _kv_cache_dtype(at: _Situation) -> _Choice:
    if at.model.uses_mla:
        return "auto", "the MLA kernels bring their own layout"
    if at.hot and at.has_fp8:
        return "fp8", f"hot: twice the tokens per byte, compute capability {_capability(at)} >= 8.9"
    return "auto", "the model's dtype"


def _capability(at: _Situation) -> str:
    return ".".join(str(part) for part in at.hardware.compute_capability or ())


def _attention_backend(at: _Situation) -> _Choice:
    if (at.hardware.compute_capability or (0, 0))[0] != 9:
        return None, "vLLM chooses; FlashInfer is preferred on Hopper only"
    if at.model.uses_mla:
        return None, "vLLM chooses among its MLA backends"
    if at.model.attention == "mixed":
        return None, "vLLM chooses: the model mixes sliding windows per layer, which FlashInfer is not given"
    if at.model.head_size not in FLASHINFER_HEAD_SIZES:
        return None, f"vLLM chooses: FlashInfer has no kernel for heads of {at.model.head_size}"
    return "FLASHINFER", "Hopper (compute capability 9.x)"


def _gpu_memory_utilization(at: _Situation) -> _Choice:
    if at.cpu:
        return None, "no meaning on a CPU: kv_cache_memory_bytes is exact"
    device = at.hardware.device_memory_bytes
    whole, size = (0.9, "80 GB or more") if device >= LARGE_CARD_BYTES else (0.8, "less than 80 GB")
    return round(whole * at.path.share, 4), f"{whole} (device of {size}) x share {at.path.share}"


def _kv_cache_memory_bytes(at: _Situation) -> _Choice:
    if at.cpu:
        budget = at.hardware.kv_cache_bytes
        return int(budget * at.path.share), f"share {at.path.share} of the KV budget of {gib(budget)}"
    if not at.shares_a_device:
        return None, "the engine has its devices alone: vLLM measures what is left"
    if at.model.weight_bytes is None:
        return None, "vLLM measures what is left: the size of the weights is not known before they are downloaded"
    left = max(0, memory.cuda_kv_bytes(at, at.hardware, at.model))
    weights, reserve = memory.weight_bytes(at, at.model), memory.reserve_bytes(at, at.hardware)
    return left, (
        f"{at.value('gpu_memory_utilization')} of {gib(at.hardware.device_memory_bytes)}, less weights {gib(weights)} "
        f"and {gib(reserve)} for activations and CUDA graphs; given in bytes because two engines that measure one "
        "device at the same time see each other"
    )


def _block_size(at: _Situation) -> _Choice:
    multiple = block_multiple(at.hardware, at.model)
    if multiple is None:
        return None, "the MLA kernels fix it: vLLM chooses"
    if multiple >= 64:
        return multiple, f"{at.model.architecture}: its kernels read pages of {multiple} tokens"
    mean = at.path.traffic.mean_prompt_tokens
    wished = min(32, 2 ** math.floor(math.log2(max(mean / 4, 1))))
    rule = f"min(32, 2 ** floor(log2({mean} / 4))) = {wished}"
    if wished < multiple:
        backend = "CPU" if at.cpu else "CUDA"
        return multiple, f"{rule}, raised to {multiple}: {backend} kernels take multiples of {multiple}"
    return wished, rule


def _max_model_len(at: _Situation) -> _Choice:
    longest, capacity = at.model.max_context_tokens, memory.kv_capacity_tokens(at, at.hardware, at.model)
    if capacity is None:
        return longest, "the model's longest context"
    block = at.value("block_size") or 16
    fitting = max(0, capacity // block - 1) * block  # vLLM keeps one block for itself
    if fitting >= longest:
        return longest, f"the model's longest context; the KV cache holds {capacity:,} tokens"
    return fitting, f"the model's {longest:,} does not fit: the KV cache holds {capacity:,} tokens"


def _max_num_seqs(at: _Situation) -> _Choice:
    traffic = at.path.traffic
    short = traffic.mean_output_tokens <= SHORT_ANSWER_TOKENS
    usual = 64 if short else 32
    if traffic.target_concurrency > usual:
        return traffic.target_concurrency, f"target_concurrency, above the usual {usual}"
    return usual, f"{'short' if short else 'long'} answers (mean {traffic.mean_output_tokens} tokens)"


def _max_num_batched_tokens(at: _Situation) -> _Choice:
    traffic = at.path.traffic
    wished = math.ceil(traffic.mean_prompt_tokens * traffic.target_concurrency * 1.5)
    rule = f"{traffic.mean_prompt_tokens} x {traffic.target_concurrency} x 1.5 = {wished:,}"
    cap, why = _step_cap(at)
    least = max(at.value("max_num_seqs"), block_multiple(at.hardware, at.model) or 1)
    value = max(min(wished, cap), least)
    if not at.value("enable_chunked_prefill"):
        return max(value, at.value("max_model_len")), "without chunked prefill a step must hold the longest prompt"
    return value, f"{rule}, capped at {cap:,}: {why}" if wished > cap else rule


def _step_cap(at: _Situation) -> tuple[int, str]:
    """Most tokens of one engine step: what keeps a step short on a CPU, and the activations small on a card."""
    if at.cpu:
        cap = min(CPU_STEP_TOKENS, CPU_STEP_TOKENS_PER_THREAD * at.threads)
        return cap, f"a step is what a new request waits for, {CPU_STEP_TOKENS_PER_THREAD} tokens per thread"
    device, capability = at.hardware.device_memory_bytes, at.hardware.compute_capability or (0, 0)
    if device >= 160 * GIB:
        return 16384, "device of 160 GiB or more"
    if device >= 70 * GIB:
        # vLLM keeps large steps off the A100, where they cost throughput.
        return (8192, "Hopper or newer with 70 GiB or more") if capability >= (9, 0) else (4096, "80 GB card")
    return 2048, "device below 70 GiB"


def _long_prefill_token_threshold(at: _Situation) -> _Choice:
    if not at.path.traffic.mixed_lengths:
        return 0, "mixed_lengths is false: every prompt may fill a step"
    if not at.value("enable_chunked_prefill"):
        return 0, "prompts are not cut into chunks"
    step = at.value("max_num_batched_tokens")
    if at.hot:
        return max(1, step // 2), "half a step: a short request beside a long prefill waits one step, not all"
    rest = "one long prefill after the other; in the rest of each step a cached prompt gets its turn"
    return max(1, step * 3 // 4), f"three quarters of a step: {rest}"


def _scheduling_policy(at: _Situation) -> _Choice:
    if at.hot:
        return "priority", "warm requests run here too, behind the hot ones"
    return "priority", "of equals the one with least to compute first"


def _kv_offloading_size(at: _Situation) -> _Choice:
    if at.hot:
        return None, "hot: a preempted request is recomputed, which costs less latency than a copy over PCIe"
    if at.cpu:
        return None, "the KV cache is in host memory already"
    host = at.hardware.host_memory_bytes
    size = round(host / GIB * OFFLOAD_RATIO * at.path.share, 1)
    return size, f"cold: evicted blocks go to host memory, share {at.path.share} of {OFFLOAD_RATIO:.0%} of {gib(host)}"


def _enforce_eager(at: _Situation) -> _Choice:
    if at.cpu:
        return True, "compiling takes over a minute at every start for 1.1 to 1.4 times the decode speed (measured)"
    return False, "CUDA graphs and torch.compile"


_RULES: tuple[tuple[str, Callable[[_Situation], _Choice]], ...] = (
    ("tensor_parallel_size", _set_by_default(1)),
    ("pipeline_parallel_size", _set_by_default(1)),
    ("dtype", _dtype),
    ("quantization", _quantization),
    ("kv_cache_dtype", _kv_cache_dtype),
    ("attention_backend", _attention_backend),
    ("gpu_memory_utilization", _gpu_memory_utilization),
    ("kv_cache_memory_bytes", _kv_cache_memory_bytes),
    ("block_size", _block_size),
    ("max_model_len", _max_model_len),
    ("enable_prefix_caching", _set_by_default(True)),
    ("enable_chunked_prefill", _set_by_default(True)),
    ("max_num_seqs", _max_num_seqs),
    ("max_num_batched_tokens", _max_num_batched_tokens),
    ("long_prefill_token_threshold", _long_prefill_token_threshold),
    ("scheduling_policy", _scheduling_policy),
    ("kv_offloading_size", _kv_offloading_size),
    ("enforce_eager", _enforce_eager),
)
