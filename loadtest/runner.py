"""Runs a load against a client and keeps every record. Ends by itself: bounded in requests and in time."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.records import PlannedRequest, RequestRecord
from loadtest.shapes import Shape, constant


class Sender(Protocol):
    """What sends one request: `loadtest.streaming.StreamingClient`."""

    async def send(self, planned: PlannedRequest, record: RequestRecord, origin_s: float) -> RequestRecord: ...


@dataclass
class LoadRun:
    """The records of one run, filled while it goes on; offsets count from `started_s` (`time.perf_counter`).

    Args:
        duration_s: how long requests are sent. Answers get `drain_s` more, then the run is over.
    """

    duration_s: float
    drain_s: float = 120.0
    records: list[RequestRecord] = field(default_factory=list)
    started_s: float = 0.0

    def start(self) -> None:
        gc.collect()
        gc.freeze()  # the schedule stays: collections during the run need not look at it
        self.started_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    def new_record(self, planned: PlannedRequest, at_s: float) -> RequestRecord:
        record = RequestRecord(
            key=planned.key,
            traffic_class=planned.traffic_class,
            at_s=at_s,
            first_touch=planned.first_touch,
            cut_tokens=planned.cut_tokens,
        )
        self.records.append(record)
        return record

    async def finish(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Wait for what is running, `drain_s` at most; what is left stays UNFINISHED."""
        if not tasks:
            return
        left_s = self.duration_s + self.drain_s - self.elapsed_s
        _, late = await asyncio.wait(tasks, timeout=max(0.0, left_s))
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_open_loop(sender: Sender, schedule: Sequence[PlannedRequest], run: LoadRun) -> None:
    """Send each request at its time, whatever became of the others. Latency counts from that time."""
    run.start()
    tasks: set[asyncio.Task[Any]] = set()
    for planned in schedule:
        await asyncio.sleep(max(0.0, planned.at_s - run.elapsed_s))
        record = run.new_record(planned, planned.at_s)
        record.lag_s = run.elapsed_s - planned.at_s
        _track(tasks, sender.send(planned, record, run.started_s + planned.at_s))
    await run.finish(tasks)


@dataclass(frozen=True)
class ClosedLoop:
    """Users who each wait for an answer, think, and ask again.

    Args:
        users: what each user asks; as many as the shape ever wants.
        base_users: how many are active where the shape is 1.
        think_s: mean of the exponential pause between an answer and the next question.
        shape: multiple of `base_users` who are active over the run.
        max_requests: the run is over after so many.
    """

    users: Sequence[Iterator[PlannedRequest]]
    base_users: int
    think_s: float = 0.0
    shape: Shape = constant
    max_requests: int | None = None
    seed: int = 0


async def run_closed_loop(sender: Sender, load: ClosedLoop, run: LoadRun) -> None:
    run.start()
    tasks: set[asyncio.Task[Any]] = set()
    for number, user in enumerate(load.users):
        _track(tasks, _user(sender, load, run, number, user))
    await run.finish(tasks)


async def _user(
    sender: Sender, load: ClosedLoop, run: LoadRun, number: int, requests: Iterator[PlannedRequest]
) -> None:
    rng = random.Random(f"{load.seed}/think/{number}")  # noqa: S311 - load, not secrets
    while run.elapsed_s < run.duration_s and (load.max_requests is None or len(run.records) < load.max_requests):
        if number >= round(load.base_users * load.shape(run.elapsed_s / run.duration_s)):
            await asyncio.sleep(0.1)  # not this user's hour
            continue
        planned = next(requests)
        at_s = run.elapsed_s
        record = run.new_record(planned, at_s)
        await sender.send(planned, record, run.started_s + at_s)
        if load.think_s > 0:
            await asyncio.sleep(min(rng.expovariate(1 / load.think_s), max(0.0, run.duration_s - run.elapsed_s)))


async def run_warmup(sender: Sender, requests: Sequence[PlannedRequest], limit_s: float = 600.0) -> LoadRun:
    """One pass over the sessions, one at a time, so that each prefix has been seen. Returns its own records."""
    run = LoadRun(duration_s=limit_s, drain_s=0.0)
    run.start()
    for planned in requests:
        if run.elapsed_s >= limit_s:
            break
        await sender.send(planned, run.new_record(planned, run.elapsed_s), time.perf_counter())
    return run


def _track(tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
