"""What it brings that engines on a CPU share its cores by what they compute, and what it costs where both are busy.

`python -m benchmarks.cpu_idle_cores MODEL_FOLDER`: a hot and a cold engine, processes of their own as in the
service, first with fixed threads, then with the rule (every core while the other is idle, turns for cold beside hot
prompts); the last column is the second over the first. Nothing else may use the cores.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from typing import Any

import click
import psutil

from app.config.schema import HardwareConfig
from deployments.resources import ALONE_THREADS_VARIABLE, DECODE_THREADS_VARIABLE, TURNS_VARIABLE

_WORKER = "deployments.cpu_worker.StepThreadsWorker"
_STEP_TOKENS = {"hot": 256, "cold": 128}
_NICENESS = {"hot": 0, "cold": 19}
# name: engine, sequences, prompt tokens, answer tokens
_ALONE = {
    "hot alone, 1 sequence": ("hot", 1, 64),
    "hot alone, 4 sequences": ("hot", 4, 64),
    "cold alone, 2 sequences": ("cold", 2, 64),
}
# name, cold prompts meanwhile, what the hot engine does
_TOGETHER: list[tuple[str, int, tuple[Any, ...]]] = [
    ("hot beside cold, 1 sequence", 4, ("decode", 1, 200)),
    ("hot beside cold, 4 sequences", 4, ("decode", 4, 200)),
    ("hot requests beside cold", 11, ("answers", 14, 100, 20)),
    ("hot prompts beside cold", 2, ("prefill", 12, 1024)),
]


class _Engine:
    """In the engine's process."""

    def __init__(self, model: str, name: str) -> None:
        from vllm import LLM

        options: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_memory_bytes": 400 * 2**20, "max_model_len": 4096}
        options |= {
            "max_num_batched_tokens": _STEP_TOKENS[name],
            "enable_prefix_caching": False,
            "worker_cls": _WORKER,
        }
        self._engine = LLM(model, block_size=32, enforce_eager=True, **options).llm_engine
        self._rng = random.Random(0)
        self._requests = 0
        for thread in psutil.Process().threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, _NICENESS[name])

    def decode(self, sequences: int, tokens: int) -> dict[str, float]:
        """Gaps between tokens, in milliseconds."""
        self._submit(sequences, 32, tokens)
        return _quantiles("gap", self._steps_ms()[1:])

    def answers(self, requests: int, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """Of short requests with pauses, in which the other engine takes the cores that it is to give back."""
        first_ms, gaps_ms = [], []
        for _ in range(requests):
            time.sleep(self._rng.uniform(0.2, 0.8))
            self._submit(1, prompt_tokens, tokens)
            steps_ms = self._steps_ms()
            first_ms.append(steps_ms[0])
            gaps_ms += steps_ms[1:]
        return _quantiles("first token", first_ms) | _quantiles("gap", gaps_ms)

    def prefill(self, prompts: int, tokens: int) -> dict[str, float]:
        began_s = time.perf_counter()
        for _ in range(prompts):
            self._submit(1, tokens, 1)
            while self._engine.has_unfinished_requests():
                self._engine.step()
        return {"prefill tokens/s": prompts * tokens / (time.perf_counter() - began_s)}

    def _steps_ms(self) -> list[float]:
        steps_ms = []
        while self._engine.has_unfinished_requests():
            began_s = time.perf_counter()
            self._engine.step()
            steps_ms.append(1e3 * (time.perf_counter() - began_s))
        return steps_ms

    def _submit(self, sequences: int, prompt_tokens: int, tokens: int) -> None:
        from vllm import SamplingParams

        for _ in range(sequences):
            self._requests += 1
            prompt: Any = {"prompt_token_ids": [self._rng.randrange(1000, 40_000) for _ in range(prompt_tokens)]}
            sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
            self._engine.add_request(str(self._requests), prompt, sampling)


def _quantiles(name: str, values_ms: list[float]) -> dict[str, float]:
    ordered = sorted(values_ms)
    return {f"{name} p{part} ms": ordered[int(part / 100 * len(ordered))] for part in (50, 95)}


class _Process:
    """The other end of an engine's process: one JSON line per order and per answer."""

    def __init__(self, model: str, name: str, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.cpu_idle_cores", model, "--engine", name]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=os.environ | environment, text=True, **pipes)  # noqa: S603 - our own

    def order(self, work: str, *amounts: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([work, *amounts]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise RuntimeError("the engine's process has ended")

    def run(self, work: str, *amounts: int) -> dict[str, float]:
        self.order(work, *amounts)
        return self.answer()

    def close(self) -> None:
        self._process.communicate()


def _serve_orders(model: str, name: str) -> None:
    engine = _Engine(model, name)
    for line in sys.stdin:
        work, *amounts = json.loads(line)
        print(json.dumps(getattr(engine, work)(*amounts)), flush=True)


def _measure(model: str, lends: bool) -> dict[str, float]:
    cores = len(os.sched_getaffinity(0))
    common = {
        DECODE_THREADS_VARIABLE: "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    } | ({ALONE_THREADS_VARIABLE: str(cores)} if lends else {})
    turns = {TURNS_VARIABLE: str(HardwareConfig().cold_time_ratio)} if lends else {}
    engines = {
        "hot": _Process(model, "hot", common | {"OMP_NUM_THREADS": str(cores)}),
        "cold": _Process(model, "cold", common | turns | {"OMP_NUM_THREADS": "1"}),
    }
    hot, cold = engines["hot"], engines["cold"]
    # Each size's first step, one engine after the other.
    for engine in (hot, cold):
        for sequences in (1, 2, 4):
            engine.run("decode", sequences, 3)
        engine.run("prefill", 1, 1024)
    found: dict[str, float] = {}
    for name, (engine_name, sequences, tokens) in _ALONE.items():
        found |= {f"{name}: {k}": v for k, v in engines[engine_name].run("decode", sequences, tokens).items()}
    found |= {f"cold alone: {k}": v for k, v in cold.run("prefill", 3, 1024).items()}
    for name, prompts, work in _TOGETHER:
        cold.order("prefill", prompts, 1024)
        found |= {f"{name}: {k}": v for k, v in hot.run(*work).items()}
        found |= {f"cold beside it: {k} ({name})": v for k, v in cold.answer().items()}
    for engine in engines.values():
        engine.close()
    return found


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, file_okay=False))
@click.option("--engine", type=click.Choice(["hot", "cold"]), hidden=True)
def main(model: str, engine: str | None) -> None:
    if engine is not None:
        _serve_orders(model, engine)
        return
    fixed, lent = _measure(model, lends=False), _measure(model, lends=True)
    for name, value in fixed.items():
        click.echo(f"| {name} | {value:.1f} | {lent[name]:.1f} | {lent[name] / value:.2f} |")


if __name__ == "__main__":
    main()
