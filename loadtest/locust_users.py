"""The same traffic as Locust users: sessions, requests and measurements are those of the other load tests.

Locust's table shows three rows per class: `ide TTFT`, `ide ITL` (mean of an answer) and `ide` (end to end, with the
refusals and failures). When the process ends, the full tables are printed, and objectives set its exit code.
"""

from __future__ import annotations

import itertools
import os
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from locust import LoadTestShape, User, between, events, task
from rich.console import Console

from loadtest.benchmark import Measured, Reports, report
from loadtest.probe import ASSUMED_CONTEXT_TOKENS, measure_tokenizer, served_model
from loadtest.records import Outcome, PlannedRequest, RequestRecord, TrafficClass
from loadtest.runner import LoadRun
from loadtest.schedule import Slot
from loadtest.shapes import SHAPES
from loadtest.streaming import StreamMeter, Target
from loadtest.workloads import DEFAULT_PROFILES, WorkloadConfig

__all__ = ["ChatUser", "IdeUser", "ReviewUser", "SummaryUser"]

DEFAULT_HOST = "http://127.0.0.1:8000"
READ_BYTES = 65_536
TIMEOUT_S = 300.0
DRAIN_S = 60.0  # Locust would cut the answers that are running when the test ends


class RefusedError(Exception):
    """Locust lists failures by their text: this one is the refusal's reason."""


class _Test:
    """What the users of this process share: the workload, probed once per test, and the records."""

    def __init__(self) -> None:
        self.workload: WorkloadConfig | None = None
        self.run = LoadRun(duration_s=0.0)
        self.numbers = itertools.count()


_test = _Test()


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # Locust leaves it untyped
def _add_options(parser: Any) -> None:
    parser.add_argument("--seed", type=int, default=0, env_var="LOADTEST_SEED", help="Same seed, same requests")
    parser.add_argument("--api-key", default="", env_var="OPENAI_API_KEY", help="Bearer token", include_in_web_ui=False)
    parser.add_argument("--stream-report", default="", help="Write the report of the streams to this HTML file")
    parser.add_argument("--stream-json", default="", help="Write the records of the streams to this JSON file")
    parser.add_argument("--min-goodput", type=float, default=0.9, help="Exit code 1 below this share of good requests")


def _target(environment: Any) -> Target:
    return Target(environment.host or DEFAULT_HOST, environment.parsed_options.api_key or None)


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # Locust leaves it untyped
def _probe(environment: Any, **_: Any) -> None:
    target = _target(environment)
    served = served_model(target)
    _test.workload = WorkloadConfig(
        model=served.name,
        context_tokens=served.context_tokens or ASSUMED_CONTEXT_TOKENS,
        seed=environment.parsed_options.seed,
        tokens_per_character=measure_tokenizer(target, served.name),
    )
    _test.run, _test.numbers = LoadRun(duration_s=0.0), itertools.count()
    _test.run.started_s = time.perf_counter()
    environment.stop_timeout = environment.stop_timeout or DRAIN_S


@events.quitting.add_listener  # type: ignore[untyped-decorator]  # Locust leaves it untyped
def _report(environment: Any, **_: Any) -> None:
    if _test.workload is None:  # no test was started
        return
    options = environment.parsed_options
    _test.run.duration_s = max((record.at_s for record in _test.run.records), default=1.0)
    reports = Reports(
        objectives={name: profile.objective for name, profile in DEFAULT_PROFILES.items()},
        min_goodput=options.min_goodput,
        html=Path(options.stream_report) if options.stream_report else None,
        json=Path(options.stream_json) if options.stream_json else None,
    )
    shown = {"host": _target(environment).url, "seed": options.seed, "model": _test.workload.model}
    title = f"{_test.workload.model} at {shown['host']}"
    environment.process_exit_code = report(Console(), title, shown, Measured(_test.run, []), reports)


