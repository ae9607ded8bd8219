"""Read what a model's own files say about it, without loading it and, for a known architecture, without vLLM."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any, Literal

from app.config.defaults import ModelFacts
from app.errors import ConfigError

_DEFAULT_CONTEXT_TOKENS = 2048  # what vLLM assumes when config.json does not say
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
# Rotary scalings whose factor is already part of max_position_embeddings.
_SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "mrope", "deepseek_yarn", "deepseek_llama_scaling")
_KV_ELEMENT_BYTES = 2
_DEEPSEEK_V4_ENTRY_BYTES = 584  # 448 FP8 values, 64 BF16 rotary values, 8 bytes of scales
_DEEPSEEK_V4_INDEX_BYTES = 132  # 128 FP8 values and a scale, on the layers that compress 4 tokens into 1


def read(model_path: str, trust_remote_code: bool) -> ModelFacts:
    """Read the facts of a folder in Hugging Face's layout, or of a Hugging Face id.

    Raises:
        ConfigError: no config.json, or one without an architecture.
    """
    folder = _local_folder(model_path)
    document = _read_json(folder / "config.json") if folder else _read_json(_download(model_path))
    text = {**document, **document.get("text_config", {})}
    architectures = document.get("architectures") or text.get("architectures")
    if not architectures:
        raise ConfigError(f"model.source: config.json of {model_path} names no architecture; serve a complete model")
    quantization = document.get("quantization_config") or text.get("quantization_config") or {}
    return ModelFacts(
        architecture=architectures[0],
        registered=is_registered(architectures[0], trust_remote_code and "auto_map" in document),
        max_context_tokens=_max_context_tokens(text),
        kv_bytes_per_token=_kv_bytes_per_token(text),
        weight_bytes=_weight_bytes(folder) if folder else None,
        attention=_attention(text),
        uses_mla=_uses_mla(text),
        head_size=_head_size(text),
        quantization=quantization.get("quant_method"),
    )


def is_registered(architecture: str, brings_own_code: bool) -> bool:
    """Whether vLLM can serve an architecture: natively, by a plugin, or through Transformers.

    The tables are read from vLLM's source: importing them takes 10 s. Only an architecture that is not there pays that.
    """
    if brings_own_code or architecture in _built_in_architectures():
        return True
    import transformers
    from vllm import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # type: ignore[no-untyped-call]  # its library leaves it untyped
    return architecture in ModelRegistry.get_supported_archs() or hasattr(transformers, architecture)


def _built_in_architectures() -> set[str]:
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        raise ConfigError("vLLM is not installed; install kvpulse[cpu] or kvpulse[gpu]")
    source = Path(vllm.origin).with_name("model_executor") / "models" / "registry.py"
    served = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
    names: set[str] = set()
    for statement in ast.parse(source.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id in served:
                names |= {str(key.value) for key in statement.value.keys if isinstance(key, ast.Constant)}
    return names


def _local_folder(model_path: str) -> Path | None:
    """The folder itself, or the snapshot of a Hugging Face id that was downloaded before."""
    folder = Path(model_path)
    if folder.is_dir():
        return folder
    if model_path.startswith(("/", ".", "~")):
        raise ConfigError(f"model.source: there is no folder {model_path!r}; correct the path or use `embedded`")
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model_path, "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


def _download(model_id: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model_id, "config.json"))
    except Exception as error:  # the library raises dozens of kinds: no network, no such id, no permission, ...
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model.source: {model_id!r} is neither a folder nor a model that can be downloaded ({reason}); "
            "correct the id, log in to Hugging Face, or name a folder"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        where = f"{path.parent} holds no {path.name}"
        raise ConfigError(f"model.source: {where}; name a folder in Hugging Face's layout") from None
    except ValueError as error:
        raise ConfigError(f"model.source: {path} is not valid JSON ({error}); restore the file") from None
    if not isinstance(document, dict):
        raise ConfigError(f"model.source: {path} is not a JSON object; restore the file")
    return document


def _max_context_tokens(text: dict[str, Any]) -> int:
    longest = next((int(text[key]) for key in _CONTEXT_KEYS if text.get(key)), _DEFAULT_CONTEXT_TOKENS)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in _SCALED_ALREADY or "gemma3" in text.get("model_type", ""):
        return longest
    return int(longest * float(rope.get("factor", 1)))


def _layers(text: dict[str, Any]) -> int:
    return int(text.get("num_hidden_layers") or text.get("n_layer") or 0)


def _heads(text: dict[str, Any]) -> int:
    return int(text.get("num_attention_heads") or text.get("n_head") or 0)


def _head_size(text: dict[str, Any]) -> int | None:
    if text.get("head_dim"):
        return int(text["head_dim"])
    hidden, heads = int(text.get("hidden_size") or text.get("n_embd") or 0), _heads(text)
    return hidden // heads if hidden and heads else None


def _uses_mla(text: dict[str, Any]) -> bool:
    return text.get("kv_lora_rank") is not None or "compress_ratios" in text


def _kv_bytes_per_token(text: dict[str, Any]) -> int:
    if "compress_ratios" in text:
        return _deepseek_v4_kv_bytes(text["compress_ratios"])
    kinds = text.get("layer_types")
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds) if kinds else _layers(text)
    if text.get("kv_lora_rank") is not None:
        return layers * (int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim", 0))) * _KV_ELEMENT_BYTES
    kv_heads = int(text.get("num_key_value_heads") or _heads(text))
    return layers * 2 * kv_heads * (_head_size(text) or 0) * _KV_ELEMENT_BYTES


def _deepseek_v4_kv_bytes(ratios: list[int]) -> int:
    """Layers that compress `ratio` tokens into one entry; the others keep a short window, which does not grow."""
    entries = sum(_DEEPSEEK_V4_ENTRY_BYTES / ratio for ratio in ratios if ratio > 1)
    index = sum(_DEEPSEEK_V4_INDEX_BYTES / ratio for ratio in ratios if ratio == 4)
    return round(entries + index)


def _attention(text: dict[str, Any]) -> Literal["full", "sliding", "mixed"]:
    if "compress_ratios" in text:
        return "mixed"
    kinds = {kind for kind in text.get("layer_types") or () if "attention" in kind}
    if kinds:
        return "full" if "sliding_attention" not in kinds else "mixed" if len(kinds) > 1 else "sliding"
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return "full"
    # Files older than `layer_types`: these families alternate, the others use the window in every layer.
    alternating = str(text.get("model_type", "")).startswith(("gemma", "cohere2", "gpt_oss", "qwen"))
    return "mixed" if alternating or text.get("sliding_window_pattern") else "sliding"


def _weight_bytes(folder: Path) -> int | None:
    """Size of the weights that vLLM would load; None where the folder holds none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        total = _read_json(index).get("metadata", {}).get("total_size")
        if total:
            return int(total)
    for pattern in ("*.safetensors", "*.bin"):
        # Some models ship the same weights again in one consolidated file.
        sizes = [file.stat().st_size for file in folder.glob(pattern) if not file.name.startswith("consolidated")]
        if sizes:
            return sum(sizes)
    return None
