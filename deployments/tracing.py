"""One span per request in the ingress; the engine's own span, which vLLM makes, is its child.

The context travels as W3C `traceparent`, from a client that sends one to the engine. No span says anything of a
prompt or an answer but their tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.config.telemetry import TelemetryConfig
from app.errors import ApiError
from app.requests import Outcome
from deployments.http_errors import UNFORESEEN
from deployments.rendering import COMPLETIONS, OpenAIRoute
from deployments.request_record import Observer, RequestRecord
from deployments.telemetry import SCOPE, otlp_endpoint, replica_resource, signal_url
from deployments.triage import Triaged

_W3C = TraceContextTextMapPropagator()
_NO_FAULT_OF_OURS = frozenset((Outcome.ANSWERED, Outcome.CANCELLED, Outcome.CLIENT_ERROR))


class RequestTrace:
    """The trace of one request; this one is none.

    `headers` go with the request to its engine.
    """

    headers: Mapping[str, str] = {}

    def triaged(self, triaged: Triaged) -> None: ...

    def refused(self, error: BaseException) -> None:
        """It has ended without having been let in, whatever ended it."""

    def observing(self, observe: Observer) -> Observer:
        """`observe`, which ends the trace too."""
        return observe


NO_TRACE = RequestTrace()


class Tracing:
    """Makes the traces of a process; this one makes none."""

    def begin(self, route: OpenAIRoute, headers: Mapping[str, str], model: str) -> RequestTrace:
        """A request has come.

        Args:
            headers: the client's, which may carry its own trace.
            model: the name clients use.
        """
        return NO_TRACE

    def shutdown(self) -> None:
        """Export what has ended."""


class OtlpTracing(Tracing):
    """Samples as the client has, else by chance.

    Args:
        sample_ratio: of the requests whose client has not decided.
        processor: gets the spans that have ended.
    """

    def __init__(self, resource: Resource, sample_ratio: float, processor: SpanProcessor) -> None:
        sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SCOPE)

    def begin(self, route: OpenAIRoute, headers: Mapping[str, str], model: str) -> RequestTrace:
        operation = "text_completion" if route == COMPLETIONS else "chat"
        span = self._tracer.start_span(
            f"{operation} {model}",
            _W3C.extract(headers),
            SpanKind.SERVER,
            {"gen_ai.operation.name": operation, "gen_ai.request.model": model, "http.route": route.url},
        )
        return _SpanOfRequest(span)

    def shutdown(self) -> None:
        self._provider.shutdown()


class _SpanOfRequest(RequestTrace):
    def __init__(self, span: Span) -> None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(span))
        self.headers = carrier
        self._span = span

    def triaged(self, triaged: Triaged) -> None:
        found = triaged.found
        self._span.set_attributes(
            {
                "kvpulse.path": found.path,
                "kvpulse.reason": found.reason,
                "kvpulse.prompt_tokens": triaged.features.prompt_tokens,
            }
        )

    def refused(self, error: BaseException) -> None:
        if isinstance(error, ApiError):
            self._end(str(error.code))
        else:
            self._end(Outcome.CANCELLED if isinstance(error, asyncio.CancelledError) else UNFORESEEN)

    def observing(self, observe: Observer) -> Observer:
        def observe_and_end(record: RequestRecord) -> None:
            observe(record)
            self._span.set_attributes(_attributes(record))
            self._end(record.outcome)

        return observe_and_end

    def _end(self, outcome: str) -> None:
        self._span.set_attribute("kvpulse.outcome", outcome)
        if outcome not in _NO_FAULT_OF_OURS:
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _attributes(record: RequestRecord) -> dict[str, Any]:
    told: dict[str, Any] = {
        "kvpulse.engines": record.engines,
        "kvpulse.replica": record.replica,
        "kvpulse.waited_s": record.waited_s,
    }
    if record.routing is not None:
        told["kvpulse.routing"] = record.routing.reason
        told["kvpulse.matched_tokens"] = record.routing.matched_tokens
    if record.ttft_s is not None:
        told["kvpulse.ttft_s"] = record.ttft_s
    if record.used_tokens is not None:
        told["kvpulse.used_tokens"] = record.used_tokens
    return told


def tracing_of_replica(config: TelemetryConfig, service: str, replica: str) -> Tracing:
    """What the configuration asks for: nothing is made without a collector."""
    endpoint = otlp_endpoint(config)
    if endpoint is None:
        return Tracing()
    exporter = OTLPSpanExporter(endpoint=signal_url(endpoint, "traces"))
    return OtlpTracing(replica_resource(service, replica), config.trace_sample_ratio, BatchSpanProcessor(exporter))


def engine_trace_arguments(config: TelemetryConfig) -> dict[str, str]:
    """Arguments by which vLLM exports its own span of each request."""
    endpoint = otlp_endpoint(config)
    return {} if endpoint is None else {"otlp_traces_endpoint": signal_url(endpoint, "traces")}
