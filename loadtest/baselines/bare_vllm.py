"""vLLM's own OpenAI server, one or more engines on consecutive ports, with nothing in front of them.

`python -m loadtest.baselines.bare_vllm --model FOLDER --name NAME --engines 2 -- --enforce-eager`: what follows `--`
goes to vLLM as it is.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType

import click

POLL_S = 0.2


def engine_command(model: str, name: str, port: int, max_model_len: int, further: tuple[str, ...]) -> list[str]:
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model, "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--max-model-len", str(max_model_len), "--enable-prompt-tokens-details", *further]


def run_engines(commands: list[list[str]]) -> int:
    """Run until one ends or SIGTERM comes, then end all. Returns the first exit code."""
    engines = [subprocess.Popen(command) for command in commands]  # noqa: S603 - our own commands

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        while all(engine.poll() is None for engine in engines):
            time.sleep(POLL_S)
        return next(engine.returncode for engine in engines if engine.returncode is not None)
    finally:
        for engine in engines:
            engine.terminate()
        for engine in engines:
            engine.wait()


@click.command(help=__doc__)
@click.option("--model", required=True, help="Folder or Hugging Face id.")
@click.option("--name", required=True, help="The name clients use.")
@click.option("--port", type=int, default=9110, show_default=True, help="Of the first engine, on loopback.")
@click.option("--engines", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--max-model-len", type=int, default=4096, show_default=True)
@click.argument("further", nargs=-1)
def main(model: str, name: str, port: int, engines: int, max_model_len: int, further: tuple[str, ...]) -> None:
    commands = [engine_command(model, name, port + number, max_model_len, further) for number in range(engines)]
    raise SystemExit(run_engines(commands))


if __name__ == "__main__":
    main()
