"""One span per request, in the client's trace, with decisions and without prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app.config.telemetry import TelemetryConfig
from app.requests import Outcome, Refusal
from deployments.refusals import refusal_error
from deployments.rendering import CHAT, COMPLETIONS
from deployments.request_record import RequestRecord
from deployments.tracing import NO_TRACE, OtlpTracing, RequestTrace, engine_trace_arguments, tracing_of_replica
from tests.gates import COLD, HOT, triaged
from tests.otlp_collector import OtlpCollector, plain
from tests.request_records import record

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    def __init__(self, ratio: float = 1.0) -> None:
        self.exported = InMemorySpanExporter()
        self.tracing = OtlpTracing(Resource.get_empty(), ratio, SimpleSpanProcessor(self.exported))

    def begin(self, sampled: str | None = None) -> RequestTrace:
        headers = {} if sampled is None else {"traceparent": f"00-{TRACE}-{SPAN}-{sampled}"}
        return self.tracing.begin(CHAT, headers, "a-model")

    @property
    def spans(self) -> list[Any]:
        return list(self.exported.get_finished_spans())


def test_a_request_is_one_span_with_what_was_decided() -> None:
    traced, told = Traced(), []  # type: Traced, list[RequestRecord]
    trace = traced.begin()
    trace.triaged(triaged(HOT, prompt=100))
    trace.observing(told.append)(record())
    (span,) = traced.spans
    assert len(told) == 1
    assert (span.name, span.kind, span.status.status_code) == ("chat a-model", SpanKind.SERVER, StatusCode.UNSET)
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.request.model"] == "a-model"
    wanted = {
        "path": "hot",
        "reason": "short_prompt_and_output",
        "prompt_tokens": 100,
        "engines": "hot",
        "replica": "r0",
        "routing": "prefix_hit",
        "matched_tokens": 64,
        "outcome": "answered",
        "ttft_s": 0.5,
        "waited_s": 0.25,
    }
    assert {name: span.attributes[f"kvpulse.{name}"] for name in wanted} == wanted


def test_the_clients_trace_goes_on_and_the_engine_is_below_the_span() -> None:
    traced = Traced(ratio=0.0)
    trace = traced.begin(sampled="01")
    trace.observing(lambda _: None)(record())
    (span,) = traced.spans
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert trace.headers["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"


def test_a_client_that_does_not_want_to_be_traced_is_not_and_the_engine_knows() -> None:
    traced = Traced(ratio=1.0)
    trace = traced.begin(sampled="00")
    trace.observing(lambda _: None)(record())
    assert traced.spans == []
    assert trace.headers["traceparent"].startswith(f"00-{TRACE}-") and trace.headers["traceparent"].endswith("-00")


def test_without_a_word_of_the_client_chance_decides() -> None:
    traced = Traced(ratio=0.25)
    for _ in range(400):
        traced.begin().observing(lambda _: None)(record())
    assert 40 <= len(traced.spans) <= 160


def test_a_refusal_ends_the_span_with_its_code() -> None:
    traced = Traced()
    trace = traced.begin()
    trace.refused(refusal_error(Refusal.QUEUE_FULL, COLD, 1.0))
    (span,) = traced.spans
    assert span.attributes["kvpulse.outcome"] == span.attributes["error.type"] == "queue_full"
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("error", "outcome"), [(RuntimeError(), "internal_error"), (asyncio.CancelledError(), Outcome.CANCELLED)]
)
def test_no_span_stays_open_whatever_ends_the_request(error: BaseException, outcome: str) -> None:
    traced = Traced()
    traced.begin().refused(error)
    (span,) = traced.spans
    assert span.attributes["kvpulse.outcome"] == outcome
    assert (span.status.status_code is StatusCode.ERROR) == (outcome != Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.CANCELLED, StatusCode.UNSET), (Outcome.ENGINE_FAILED, StatusCode.ERROR), ("timeout", StatusCode.ERROR)],
)
def test_who_leaves_is_no_error(outcome: str, status: StatusCode) -> None:
    traced = Traced()
    traced.begin().observing(lambda _: None)(record(outcome=outcome))
    assert traced.spans[0].status.status_code is status


def test_completions_are_named_as_such() -> None:
    traced = Traced()
    traced.tracing.begin(COMPLETIONS, {}, "a-model").observing(lambda _: None)(record())
    assert traced.spans[0].name == "text_completion a-model"


def test_without_a_collector_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    config = TelemetryConfig(trace_sample_ratio=1.0)
    trace = tracing_of_replica(config, "s", "r").begin(CHAT, {"traceparent": f"00-{TRACE}-{SPAN}-01"}, "m")
    assert trace is NO_TRACE and trace.headers == {}
    assert engine_trace_arguments(config) == {}
    told: list[RequestRecord] = []
    assert trace.observing(told.append) == told.append


def test_a_collector_gets_the_spans_over_http() -> None:
    collector = OtlpCollector()
    try:
        config = TelemetryConfig(otlp_endpoint=collector.url, trace_sample_ratio=1.0)
        tracing = tracing_of_replica(config, "kvpulse-ingress", "r1")
        tracing.begin(CHAT, {}, "a-model").observing(lambda _: None)(record())
        tracing.shutdown()
        (span,) = collector.spans()
        assert plain(span.attributes)["kvpulse.outcome"] == "answered"
        assert engine_trace_arguments(config) == {"otlp_traces_endpoint": f"{collector.url}/v1/traces"}
    finally:
        collector.close()