class StreamSender:
    """One keep-alive connection of one user. Locust has patched the socket: it waits without blocking the others."""

    def __init__(self, target: Target) -> None:
        url = urlsplit(target.url)
        connect = HTTPSConnection if url.scheme == "https" else HTTPConnection
        self._connection = connect(url.hostname or "", url.port, timeout=TIMEOUT_S)
        self._path = url.path.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if target.api_key:
            self._headers["authorization"] = f"Bearer {target.api_key}"

    def send(self, planned: PlannedRequest, record: RequestRecord) -> None:
        """Fill `record`; latency counts from now."""
        meter = StreamMeter(record, time.perf_counter())
        try:
            self._connection.request("POST", self._path + planned.endpoint, planned.body, self._headers)
            answer = self._connection.getresponse()
            meter.on_status(answer.status)
            record.path = answer.headers.get("x-kvpulse-path")
            while chunk := answer.read1(READ_BYTES):
                meter.on_bytes(chunk, time.perf_counter())
        except (OSError, HTTPException) as error:
            self._connection.close()
            meter.on_failure(f"connection: {type(error).__name__}", time.perf_counter())
        else:
            meter.on_end(time.perf_counter())

    def close(self) -> None:
        self._connection.close()


class StreamingUser(User):
    """A user of one class who works through session after session, one request at a time."""

    abstract = True
    host = DEFAULT_HOST
    wait_time = between(0.5, 1.5)
    traffic_class: ClassVar[TrafficClass]

    def on_start(self) -> None:
        if _test.workload is None:
            raise RuntimeError("the test has no workload: the server did not answer /v1/models when it started")
        self._slot = Slot(_test.workload, self.traffic_class, f"locust{next(_test.numbers)}")
        self._sender = StreamSender(_target(self.environment))

    def on_stop(self) -> None:
        self._sender.close()

    @task
    def ask(self) -> None:
        planned = self._slot.next_request()
        record = _test.run.new_record(planned, _test.run.elapsed_s)
        self._sender.send(planned, record)
        self._tell_locust(record)

    def _tell_locust(self, record: RequestRecord) -> None:
        failure = None if record.outcome is Outcome.OK else RefusedError(record.reason)
        self._fire(self.traffic_class, record.e2e_s, record.output_tokens, failure)
        if failure is None:
            self._fire(f"{self.traffic_class} TTFT", record.ttft_s, 0, None)
            self._fire(f"{self.traffic_class} ITL", record.mean_itl_s, 0, None)

    def _fire(self, name: str, seconds: float | None, length: int, failure: Exception | None) -> None:
        if seconds is not None:
            self.environment.events.request.fire(
                request_type="stream",
                name=name,
                response_time=seconds * 1000,
                response_length=length,
                exception=failure,
                context={},
            )


class IdeUser(StreamingUser):
    traffic_class = TrafficClass.IDE
    weight = 70


class ChatUser(StreamingUser):
    traffic_class = TrafficClass.CHAT
    weight = 20


class ReviewUser(StreamingUser):
    traffic_class = TrafficClass.REVIEW
    weight = 5


class SummaryUser(StreamingUser):
    traffic_class = TrafficClass.SUMMARY
    weight = 5


# A shape takes the number of users away from Locust's own options, so there is one only when it is asked for.
if os.environ.get("LOADTEST_SHAPE"):

    class Shaped(LoadTestShape):
        """LOADTEST_SHAPE with LOADTEST_USERS where the shape is 1, over LOADTEST_DURATION_S."""

        curve = staticmethod(SHAPES[os.environ["LOADTEST_SHAPE"]])
        users = int(os.environ.get("LOADTEST_USERS", "4"))
        duration_s = float(os.environ.get("LOADTEST_DURATION_S", "60"))

        def tick(self) -> tuple[int, float] | None:
            elapsed = self.get_run_time() / self.duration_s  # type: ignore[no-untyped-call]  # its library leaves it untyped
            return None if elapsed >= 1 else (round(self.users * self.curve(elapsed)), float(self.users))

    __all__.append("Shaped")
