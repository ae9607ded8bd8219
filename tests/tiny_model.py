"""A model that is wrong about everything and fast: random weights under the embedded model's real tokenizer.

`python -m tests.tiny_model FOLDER` writes it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from deployments.model_store import EMBEDDED, resolve

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_SEED = 20


def make_tiny_model(folder: Path) -> str:
    """Write a two-layer Llama of 64 hidden units and 8,192 tokens of context, and return its folder.

    The weights are the same every time, so two engines give the same greedy answers.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,  # tied, the likeliest next token would be the last one again
        initializer_range=0.5,  # wide enough for attention and layers to change the answer
    )
    return _save(LlamaForCausalLM, config, folder)


def make_tiny_mla_model(folder: Path) -> str:
    """Write a two-layer DeepSeek-V2 with latent attention, and return its folder."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=None,
        # Sizes of the real models' heads, which vLLM's kernels are made for.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return _save(DeepseekV2ForCausalLM, config, folder)


def _save(kind: Any, config: Any, folder: Path) -> str:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        kind(config).save_pretrained(folder)
    embedded = Path(resolve(EMBEDDED))
    for name in _TOKENIZER_FILES:
        shutil.copy(embedded / name, folder / name)
    return str(folder)


if __name__ == "__main__":
    print(make_tiny_model(Path(sys.argv[1])))
