from __future__ import annotations

import json
from typing import Any

import pytest

from app.config.schema import AppConfig
from app.errors import ConfigError
from deployments.effective import EffectiveConfig, effective_config
from tests.fakes import TINY_LLAMA_CONFIG


@pytest.fixture
def effective(tmp_path, monkeypatch):
    for name in ("VLLM_CPU_KVCACHE_SPACE", "CUDA_LAUNCH_BLOCKING"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA_CONFIG))

    def resolve(loopback: bool = True, **engine: Any) -> EffectiveConfig:
        traffic = {"mean_prompt_tokens": 100, "mean_output_tokens": 10, "target_concurrency": 2}
        paths = {name: {"share": 0.5, "traffic": traffic, "engine": engine} for name in ("hot", "cold")}
        hardware = {"kind": "cpu", "cores": 4, "kv_cache_gib": 1}
        config = AppConfig.model_validate({"paths": paths, "hardware": hardware})
        return effective_config(config, str(tmp_path), loopback)

    return resolve


def test_it_holds_both_paths_as_they_will_run(effective):
    found = effective()
    assert set(found.paths) == set(found.resources) == {"hot", "cold"}
    assert found.paths["hot"].value("max_model_len") == 4096
    assert found.paths["hot"].value("kv_cache_memory_bytes") == 1024**3 // 2
    assert found.resources["hot"].environment["OMP_NUM_THREADS"] == "4"
    assert found.advice == ()


def test_warnings_are_kept_and_do_not_stop_it(effective):
    assert [advice.name for advice in effective(enable_prefix_caching=False).advice] == ["no_prefix_cache"] * 2


def test_every_error_is_listed_with_its_name(effective):
    with pytest.raises(ConfigError) as raised:
        effective(loopback=False, max_model_len=5000)
    lines = str(raised.value).splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["[no_keys]", "[context_above_model]", "[context_above_model]"]
    assert "paths.hot.engine.max_model_len (5000) is above the model's 4096." in lines[1]


def test_unknown_engine_options_are_refused_at_start_too(effective):
    with pytest.raises(ConfigError, match="did you mean 'block_size'"):
        effective(blok_size=32)
