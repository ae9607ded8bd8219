"""How much the generator itself can do: the same client against a server that only streams, in a process of its own.

The ceiling is tokens per second of the generator's own CPU time: what it reaches on a core of its own. `locust`
measures the client of the Locust users the same way.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

import click
import uvloop
from rich.console import Console

from loadtest.overhead import CONCURRENCIES, chats, measure_level
from loadtest.probe import ProbeError, served_model
from loadtest.records import Outcome
from loadtest.report import table
from loadtest.sse_server import MODEL
from loadtest.streaming import Target

COLUMNS = ("users", "requests", "tokens/s", "CPU us per token", "ceiling, tokens/s")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def stream_server(gap_s: float, port: int | None = None) -> Iterator[Target]:
    """`loadtest.sse_server` in its own process, ready."""
    port = port or free_port()
    command = [sys.executable, "-m", "loadtest.sse_server", "--port", str(port), "--gap", str(gap_s)]
    process = subprocess.Popen(command)  # noqa: S603 - our own module
    target = Target(f"http://127.0.0.1:{port}")
    try:
        for _ in range(200):
            try:
                served_model(target)
                break
            except ProbeError:
                time.sleep(0.05)
        yield target
    finally:
        process.terminate()
        process.wait()


def cpu_of_self() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def asyncio_rows(target: Target, per_user: int) -> list[list[str]]:
    rows = []
    for concurrency in CONCURRENCIES:
        before_s = cpu_of_self()
        requests = max(32, concurrency * per_user)
        level = uvloop.run(measure_level(target, MODEL, concurrency, requests, limit_s=20))
        cpu_s = cpu_of_self() - before_s
        tokens = 32 * (level.requests - level.failed + concurrency)  # the uncounted first chats cost CPU too
        rows.append(_row(concurrency, level.requests, level.tokens_per_s, cpu_s / tokens))
    return rows


def _row(concurrency: int, requests: int, tokens_per_s: float, cpu_s_per_token: float) -> list[str]:
    figures = (f"{tokens_per_s:,.0f}", f"{cpu_s_per_token * 1e6:.1f}", f"{1 / cpu_s_per_token:,.0f}")
    return [str(concurrency), str(requests), *figures]


def locust_rows(target: Target, per_user: int) -> list[list[str]]:
    """Greenlets instead of tasks, `http.client` instead of our protocol: what a Locust user costs."""
    import gevent  # here: importing Locust patches the process: never beside the asyncio client

    from loadtest.locust_users import StreamSender
    from loadtest.runner import LoadRun

    def user(number: int, requests: int, run: LoadRun) -> None:
        sender = StreamSender(target)
        for planned in islice(chats(MODEL, number), requests):
            sender.send(planned, run.new_record(planned, run.elapsed_s))
        sender.close()

    rows = []
    for concurrency in CONCURRENCIES:
        run, before_s = LoadRun(duration_s=20), cpu_of_self()
        run.start()
        each = max(per_user, 32 // concurrency)
        gevent.joinall([gevent.spawn(user, number, each, run) for number in range(concurrency)])
        elapsed_s, cpu_s = run.elapsed_s, cpu_of_self() - before_s
        tokens = sum(record.output_tokens for record in run.records if record.outcome is Outcome.OK)
        rows.append(_row(concurrency, len(run.records), tokens / elapsed_s, cpu_s / tokens))
    return rows


@click.command(help=__doc__)
@click.argument("client", type=click.Choice(["asyncio", "locust"]), default="asyncio")
@click.option("--gap", "gap_s", type=float, default=0.005, show_default=True, help="Seconds between a stream's chunks.")
@click.option("--per-user", type=click.IntRange(min=1), default=16, show_default=True, help="Chats of each user.")
def main(client: str, gap_s: float, per_user: int) -> None:
    with stream_server(gap_s) as target:
        rows = asyncio_rows(target, per_user) if client == "asyncio" else locust_rows(target, per_user)
    console = Console()
    console.print(f"[bold]{client} client, 32 tokens a chat, {gap_s * 1000:g} ms between tokens[/]", highlight=False)
    console.print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
