"""What may be wrong with one path's engine options."""

from __future__ import annotations

import math
from collections.abc import Iterator

from app.config.defaults import FLASHINFER_HEAD_SIZES, block_multiple
from app.config.facts import SET_IN_FILE, Hardware, ModelFacts, ResolvedPath
from app.config.findings import Advice, error, warning
from app.config.memory import cuda_kv_bytes, gib, kv_bytes, kv_capacity_tokens
from app.config.schema import TrafficConfig

LONG_CONTEXT_TOKENS = 16_384
BLOCK_TABLE_ENTRY_BYTES = 4


def advise(path: ResolvedPath, traffic: TrafficConfig, hardware: Hardware, model: ModelFacts) -> Iterator[Advice]:
    """Judge the engines of one path."""
    yield from _memory(path, hardware, model)
    yield from _parallelism(path, hardware)
    yield from _kernels(path, hardware, model)
    yield from _scheduling(path, traffic)
    yield from _observability(path)


def _engine(path: ResolvedPath, option: str) -> str:
    """How a message refers to one engine option and its value."""
    return f"paths.{path.name}.engine.{option} ({path.value(option)})"


def _memory(path: ResolvedPath, hardware: Hardware, model: ModelFacts) -> Iterator[Advice]:
    measured = path.value("kv_cache_memory_bytes") is None
    if hardware.kind == "cuda" and model.weight_bytes is not None and cuda_kv_bytes(path, hardware, model) <= 0:
        yield error(
            "weights_do_not_fit",
            f"{_engine(path, 'gpu_memory_utilization')} of {gib(hardware.device_memory_bytes)} leaves no room beside "
            f"the weights ({gib(model.weight_bytes)} on {path.devices} device(s)).",
            f"Raise paths.{path.name}.share or tensor_parallel_size, or serve a smaller or quantised model.",
        )
        return
    if hardware.kind == "cuda" and model.weight_bytes is None and path.share < 1 and measured:
        yield warning(
            "weights_unknown",
            f"the model is not on this machine yet, so the KV cache of paths.{path.name} cannot be given in bytes: two "
            "engines that measure one device at the same time see each other.",
            f"Download the model first, or set paths.{path.name}.engine.kv_cache_memory_bytes.",
        )
    yield from _context(path, hardware, model)
    yield from _block_tables(path, hardware, model)
    if hardware.kind == "cuda" and path.value("gpu_memory_utilization") >= 0.95 and _long_context(path):
        yield warning(
            "no_memory_headroom",
            f"{_engine(path, 'gpu_memory_utilization')} with {_engine(path, 'max_model_len')}: a long prompt's "
            "activations may find no memory.",
            "Set gpu_memory_utilization to 0.9 or less, or a shorter max_model_len.",
        )


def _long_context(path: ResolvedPath) -> bool:
    return bool(path.value("max_model_len") >= LONG_CONTEXT_TOKENS)


def _context(path: ResolvedPath, hardware: Hardware, model: ModelFacts) -> Iterator[Advice]:
    length, capacity = path.value("max_model_len"), kv_capacity_tokens(path, hardware, model)
    if length > model.max_context_tokens:
        yield error(
            "context_above_model",
            f"{_engine(path, 'max_model_len')} is above the model's {model.max_context_tokens}.",
            f"Set it to {model.max_context_tokens} or less, or to auto.",
        )
    if capacity is not None and (length == 0 or length > capacity):
        yield error(
            "context_above_kv_cache",
            f"{_engine(path, 'max_model_len')}: the KV cache holds {capacity} tokens, not one sequence of that length.",
            f"Raise paths.{path.name}.share (or hardware.kv_cache_gib on a CPU), or set max_model_len: auto.",
        )


def _block_tables(path: ResolvedPath, hardware: Hardware, model: ModelFacts) -> Iterator[Advice]:
    block, room = path.value("block_size"), kv_bytes(path, hardware, model)
    if block is None or not room:
        return
    entries = path.value("max_num_seqs") * math.ceil(path.value("max_model_len") / block)
    if entries * BLOCK_TABLE_ENTRY_BYTES > room * 0.1:
        yield error(
            "block_tables_too_large",
            f"{_engine(path, 'block_size')}, {_engine(path, 'max_model_len')} and {_engine(path, 'max_num_seqs')} need "
            f"block tables of {gib(entries * BLOCK_TABLE_ENTRY_BYTES)} beside a KV cache of {gib(room)}.",
            "Raise block_size, or lower max_num_seqs or max_model_len.",
        )


def _parallelism(path: ResolvedPath, hardware: Hardware) -> Iterator[Advice]:
    if path.value("tensor_parallel_size") > hardware.device_count:
        yield error(
            "tensor_parallel_above_devices",
            f"{_engine(path, 'tensor_parallel_size')} is above the {hardware.device_count} device(s) here.",
            "Lower it, or say hardware.devices for a cluster of several nodes.",
        )
    elif path.devices > 1 and hardware.kind == "cpu":
        yield error(
            "pipeline_parallel_on_cpu",
            f"{_engine(path, 'pipeline_parallel_size')}: an engine on a CPU runs in one process.",
            "Set it to 1.",
        )
    elif path.devices > 1 and path.share < 1:
        yield error(
            "parallel_engine_on_fractions",
            f"paths.{path.name}.share ({path.share:g}) with {path.devices} devices per replica: two ranks "
            "of one engine may land on one device, which NCCL refuses.",
            f"Set paths.{path.name}.share: 1.",
        )


