"""The numbers are worked out by hand from the rules in app/config/defaults.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.config.defaults import Hardware, ModelFacts, ResolvedPath, resolve_path
from app.config.facts import SET_IN_FILE
from app.config.schema import PathConfig

GIB = 1024**3
MIB = 1024**2

EIGHT_CORES = Hardware("cpu", "x86_64", 1, 24 * GIB, 8, 24 * GIB, kv_cache_bytes=2 * GIB)
NO_GPU = Hardware("cpu", "x86_64", 1, 24 * GIB, 2, 24 * GIB, kv_cache_bytes=2 * GIB)
A10 = Hardware("cuda", "NVIDIA A10", 1, 23_028 * MIB, 8, 64 * GIB, (8, 6))
A100 = Hardware("cuda", "NVIDIA A100-SXM4-80GB", 1, 81_920 * MIB, 16, 256 * GIB, (8, 0))
H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 1, 81_559 * MIB, 32, 256 * GIB, (9, 0))
H200 = Hardware("cuda", "NVIDIA H200", 8, 143_771 * MIB, 64, 1024 * GIB, (9, 0))
B200 = Hardware("cuda", "NVIDIA B200", 8, 183_359 * MIB, 64, 1024 * GIB, (10, 0))

SMOL = ModelFacts("LlamaForCausalLM", True, 8_192, 23_040, 269_060_552, "full", False, head_size=64)
QWEN = ModelFacts("Qwen3ForCausalLM", True, 40_960, 147_456, 16_381_470_720, "full", False, head_size=128)
GEMMA = ModelFacts("Gemma3ForCausalLM", True, 32_768, 139_264, 8_600_000_000, "mixed", False, head_size=256)
DEEPSEEK_V3 = ModelFacts("DeepseekV3ForCausalLM", True, 163_840, 70_272, 688 * 10**9, "full", True, None, "fp8")
DEEPSEEK_V4 = ModelFacts("DeepseekV4ForCausalLM", True, 1_048_576, 3_900, 160 * 10**9, "mixed", True, 512, "fp8")


HOT_TRAFFIC = {"mean_prompt_tokens": 892, "mean_output_tokens": 127, "target_concurrency": 8}


def hot(
    hardware: Hardware, model: ModelFacts = SMOL, concurrency: int = 8, share: float = 0.3, **engine
) -> ResolvedPath:
    traffic = {"mean_prompt_tokens": 892, "mean_output_tokens": 127, "target_concurrency": concurrency}
    path = PathConfig.model_validate({"share": share, "traffic": traffic, "engine": engine})
    return resolve_path("hot", path, hardware, model)


def cold(hardware: Hardware, model: ModelFacts = SMOL, share: float = 0.7, **engine: Any) -> ResolvedPath:
    traffic = {"mean_prompt_tokens": 4217, "mean_output_tokens": 1893, "target_concurrency": 4}
    path = PathConfig.model_validate({"share": share, "traffic": traffic, "engine": engine})
    return resolve_path("cold", path, hardware, model)


def values(path: ResolvedPath, *names: str) -> list[object]:
    return [path.value(name) for name in names]


def with_mean_prompt(tokens: int, hardware: Hardware) -> ResolvedPath:
    traffic = {"mean_prompt_tokens": tokens, "mean_output_tokens": 10, "target_concurrency": 1}
    return resolve_path("hot", PathConfig.model_validate({"share": 1, "traffic": traffic}), hardware, SMOL)


def test_every_option_tells_why_it_has_its_value():
    for path in (hot(NO_GPU), cold(NO_GPU), hot(H100, QWEN), cold(H100, QWEN), hot(H200, DEEPSEEK_V4, share=1)):
        assert all(option.reason for option in path.options)


def test_a_value_from_the_file_wins_over_every_rule():
    path = hot(H100, block_size=16, dtype="float16", quantization=None, attention_backend="TRITON_ATTN", seed=7)
    names = ("block_size", "dtype", "quantization", "attention_backend", "seed")
    assert values(path, *names) == [16, "float16", None, "TRITON_ATTN", 7]
    assert {path.option(name).reason for name in names} == {SET_IN_FILE}


def test_what_the_file_does_not_name_is_not_said_to_be_set_in_it():
    assert hot(NO_GPU).option("tensor_parallel_size").reason == "default"
    assert hot(NO_GPU, tensor_parallel_size=1).option("tensor_parallel_size").reason == SET_IN_FILE


def test_without_a_gpu_hot_prompts_take_all_cores_and_all_else_keeps_to_its_share():
    paths = hot(EIGHT_CORES), cold(EIGHT_CORES)
    assert [(path.threads, path.decode_threads, path.niceness) for path in paths] == [(8, 2, 0), (6, 6, 19)]


@pytest.mark.parametrize(("replicas", "threads"), [(2, 4), (3, 2), (99, 1), ({"min": 1, "max": 4}, 2)])
def test_replicas_of_a_path_share_the_cores_among_them(replicas, threads):
    path = PathConfig.model_validate({"share": 0.3, "replicas": replicas, "traffic": HOT_TRAFFIC})
    found = resolve_path("hot", path, EIGHT_CORES, SMOL)
    assert (found.threads, found.decode_threads) == (threads, min(threads, 2))


def test_cores_can_be_split_by_share_instead():
    split = dataclasses.replace(EIGHT_CORES, core_sharing="split")
    paths = hot(split), cold(split)
    assert [(path.threads, path.decode_threads, path.niceness) for path in paths] == [(2, 2, 0), (6, 6, 0)]


def test_on_a_gpu_no_path_yields_cores():
    assert (hot(H100).niceness, cold(H100).niceness) == (0, 0)


def test_without_a_gpu_the_shares_split_the_kv_budget():
    assert hot(NO_GPU).value("kv_cache_memory_bytes") == 644_245_094  # 0.3 x 2 GiB
    assert cold(NO_GPU).value("kv_cache_memory_bytes") == 1_503_238_553  # 0.7 x 2 GiB


def test_without_a_gpu_nothing_is_chosen_that_needs_one():
    path = cold(NO_GPU)
    options = ("dtype", "enforce_eager", "quantization", "kv_cache_dtype", "attention_backend", "kv_offloading_size")
    assert values(path, *options) == ["bfloat16", True, None, "auto", None, None]
    assert path.value("gpu_memory_utilization") is None


def test_without_a_gpu_steps_are_short_and_a_long_prefill_takes_half_of_a_hot_one_and_most_of_a_cold_one():
    names = ("max_num_batched_tokens", "long_prefill_token_threshold")
    assert values(hot(NO_GPU), *names) == [256, 128]  # 892 x 8 x 1.5 = 10,704, capped at 128 per thread
    assert values(with_mean_prompt(100, NO_GPU), *names) == [150, 75]
    assert values(cold(NO_GPU), *names) == [128, 96]  # one thread of two cores


def test_an_h100_shared_30_to_70_gives_each_path_what_its_share_leaves_beside_the_weights():
    fast, slow = hot(H100, QWEN, concurrency=32), cold(H100, QWEN)
    assert values(fast, "gpu_memory_utilization", "kv_cache_memory_bytes") == [0.27, 10_952_674_394]
    # 0.27 x 85,520,809,984 = 23,090,618,695; less weights x 0.6 = 9,828,882,432 (FP8); less a tenth = 2,309,061,869
    assert values(slow, "gpu_memory_utilization", "kv_cache_memory_bytes") == [0.63, 32_108_828_541]
    # 0.63 x 85,520,809,984 = 53,878,110,289; less weights 16,381,470,720; less a tenth = 5,387,811,028


def test_an_h100_runs_hot_in_fp8_with_flashinfer_and_cold_at_the_checkpoints_precision():
    options = ("quantization", "kv_cache_dtype", "attention_backend", "enforce_eager")
    assert values(hot(H100, QWEN), *options) == ["fp8", "fp8", "FLASHINFER", False]
    assert values(cold(H100, QWEN), *options) == [None, "auto", "FLASHINFER", False]


def test_only_cold_offloads_evicted_blocks_to_host_memory():
    assert hot(H100, QWEN).value("kv_offloading_size") is None
    assert cold(H100, QWEN).value("kv_offloading_size") == 44.8  # 256 GiB x 25 % x 0.7


def test_an_h200_alone_lets_vllm_measure_its_memory():
    path = hot(H200, QWEN, share=1, concurrency=64)
    assert values(path, "gpu_memory_utilization", "kv_cache_memory_bytes") == [0.9, None]
    assert values(path, "max_num_batched_tokens", "long_prefill_token_threshold") == [8192, 4096]


def test_an_a10_gets_smaller_steps_less_memory_and_no_fp8():
    path = hot(A10)
    assert values(path, "gpu_memory_utilization", "kv_cache_memory_bytes") == [0.24, 3_378_641_750]
    # 0.24 x 24,146,608,128 = 5,795,185,950; less weights 269,060,552; less 2 GiB = 2,147,483,648
    assert values(path, "quantization", "kv_cache_dtype", "attention_backend") == [None, "auto", None]
    assert path.value("max_num_batched_tokens") == 2048


@pytest.mark.parametrize(("hardware", "tokens"), [(A10, 2048), (A100, 4096), (H100, 8192), (H200, 8192), (B200, 16384)])
def test_the_formula_for_batched_tokens_is_capped_by_what_fits_the_card(hardware, tokens):
    assert hot(hardware, concurrency=64).value("max_num_batched_tokens") == tokens  # 892 x 64 x 1.5 = 85,632


def test_below_the_cap_the_formula_for_batched_tokens_holds():
    assert hot(H100, concurrency=4).value("max_num_batched_tokens") == 5352  # 892 x 4 x 1.5


def test_a_step_is_never_smaller_than_the_number_of_sequences():
    assert hot(NO_GPU, max_num_seqs=1024).value("max_num_batched_tokens") == 1024


def test_without_chunked_prefill_a_step_holds_the_longest_prompt():
    path = hot(NO_GPU, enable_chunked_prefill=False)
    assert values(path, "max_num_batched_tokens", "long_prefill_token_threshold") == [8192, 0]


@pytest.mark.parametrize(
    ("mean_prompt", "on_cuda"), [(1, 16), (63, 16), (64, 16), (127, 16), (128, 32), (892, 32), (100_000, 32)]
)
def test_the_block_size_follows_the_mean_prompt_within_what_the_kernels_take(mean_prompt, on_cuda):
    assert with_mean_prompt(mean_prompt, H100).value("block_size") == on_cuda
    assert with_mean_prompt(mean_prompt, NO_GPU).value("block_size") == 32


def test_mla_models_get_the_pages_their_kernels_read():
    assert hot(H200, DEEPSEEK_V4, share=1).value("block_size") == 256
    assert hot(NO_GPU, DEEPSEEK_V4).value("block_size") == 256
    assert hot(H200, DEEPSEEK_V3, share=1, tensor_parallel_size=8).value("block_size") == 64
    assert hot(NO_GPU, DEEPSEEK_V3).value("block_size") is None


def test_models_that_flashinfer_cannot_serve_leave_the_backend_to_vllm():
    odd_heads = ModelFacts("PhiForCausalLM", True, 2048, 327_680, 5_000_000_000, "full", False, head_size=80)
    for model in (GEMMA, DEEPSEEK_V4, odd_heads):
        assert hot(H200, model, share=1).value("attention_backend") is None


def test_a_checkpoint_that_is_quantised_already_is_not_quantised_again():
    path = hot(H200, DEEPSEEK_V4, share=1, tensor_parallel_size=4)
    assert values(path, "quantization", "kv_cache_dtype") == [None, "auto"]


def test_the_context_is_bounded_by_what_the_kv_cache_holds():
    tight = Hardware("cpu", "x86_64", 1, 24 * GIB, 2, 24 * GIB, kv_cache_bytes=300_000_000)
    # 0.3 x 300,000,000 / 23,040 = 3,906 tokens = 122 blocks of 32, of which vLLM keeps one
    assert hot(tight).value("max_model_len") == 121 * 32
    assert hot(NO_GPU).value("max_model_len") == 8192


def test_tensor_parallel_ranks_hold_more_context():
    assert cold(A10, QWEN, share=1, tensor_parallel_size=2).value("max_model_len") == 40_960
    # 0.8 x 24,146,608,128 = 19,317,286,502 - 16,381,470,720 / 2 - 2 GiB = 8,979,067,494; x 2 / 147,456 = 121,786 tokens
    assert cold(A10, QWEN, share=1).value("max_model_len") == 166 * 32
    # 19,317,286,502 - 16,381,470,720 - 2,147,483,648 = 788,332,134; / 147,456 = 5,346 tokens = 167 blocks


def test_weights_that_do_not_fit_leave_no_kv_cache():
    assert values(hot(A10, QWEN), "kv_cache_memory_bytes", "max_model_len") == [0, 0]


def test_unknown_weights_leave_the_memory_to_vllm():
    remote = ModelFacts("Qwen3ForCausalLM", True, 40_960, 147_456, None, "full", False, head_size=128)
    assert values(hot(H100, remote), "kv_cache_memory_bytes", "max_model_len") == [None, 40_960]


def test_short_answers_run_64_at_a_time_long_ones_32_and_more_where_asked():
    assert hot(NO_GPU).value("max_num_seqs") == 64
    assert cold(NO_GPU).value("max_num_seqs") == 32
    assert hot(NO_GPU, concurrency=100).value("max_num_seqs") == 100


def test_both_paths_schedule_by_priority():
    assert [path.value("scheduling_policy") for path in (hot(NO_GPU), cold(NO_GPU))] == ["priority"] * 2


def test_a_replica_takes_four_times_what_it_runs_so_that_the_engine_never_waits_for_serve():
    assert hot(NO_GPU).max_ongoing_requests == 256
    assert hot(NO_GPU, max_num_seqs=10).max_ongoing_requests == 40
