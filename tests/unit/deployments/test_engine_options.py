from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.config.defaults import Hardware, ModelFacts, ResolvedPath, resolve_path
from app.config.schema import AppConfig, EngineConfig, ModelConfig, PathConfig
from app.errors import ConfigError
from deployments import engine_options

GIB = 1024**3
NO_GPU = Hardware("cpu", "x86_64", 1, 24 * GIB, 2, 24 * GIB, kv_cache_bytes=2 * GIB)
H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 8, 85_520_809_984, 32, 256 * GIB, (9, 0))
SMOL = ModelFacts("LlamaForCausalLM", True, 8_192, 23_040, 269_060_552, "full", False, head_size=64)
TRAFFIC = {"mean_prompt_tokens": 892, "mean_output_tokens": 127, "target_concurrency": 8}


def resolved(hardware: Hardware, name: str = "hot", **engine: Any) -> ResolvedPath:
    path = PathConfig.model_validate({"share": 1, "traffic": TRAFFIC, "engine": engine})
    return resolve_path(name, path, hardware, SMOL)


def arguments(hardware: Hardware, name: str = "hot", **engine: Any) -> dict[str, Any]:
    return engine_options.engine_arguments(resolved(hardware, name, **engine), ModelConfig(name="smol"), "/models/smol")


def config(**engine: Any) -> AppConfig:
    paths = {name: {"share": 0.5, "traffic": TRAFFIC, "engine": engine} for name in ("hot", "cold")}
    return AppConfig.model_validate({"paths": paths})


def test_the_engine_serves_the_model_under_the_name_that_clients_use():
    made = arguments(NO_GPU)
    assert (made["model"], made["served_model_name"]) == ("/models/smol", ["smol"])


def test_what_is_left_to_vllm_is_absent():
    assert "gpu_memory_utilization" not in arguments(NO_GPU)
    assert "quantization" not in arguments(NO_GPU)
    assert None not in arguments(NO_GPU).values()


def test_an_offload_of_nothing_turns_offloading_off():
    assert "kv_offloading_size" not in arguments(H100, "cold", kv_offloading_size=0)
    assert arguments(H100, "cold", kv_offloading_size=3)["kv_offloading_size"] == 3


def test_a_cpu_engine_runs_its_worker_in_process_and_a_parallel_one_on_ray():
    executor = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    assert arguments(NO_GPU)["distributed_executor_backend"] == executor
    assert "distributed_executor_backend" not in arguments(H100)
    assert arguments(H100, tensor_parallel_size=4)["distributed_executor_backend"] == "ray"
    assert (
        arguments(H100, tensor_parallel_size=4, distributed_executor_backend="mp")["distributed_executor_backend"]
        == "mp"
    )


def test_every_cpu_engine_chooses_its_threads_by_the_step_unless_it_has_a_worker_of_its_own():
    worker = "deployments.cpu_worker.StepThreadsWorker"
    assert [arguments(NO_GPU, name)["worker_cls"] for name in ("hot", "cold")] == [worker, worker]
    assert arguments(NO_GPU, worker_cls="theirs.Worker")["worker_cls"] == "theirs.Worker"
    assert "worker_cls" not in arguments(H100)


def test_further_engine_arguments_of_vllm_pass_through():
    engine_options.refuse_unknown(config(seed=7))
    assert arguments(NO_GPU, seed=7)["seed"] == 7


def test_an_option_that_vllm_does_not_have_is_refused_on_each_path_with_the_nearest_name():
    with pytest.raises(ConfigError) as raised:
        engine_options.refuse_unknown(config(max_num_seq=7))
    assert str(raised.value).splitlines() == [
        f"paths.{path}.engine.max_num_seq: vLLM has no such engine argument; did you mean 'max_num_seqs'?"
        for path in ("hot", "cold")
    ]


def test_what_another_part_of_the_file_sets_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"paths.hot.engine.served_model_name: set model.name instead"):
        engine_options.refuse_unknown(config(served_model_name="x"))


def test_the_names_read_from_source_are_the_fields_of_the_real_class():
    from vllm.engine.arg_utils import AsyncEngineArgs

    fields = {field.name for field in dataclasses.fields(AsyncEngineArgs) if not field.name.startswith("_")}
    assert engine_options._engine_argument_names() == fields
    assert set(EngineConfig.model_fields) <= fields


def test_vllm_takes_what_auto_chooses():
    from vllm.engine.arg_utils import AsyncEngineArgs

    for hardware in (NO_GPU, H100):
        for name in ("hot", "cold"):
            assert AsyncEngineArgs(**arguments(hardware, name)).max_num_seqs == 64
