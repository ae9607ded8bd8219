from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.errors import ConfigError
from deployments import model_facts

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163_840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8"},
}
DEEPSEEK_V4 = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "num_hidden_layers": 4,
    "head_dim": 512,
    "max_position_embeddings": 1_048_576,
    "compress_ratios": [0, 0, 4, 128],
    "sliding_window": 128,
}


def facts(folder: Path, document: dict) -> model_facts.ModelFacts:
    (folder / "config.json").write_text(json.dumps(document))
    return model_facts.read(str(folder), trust_remote_code=False)


def test_a_plain_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    found = facts(tmp_path, LLAMA)
    assert (found.architecture, found.registered, found.attention) == ("LlamaForCausalLM", True, "full")
    assert found.kv_bytes_per_token == 30 * 2 * 3 * 64 * 2
    assert (found.max_context_tokens, found.head_size, found.weight_bytes) == (8192, 64, 1000)
    assert (found.uses_mla, found.quantization) == (False, None)


def test_weights_are_counted_once_where_a_model_ships_them_twice(tmp_path):
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 100)
    assert facts(tmp_path, LLAMA).weight_bytes == 200
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 190}}))
    assert facts(tmp_path, LLAMA).weight_bytes == 190


def test_without_weights_their_size_is_unknown_and_not_zero(tmp_path):
    assert facts(tmp_path, LLAMA).weight_bytes is None


@pytest.mark.parametrize(
    ("change", "attention"),
    [
        ({}, "sliding"),
        ({"sliding_window": None}, "full"),
        ({"use_sliding_window": False}, "full"),
        ({"model_type": "gemma2"}, "mixed"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "mixed"),
        ({"layer_types": ["full_attention"] * 2}, "full"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "full"),
    ],
)
def test_windows_per_layer_are_told_apart(tmp_path, change, attention):
    assert facts(tmp_path, MISTRAL | change).attention == attention


def test_layers_that_keep_no_kv_cache_are_not_counted(tmp_path):
    layers = ["linear_attention"] * 20 + ["full_attention"] * 10
    assert facts(tmp_path, LLAMA | {"layer_types": layers}).kv_bytes_per_token == 10 * 2 * 3 * 64 * 2


def test_latent_attention_keeps_one_vector_per_layer(tmp_path):
    found = facts(tmp_path, DEEPSEEK_V3)
    assert found.uses_mla
    assert found.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert (found.max_context_tokens, found.quantization) == (163_840, "fp8")  # YaRN's factor is in there already


def test_deepseek_v4_keeps_compressed_entries_only(tmp_path):
    found = facts(tmp_path, DEEPSEEK_V4)
    assert (found.uses_mla, found.attention) == (True, "mixed")
    assert found.kv_bytes_per_token == round(584 / 4 + 584 / 128 + 132 / 4)


def test_a_linear_rotary_scaling_lengthens_the_context(tmp_path):
    assert facts(tmp_path, LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}).max_context_tokens == 16_384


def test_the_text_part_of_a_multimodal_model_counts(tmp_path):
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    found = facts(tmp_path, {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (found.registered, found.kv_bytes_per_token) == (True, 30 * 2 * 3 * 64 * 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no config.json; name a folder in Hugging Face's layout"),
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "names no architecture"),
    ],
)
def test_an_unusable_folder_is_refused_in_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message) as raised:
        model_facts.read(str(tmp_path), trust_remote_code=False)
    assert "\n" not in str(raised.value)


def test_a_missing_folder_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="there is no folder '/nowhere'; correct the path or use `embedded`"):
        model_facts.read("/nowhere", trust_remote_code=False)


def test_a_model_that_cannot_be_downloaded_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match="nobody/nothing' is neither a folder nor a model that can be downloaded"
    ) as raised:
        model_facts.read("nobody/nothing", trust_remote_code=False)
    assert "\n" not in str(raised.value)


def test_the_architectures_read_from_source_are_registered_in_vllm():
    from vllm import ModelRegistry

    names = model_facts._built_in_architectures()
    assert {"LlamaForCausalLM", "DeepseekV4ForCausalLM", "Qwen3ForCausalLM"} <= names
    assert names <= set(ModelRegistry.get_supported_archs())


def test_an_architecture_that_nobody_knows_is_not_registered():
    assert not model_facts.is_registered("NobodysForCausalLM", brings_own_code=False)
    assert model_facts.is_registered("NobodysForCausalLM", brings_own_code=True)
