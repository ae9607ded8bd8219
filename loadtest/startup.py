"""How long `serve run` takes from nothing to ready, and what its processes hold in memory then.

`python -m loadtest.startup serve_config.yaml --rounds 3` starts and stops it that many times. Memory is each process's
own (USS) beside what it shares with others too (RSS), which a sum over processes would count more than once.
"""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import psutil
from rich.console import Console

from loadtest.benchmark import EXIT_UNUSABLE
from loadtest.cpu import process_name
from loadtest.probe import ProbeError
from loadtest.report import table
from loadtest.stacks import stop_process_tree

MIB = 1024 * 1024
POLL_S = 0.1
NOTICEABLE_BYTES = 50 * MIB
_ENGINE_READY = re.compile(r"(\w+) engine ready after ([\d.]+) s")


@dataclass(frozen=True)
class Memory:
    """Of one process, in bytes."""

    name: str
    rss_bytes: int
    uss_bytes: int


@dataclass(frozen=True)
class Startup:
    """One start. Seconds count from the command; `engines_s` is each engine's own account of its start."""

    alive_s: float
    ready_s: float
    engines_s: dict[str, float]
    memory: tuple[Memory, ...]


def measure_startup(config: Path, url: str, log_path: Path, timeout_s: float) -> Startup:
    """Start, wait for `/ready`, look, stop. Raises ProbeError when it does not become ready."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the environment's own command
            ["serve", "run", str(config)],  # noqa: S607 - found on PATH like every other command of a plan
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began_s = time.monotonic()
        alive_s = _wait_for(f"{url}/health", process, began_s, timeout_s)
        ready_s = _wait_for(f"{url}/ready", process, began_s, timeout_s)
        engines = {name: float(took_s) for name, took_s in _ENGINE_READY.findall(log_path.read_text(errors="replace"))}
        return Startup(alive_s, ready_s, engines, _memory_of(process.pid))
    finally:
        stop_process_tree(process.pid)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], began_s: float, timeout_s: float) -> float:
    while (waited_s := time.monotonic() - began_s) < timeout_s:
        if process.poll() is not None:
            raise ProbeError("serve run ended by itself; its log says why")
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - the user's own http address
                return time.monotonic() - began_s
        except OSError:
            time.sleep(POLL_S)
    raise ProbeError(f"{url} did not answer 200 within {waited_s:.0f} s")


def _memory_of(pid: int) -> tuple[Memory, ...]:
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    held = [
        Memory(process_name(one.pid), full.rss, full.uss) for one in family if (full := _full_info(one)) is not None
    ]
    return tuple(sorted(held, key=lambda one: one.uss_bytes, reverse=True))


def _full_info(process: psutil.Process) -> psutil._ntuples.pfullmem | None:
    try:
        return process.memory_full_info()
    except psutil.Error:
        return None


def print_startups(console: Console, starts: list[Startup]) -> None:
    rows = [["ingress alive", *(f"{start.alive_s:.1f} s" for start in starts)]]
    rows += [["every path ready", *(f"{start.ready_s:.1f} s" for start in starts)]]
    for name in sorted({name for start in starts for name in start.engines_s}):
        rows.append([f"{name} engine, its own start", *(f"{start.engines_s.get(name, 0.0):.1f} s" for start in starts)])
    console.print(table(("from nothing to", *(f"start {number + 1}" for number in range(len(starts)))), rows))
    held = starts[-1].memory
    rows = [
        [one.name, f"{one.rss_bytes / MIB:,.0f}", f"{one.uss_bytes / MIB:,.0f}"]
        for one in held
        if one.uss_bytes >= NOTICEABLE_BYTES
    ]
    rows.append(["all processes", "", f"{sum(one.uss_bytes for one in held) / MIB:,.0f}"])
    console.print(table(("process", "RSS MiB", "USS MiB"), rows))
    console.print(f"median ready after {median(start.ready_s for start in starts):.1f} s", highlight=False)


@click.command(help=__doc__)
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), default="serve_config.yaml")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Where the file's http_options listen.")
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--timeout-s", default=600.0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/startup"), show_default=True)
def main(config: Path, url: str, rounds: int, timeout_s: float, out: Path) -> None:
    console = Console()
    try:
        starts = [measure_startup(config, url, out / f"start-{number}.log", timeout_s) for number in range(rounds)]
    except ProbeError as error:
        console.print(f"[bold red]cannot measure[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    print_startups(console, starts)


if __name__ == "__main__":
    main()
