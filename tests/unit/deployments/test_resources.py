from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ray.serve._private.config import ReplicaConfig

from app.config.defaults import Hardware, ModelFacts, resolve_path
from app.config.schema import PathConfig
from deployments.resources import PathResources, path_resources

GIB = 1024**3
NO_GPU = Hardware("cpu", "x86_64", 1, 24 * GIB, 8, 24 * GIB, kv_cache_bytes=2 * GIB)
H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 8, 85_520_809_984, 32, 256 * GIB, (9, 0), mps_running=True)
SMOL = ModelFacts("LlamaForCausalLM", True, 8_192, 23_040, 269_060_552, "full", False, head_size=64)
TRAFFIC = {"mean_prompt_tokens": 892, "mean_output_tokens": 127, "target_concurrency": 8}


def resources(
    hardware: Hardware, share: float = 0.3, name: str = "hot", model: str = "owner/model", **engine: Any
) -> PathResources:
    path = resolve_path(
        name, PathConfig.model_validate({"share": share, "traffic": TRAFFIC, "engine": engine}), hardware, SMOL
    )
    return path_resources(path, {"model": model, "enforce_eager": path.value("enforce_eager")}, hardware)


def test_on_a_cpu_an_engine_has_its_threads_and_asks_ray_for_little():
    found = resources(NO_GPU, share=0.7)
    assert found.ray_actor_options == {"num_cpus": 0.1}
    assert (found.environment["OMP_NUM_THREADS"], found.environment["KVPULSE_DECODE_THREADS"]) == ("8", "6")
    assert found.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found.environment


def test_engines_lend_each_other_their_cores_unless_these_are_split():
    assert resources(NO_GPU, name="cold").environment["KVPULSE_ALONE_THREADS"] == "8"
    assert resources(replace(NO_GPU, cold_time_ratio=0.1), name="cold").environment["KVPULSE_TURNS"] == "0.1"
    assert "KVPULSE_TURNS" not in resources(NO_GPU, name="hot").environment
    split = resources(replace(NO_GPU, core_sharing="split"), name="cold")
    assert not {"KVPULSE_ALONE_THREADS", "KVPULSE_TURNS"} & set(split.environment)


def test_dynamo_is_off_only_where_the_engine_is_eager():
    assert resources(NO_GPU).environment["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in resources(NO_GPU, enforce_eager=False).environment


def test_a_local_model_keeps_the_engine_off_the_network(tmp_path):
    assert resources(NO_GPU, model=str(tmp_path)).environment["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in resources(NO_GPU, model="owner/model").environment


def test_a_share_of_a_device_is_a_fraction_for_ray_and_a_percentage_for_mps():
    found = resources(H100, share=0.3)
    assert found.ray_actor_options == {"num_cpus": 1.0, "num_gpus": 0.3}
    assert found.environment == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_CLIENT_PRIORITY": "0"}
    assert resources(H100, share=0.7, name="cold").environment["CUDA_MPS_CLIENT_PRIORITY"] == "1"


def test_mps_is_left_alone_where_it_does_not_run_or_nothing_is_shared():
    assert resources(replace(H100, mps_running=False)).environment == {}
    assert resources(H100, share=1).environment == {}


@pytest.mark.parametrize(("pipeline", "strategy"), [(1, "STRICT_PACK"), (2, "PACK")])
def test_an_engine_over_several_devices_gets_one_bundle_each_with_its_actor_in_the_first(pipeline, strategy):
    found = resources(H100, share=1, tensor_parallel_size=2, pipeline_parallel_size=pipeline)
    assert found.placement_group_bundles == [{"CPU": 1.0, "GPU": 1.0}] + [{"GPU": 1.0}] * (2 * pipeline - 1)
    assert found.placement_group_strategy == strategy
    assert found.ray_actor_options == {"num_cpus": 1.0, "num_gpus": 0}


def test_serve_accepts_the_bundles_and_the_actor_fits_the_first():
    found = resources(H100, share=1, tensor_parallel_size=4)
    made = ReplicaConfig.create(
        PathResources,
        ray_actor_options=found.ray_actor_options,
        placement_group_bundles=found.placement_group_bundles,
        placement_group_strategy=found.placement_group_strategy,
    )
    assert made.placement_group_bundles == found.placement_group_bundles