def _kernels(path: ResolvedPath, hardware: Hardware, model: ModelFacts) -> Iterator[Advice]:
    block, multiple = path.value("block_size"), block_multiple(hardware, model)
    flashinfer = path.value("attention_backend") == "FLASHINFER"
    wrong_multiple = block is not None and multiple is not None and block % multiple != 0
    if wrong_multiple or (multiple == 256 and block not in (None, 256)):
        yield error(
            "block_size_unsupported",
            f"{_engine(path, 'block_size')}: the attention kernels here take multiples of {multiple}.",
            f"Set it to {multiple}, or to auto.",
        )
    elif flashinfer and block not in (16, 32, 64):
        yield error(
            "block_size_unsupported", f"{_engine(path, 'block_size')}: FlashInfer takes 16, 32 or 64.", "Use 32."
        )
    if hardware.kind == "cpu" and path.value("kv_offloading_size"):
        yield error(
            "offload_on_cpu",
            f"{_engine(path, 'kv_offloading_size')}: the KV cache of a CPU engine is in host memory already.",
            "Set it to auto.",
        )
    if not flashinfer:
        return
    if hardware.kind == "cpu" or model.uses_mla or model.attention == "mixed":
        fault = {"cpu": "runs on CUDA only"}.get(hardware.kind)
        fault = fault or ("cannot serve latent attention" if model.uses_mla else "is given one window for all layers")
        yield error(
            "flashinfer_unsupported",
            f"{_engine(path, 'attention_backend')} {fault}; {model.architecture} has {model.attention} attention.",
            "Set attention_backend: auto.",
        )
    elif model.head_size is not None and model.head_size not in FLASHINFER_HEAD_SIZES:
        yield error(
            "flashinfer_unsupported",
            f"{_engine(path, 'attention_backend')} has no kernel for heads of {model.head_size}.",
            "Set attention_backend: auto.",
        )


def _scheduling(path: ResolvedPath, traffic: TrafficConfig) -> Iterator[Advice]:
    batched, sequences = path.value("max_num_batched_tokens"), path.value("max_num_seqs")
    if batched < sequences:
        yield error(
            "batched_tokens_below_sequences",
            f"{_engine(path, 'max_num_batched_tokens')} is below {_engine(path, 'max_num_seqs')}.",
            f"Set it to {sequences} or more, or to auto.",
        )
    mean = traffic.mean_prompt_tokens
    # A short step that `auto` chose keeps latency on a CPU, and the threshold keeps its chunks useful.
    if batched < mean and path.option("max_num_batched_tokens").reason == SET_IN_FILE:
        yield warning(
            "chunking_degenerates",
            f"{_engine(path, 'max_num_batched_tokens')} is below the mean prompt of {mean} tokens: most are cut.",
            f"Set it to {mean} or more, or to auto.",
        )
    if path.value("block_size") == 16 and sequences >= 128:
        yield warning(
            "small_blocks_many_sequences",
            f"{_engine(path, 'block_size')} with {_engine(path, 'max_num_seqs')}: the block tables grow and scatter.",
            "Set block_size to 32, or max_num_seqs below 128.",
        )
    if path.name == "hot" and path.value("scheduling_policy") != "priority":
        yield warning(
            "warm_beside_hot",
            f"{_engine(path, 'scheduling_policy')} ignores priorities: warm requests delay hot ones.",
            "Set scheduling_policy: auto.",
        )
    if (
        traffic.mixed_lengths
        and path.value("long_prefill_token_threshold") == 0
        and path.value("enable_chunked_prefill")
    ):
        yield warning(
            "long_prefill_blocks",
            f"{_engine(path, 'long_prefill_token_threshold')} with mixed lengths: a long prompt stalls the rest.",
            "Set it to auto, or traffic.mixed_lengths: false.",
        )


def _observability(path: ResolvedPath) -> Iterator[Advice]:
    if any(option.name == "disable_log_stats" and option.value for option in path.options):
        yield error(
            "statistics_disabled",
            f"{_engine(path, 'disable_log_stats')}: routing, admission and scaling feed on the engine's statistics.",
            "Remove it.",
        )
    if any(option.name == "scheduler_cls" and option.value for option in path.options):
        yield warning(
            "block_tables_unseen",
            f"{_engine(path, 'scheduler_cls')}: block tables are measured in vLLM's own schedulers only.",
            "Remove it, or do without the metrics of block tables.",
        )
    if not path.value("enable_prefix_caching"):
        yield warning(
            "no_prefix_cache",
            f"{_engine(path, 'enable_prefix_caching')}: every prompt is computed anew and routing by prefix is void.",
            "Remove it.",
        )
