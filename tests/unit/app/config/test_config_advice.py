from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.config.advice import Advice, Severity, advise
from app.config.defaults import Hardware, ModelFacts, resolve_path
from app.config.schema import AppConfig

GIB = 1024**3

NO_GPU = Hardware("cpu", "x86_64", 1, 24 * GIB, 2, 24 * GIB, kv_cache_bytes=2 * GIB)
H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 1, 85_520_809_984, 32, 256 * GIB, (9, 0), mps_running=True)
SMOL = ModelFacts("LlamaForCausalLM", True, 8_192, 23_040, 269_060_552, "full", False, head_size=64)
QWEN = ModelFacts("Qwen3ForCausalLM", True, 40_960, 147_456, 16_381_470_720, "full", False, head_size=128)
GEMMA = ModelFacts("Gemma3ForCausalLM", True, 32_768, 139_264, 8_600_000_000, "mixed", False, head_size=256)
DEEPSEEK = ModelFacts("DeepseekV4ForCausalLM", True, 1_048_576, 3_900, 16 * 10**9, "mixed", True, 512, "fp8")


def advice(
    machine: Hardware = NO_GPU,
    model: ModelFacts = SMOL,
    hot: dict[str, Any] | None = None,
    hot_path: dict[str, Any] | None = None,
    cold_path: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    loopback: bool = True,
    **parts: Any,
) -> dict[str, Advice]:
    """Findings by name, for the shipped configuration with `hot` as engine options of the hot path."""
    fast = {"mean_prompt_tokens": 892, "mean_output_tokens": 127, "target_concurrency": 8}
    slow = {"mean_prompt_tokens": 4217, "mean_output_tokens": 1893, "target_concurrency": 4}
    paths = {
        "hot": {"share": 0.3, "traffic": fast, "engine": hot or {}} | (hot_path or {}),
        "cold": {"share": 0.7, "traffic": slow} | (cold_path or {}),
    }
    config = AppConfig.model_validate({"paths": paths, **parts})
    wished = {"hot": config.paths.hot, "cold": config.paths.cold}
    resolved = {name: resolve_path(name, path, machine, model) for name, path in wished.items()}
    found = advise(config, machine, model, resolved, environment or {}, loopback)
    return {finding.name: finding for finding in found}


def test_what_auto_chooses_needs_no_advice():
    assert advice(NO_GPU, SMOL) == {}
    assert advice(H100, QWEN) == {}
    assert advice(replace(H100, device_count=8), DEEPSEEK, hot_path={"share": 1}, cold_path={"share": 1}) == {}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("statistics_disabled", {"disable_log_stats": True}),
        ("context_above_model", {"max_model_len": 8193}),
        ("block_size_unsupported", {"block_size": 16}),
        ("offload_on_cpu", {"kv_offloading_size": 4}),
        ("flashinfer_unsupported", {"attention_backend": "FLASHINFER"}),
        ("tensor_parallel_above_devices", {"tensor_parallel_size": 2}),
        ("pipeline_parallel_on_cpu", {"pipeline_parallel_size": 2}),
        ("batched_tokens_below_sequences", {"max_num_batched_tokens": 32}),
        ("block_tables_too_large", {"max_num_seqs": 100_000, "max_num_batched_tokens": 100_000}),
        ("context_above_kv_cache", {"kv_cache_memory_bytes": 1_000_000, "max_model_len": 4096}),
    ],
)
def test_what_cannot_run_without_a_gpu_is_refused_by_name(name, engine):
    assert advice(NO_GPU, hot=engine)[name].severity is Severity.ERROR


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("chunking_degenerates", {"max_num_batched_tokens": 891}),
        ("warm_beside_hot", {"scheduling_policy": "fcfs"}),
        ("long_prefill_blocks", {"long_prefill_token_threshold": 0}),
        ("no_prefix_cache", {"enable_prefix_caching": False}),
        ("block_tables_unseen", {"scheduler_cls": "ours.Scheduler"}),
    ],
)
def test_what_runs_badly_is_warned_about_by_name(name, engine):
    assert advice(NO_GPU, hot=engine)[name].severity is Severity.WARNING


def test_a_step_as_long_as_the_mean_prompt_is_long_enough():
    assert "chunking_degenerates" not in advice(NO_GPU, hot={"max_num_batched_tokens": 892})


def test_small_blocks_with_many_sequences_are_warned_about_from_128():
    assert "small_blocks_many_sequences" in advice(H100, QWEN, hot={"block_size": 16, "max_num_seqs": 128})
    assert "small_blocks_many_sequences" not in advice(H100, QWEN, hot={"block_size": 16, "max_num_seqs": 127})
    assert "small_blocks_many_sequences" not in advice(H100, QWEN, hot={"block_size": 32, "max_num_seqs": 128})


