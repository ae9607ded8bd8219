"""What more threads bring an engine on a CPU, and what they cost: one, all for everything, all for prompts only.

`python -m benchmarks.cpu_threads MODEL_FOLDER`; each table is a process of its own. Nothing else may use the cores.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from typing import Any

import click

from deployments.resources import DECODE_THREADS_VARIABLE

_WORKER = "deployments.cpu_worker.StepThreadsWorker"
# name: prompts, prompt tokens, answer tokens
_WORK = {
    "decode, 1 sequence": (1, 32, 48),
    "decode, 4 sequences": (4, 32, 48),
    "decode, 16 sequences": (16, 32, 48),
    "prompt of 800 tokens": (1, 800, 1),
}


def _measure(model: str) -> None:
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {
        "enforce_eager": True,
        "dtype": "bfloat16",
        "kv_cache_memory_bytes": 400 * 2**20,
        "max_model_len": 4096,
    }
    engine = LLM(
        model, block_size=32, max_num_batched_tokens=512, enable_prefix_caching=False, worker_cls=_WORKER, **options
    )
    rng = random.Random(0)

    def run(prompts: int, prompt_tokens: int, answer_tokens: int) -> tuple[float, float]:
        texts: Any = [
            {"prompt_token_ids": [rng.randrange(1000, 40_000) for _ in range(prompt_tokens)]} for _ in range(prompts)
        ]
        began_s, began_cpu_s = time.perf_counter(), _cpu_s()
        sampling = SamplingParams(max_tokens=answer_tokens, ignore_eos=True, temperature=0)
        engine.generate(texts, sampling, use_tqdm=False)
        return time.perf_counter() - began_s, _cpu_s() - began_cpu_s

    for work in _WORK.values():
        run(*work)
    for name, work in _WORK.items():
        wall_s, cpu_s = min(run(*work) for _ in range(3))
        print(f"| {name} | {wall_s:.2f} s | {cpu_s:.2f} s |", flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, file_okay=False))
@click.option("--measure", is_flag=True, hidden=True)
def main(model: str, measure: bool) -> None:
    if measure:
        _measure(model)
        return
    everything = len(os.sched_getaffinity(0))
    for threads, decoding in ((1, 1), (everything, everything), (everything, 1)):
        click.echo(f"\n{threads} threads, {decoding} to decode: time, processor time")
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            DECODE_THREADS_VARIABLE: str(decoding),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that its processor time is this process's
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TORCHDYNAMO_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "benchmarks.cpu_threads", model, "--measure"]
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)  # noqa: S603 - our own


if __name__ == "__main__":
    main()