def test_a_nearly_full_device_is_warned_about_only_with_long_contexts():
    full = {"gpu_memory_utilization": 0.95}
    assert "no_memory_headroom" in advice(H100, QWEN, hot=full)
    assert "no_memory_headroom" not in advice(H100, QWEN, hot=full | {"max_model_len": 8192})
    assert "no_memory_headroom" not in advice(H100, QWEN, hot={"gpu_memory_utilization": 0.9})


@pytest.mark.parametrize("model", [GEMMA, DEEPSEEK])
def test_flashinfer_is_refused_where_the_model_mixes_windows_or_keeps_latents(model):
    found = advice(replace(H100, device_count=8), model, hot={"attention_backend": "FLASHINFER"})
    assert found["flashinfer_unsupported"].severity is Severity.ERROR


def test_flashinfer_takes_pages_of_16_32_and_64_only():
    assert "block_size_unsupported" in advice(H100, QWEN, hot={"block_size": 128})
    assert "block_size_unsupported" not in advice(H100, QWEN, hot={"block_size": 64})


def test_deepseek_v4_takes_pages_of_256_only():
    eight = replace(H100, device_count=8)
    found = advice(eight, DEEPSEEK, hot={"block_size": 512}, cold_path={"share": 1})
    assert found["block_size_unsupported"].severity is Severity.ERROR


def test_shares_above_one_are_refused_on_one_device():
    for hardware, model in ((NO_GPU, SMOL), (H100, SMOL)):
        assert advice(hardware, model, cold_path={"share": 0.71})["shares_above_one"].severity is Severity.ERROR
        assert "shares_above_one" not in advice(hardware, model, cold_path={"share": 0.7})


def test_replicas_without_a_device_are_refused_because_ray_would_wait_for_ever():
    two = replace(H100, device_count=2)
    whole = {"share": 1, "replicas": {"min": 1, "max": 4}}
    assert advice(two, QWEN, hot_path=whole, cold_path={"share": 1}) == {}
    found = advice(two, QWEN, hot_path=whole | {"replicas": 2}, cold_path={"share": 1})
    assert found["too_few_devices"].severity is Severity.ERROR


def test_an_engine_over_several_devices_needs_whole_ones():
    two = replace(H100, device_count=2)
    found = advice(two, QWEN, hot={"tensor_parallel_size": 2})
    assert found["parallel_engine_on_fractions"].severity is Severity.ERROR


def test_weights_that_do_not_fit_are_refused_with_their_size():
    found = advice(H100, replace(QWEN, weight_bytes=140 * 10**9))["weights_do_not_fit"]
    assert found.severity is Severity.ERROR
    assert "130.39 GiB" in found.why


def test_weights_that_are_not_here_yet_are_warned_about_where_engines_share_a_device():
    remote = replace(QWEN, weight_bytes=None)
    assert advice(H100, remote)["weights_unknown"].severity is Severity.WARNING
    alone = {"hot_path": {"share": 1}, "cold_path": {"share": 1}}
    assert "weights_unknown" not in advice(replace(H100, device_count=2), remote, **alone)


def test_an_unregistered_model_is_refused():
    found = advice(model=replace(SMOL, registered=False, architecture="MyForCausalLM"))["model_not_registered"]
    assert found.severity is Severity.ERROR
    assert "MyForCausalLM" in found.why


def test_a_port_open_to_the_network_needs_keys_or_an_explicit_wish():
    assert advice(loopback=False)["no_keys"].severity is Severity.ERROR
    assert advice(loopback=False, auth={"anonymous_network": True})["open_to_everyone"].severity is Severity.WARNING
    assert advice(loopback=False, auth={"key_file": "keys.yaml"}) == {}


def test_environment_variables_that_work_against_the_engines_are_named():
    assert "cuda_launch_blocking" in advice(environment={"CUDA_LAUNCH_BLOCKING": "1"})
    assert "cuda_launch_blocking" not in advice(environment={"CUDA_LAUNCH_BLOCKING": "0"})
    assert "kv_space_in_environment" in advice(environment={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert "kv_space_in_environment" not in advice(H100, QWEN, environment={"VLLM_CPU_KVCACHE_SPACE": "4"})


def test_a_shared_device_without_mps_is_told_and_a_wish_for_it_warned_about():
    without = replace(H100, mps_running=False)
    assert advice(without, QWEN)["device_without_mps"].severity is Severity.INFO
    assert advice(without, QWEN, hardware={"mps": True})["mps_not_running"].severity is Severity.WARNING


def test_errors_come_before_warnings():
    found = list(advice(hot={"scheduling_policy": "fcfs", "disable_log_stats": True}))
    assert found == ["statistics_disabled", "warm_beside_hot"]


def test_every_finding_names_a_remedy():
    found = advice(hot={"scheduling_policy": "fcfs", "disable_log_stats": True, "block_size": 48}, loopback=False)
    assert len(found) == 4
    assert all(finding.remedy for finding in found.values())
