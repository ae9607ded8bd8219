"""The HTTP side of KVPulse: authenticate, render, classify, admit, lease an engine, stream its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from ray import serve

from app.config.schema import AppConfig
from app.decisions.admission import Guard
from app.errors import InvalidRequestError, NotFoundError, UnavailableError
from app.requests import RequestPath
from app.state.engines import EnginesState
from app.state.quotas import Quotas
from deployments.admitted import Admitted
from deployments.answers import Dispatch, EngineResponse, Suspects
from deployments.application_secret import RayStore, feed_keys
from deployments.board_client import BoardClient
from deployments.board_reporter import BoardReporter
from deployments.explanation import explanation
from deployments.forwarding import EngineConnections
from deployments.gate import Gate
from deployments.http_errors import openai_shaped_app
from deployments.incoming import Incoming, Intake
from deployments.ingress_spec import IngressSpec
from deployments.ingress_telemetry import IngressTelemetry
from deployments.leases import Lease
from deployments.live_feed import LiveFeed
from deployments.live_page import LivePage, page_settings
from deployments.path_replicas import PathReplicas, follow_replicas
from deployments.pulse_messages import PulseMessages
from deployments.pulse_subscriber import PulseSubscriber
from deployments.readiness import Readiness
from deployments.rendering import CHAT, COMPLETIONS, RESPONSES, OpenAIRoute, Rendered, Renderer
from deployments.request_record import Observer, log_request, observed_by
from deployments.telemetry import Telemetry
from deployments.tracing import RequestTrace, tracing_of_replica
from deployments.triage import Triage

# Serve copies the app and the class when it decorates: all that they use stands above them.

ROUTES = (CHAT, COMPLETIONS, RESPONSES)

http = openai_shaped_app()


def _gate(spec: IngressSpec, replicas: Mapping[RequestPath, PathReplicas], observe: Observer) -> Gate:
    config, clock = spec.config, time.monotonic
    block_sizes = {path: engines.block_size for path, engines in spec.engines.items()}
    chunks = {path: engines.chunk_tokens for path, engines in spec.engines.items()}
    return Gate(
        Guard(config.admission, block_sizes, chunks, config.routing.stale_after_s, clock),
        Quotas(clock),
        readings={path: known.readings for path, known in replicas.items()},
        slots_per_replica={path: engines.slots_per_replica for path, engines in spec.engines.items()},
        assumed_output_tokens=config.routing.assumed_output_tokens,
        clock=clock,
        observe=observe,
    )


def _measures(
    config: AppConfig,
    telemetry: Telemetry,
    replicas: Mapping[RequestPath, PathReplicas],
    states: Callable[[], Mapping[RequestPath, EnginesState]],
) -> IngressTelemetry:
    stale = {path: known.stale_count for path, known in replicas.items()}
    assumed_tokens = config.routing.assumed_output_tokens
    return IngressTelemetry(telemetry, config.telemetry.ttft_objective_s, assumed_tokens, states, stale)


@serve.ingress(http)
class Ingress:
    """One ingress replica. Holds no state that a request needs to outlive it."""

    async def __init__(self, spec: IngressSpec, hot: Any, cold: Any, board: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        self._spec = spec
        self._config = spec.config
        self._engines = {RequestPath.HOT: hot, RequestPath.COLD: cold}
        context = serve.get_replica_context()
        keys = feed_keys(context.app_name, RayStore())
        self._subscriber = PulseSubscriber(PulseMessages(keys.signing))
        self._replicas = follow_replicas(spec.config.routing, self._engines, keys.hashing, self._subscriber)
        self._readiness = Readiness(("HotEngine", "ColdEngine"))
        self._connections = EngineConnections(spec.config.limits.engine_silence_timeout_s)
        self._suspects = Suspects()
        self._renderer = await Renderer.load(spec.engine_arguments, spec.frontend_arguments)
        self._intake = Intake(spec.config, spec.key_ring, self._renderer.served_names)
        self._triage = Triage(spec.config, spec.context_tokens, self._replicas, time.monotonic)
        who = ("kvpulse-ingress", context.replica_id.unique_id)
        self._tracing = tracing_of_replica(spec.config.telemetry, *who)
        self._telemetry = Telemetry.of_replica(spec.config.telemetry, *who, spec.config.model.name)
        self._measured = _measures(spec.config, self._telemetry, self._replicas, lambda: self._gate.states)
        board_client = BoardClient(board)
        reporter = BoardReporter(context.replica_id.unique_id, board_client.report, lambda: self._gate.states)
        self._observe = observed_by(log_request, self._measured.observe, reporter.observe)
        self._gate = _gate(spec, self._replicas, self._observe)
        live = spec.config.live_page
        self._live_feed = LiveFeed(board_client.update, page_settings(spec.config), live.max_listeners)
        self._live_page = LivePage(self._live_feed, live.embed_in)
        self._ticking = asyncio.create_task(self._gate.run())
        self._reporting = asyncio.create_task(reporter.run())

    async def __del__(self) -> None:
        """Serve calls this once the replica's requests have drained."""
        if hasattr(self, "_ticking"):
            self._ticking.cancel()
            self._reporting.cancel()
            self._live_feed.close()
        if hasattr(self, "_subscriber"):
            self._subscriber.close()
        if hasattr(self, "_telemetry"):
            await asyncio.to_thread(self._telemetry.shutdown)
            await asyncio.to_thread(self._tracing.shutdown)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """`IngressStats`, for the policy."""
        return self._measured.stats()

    @http.post(CHAT.url)
    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(CHAT, request)

    @http.post(COMPLETIONS.url)
    async def completions(self, request: Request) -> Response:
        return await self._generate(COMPLETIONS, request)

    @http.post(RESPONSES.url)
    async def responses(self, request: Request) -> Response:
        return await self._generate(RESPONSES, request)

    @http.post("/tokenize")
    async def tokenize(self, request: Request) -> Response:
        self._intake.authenticate(request)
        return JSONResponse(await self._renderer.tokenize(await self._intake.named_body(request)))

    @http.post("/detokenize")
    async def detokenize(self, request: Request) -> Response:
        self._intake.authenticate(request)
        return JSONResponse(await self._renderer.detokenize(await self._intake.named_body(request)))

    @http.get("/v1/models")
    async def models(self, request: Request) -> Response:
        self._intake.authenticate(request)
        return JSONResponse(await self._renderer.models())

    @http.get("/v1/models/{model:path}")
    async def model(self, model: str, request: Request) -> Response:
        self._intake.authenticate(request)
        for card in (await self._renderer.models())["data"]:
            if card["id"] == model:
                return JSONResponse(card)
        raise NotFoundError(f"The model `{model}` does not exist.", param="model", code="model_not_found")

    @http.get("/health")
    async def health(self) -> Response:
        """The ingress is alive. Says nothing of the engines."""
        return JSONResponse({"status": "alive"})

    @http.get("/ready")
    async def ready(self) -> Response:
        """Every path has a ready engine."""
        waiting = await asyncio.to_thread(self._readiness.waiting_for)
        if waiting:
            raise UnavailableError(f"not ready: {waiting}", code="not_ready", retry_after_s=1.0)
        return JSONResponse({"status": "ready"})

    @http.get("/pulse")
    async def live_page(self) -> Response:
        """The page alone, which holds no data."""
        return self._live_page.page()

    @http.get("/pulse/events")
    async def live_events(self, request: Request) -> Response:
        return self._live_page.events(request, self._intake.authenticate(request))

    @http.get("/pulse/{name}")
    async def live_page_file(self, name: str) -> Response:
        return self._live_page.asset(name)

    @http.post("/v1/explain")
    async def explain(self, request: Request) -> Response:
        """What would become of this chat, completion or response, without running it."""
        client = self._intake.authenticate(request)
        asked = await self._intake.read(request, client)
        route = next((route for route in ROUTES if route.prompt_field in asked.body), CHAT)
        rendered = await self._render(route, asked)
        triaged = self._triage.look(rendered, client, asked.session_label)
        verdict = self._gate.explain(triaged, client, asked.timeout_s)
        replicas = self._replicas[verdict.decision.engines]
        routing = replicas.explain(replicas.request(rendered.prompt, triaged.hashed))
        return JSONResponse(explanation(triaged, verdict, *routing))

    async def _generate(self, route: OpenAIRoute, request: Request) -> Response:
        arrived_s = time.monotonic()
        client = self._intake.authenticate(request)
        trace = self._tracing.begin(route, request.headers, self._config.model.name)
        try:
            asked = await self._intake.read(request, client)
            rendered = await self._render(route, asked)
            triaged = self._triage.take(rendered, client, asked.session_label)
            trace.triaged(triaged)
            self._measured.arrived(triaged)
            admitted = self._gate.admit(triaged, client, asked.timeout_s, asked.told)
        except BaseException as error:
            trace.refused(error)
            raise
        # From here to the response's own first step nothing is awaited: it closes what was admitted.
        return EngineResponse(self._dispatch(route, rendered, admitted, asked, arrived_s, trace))

    async def _render(self, route: OpenAIRoute, asked: Incoming) -> Rendered:
        rendered = await self._renderer.render(route, asked.body, asked.forced_path)
        most = self._config.limits.max_sequences
        if rendered.features.sequences > most:
            raise InvalidRequestError(f"prompts times `n` is above {most} (limits.max_sequences)", param="n")
        return rendered

    def _dispatch(
        self,
        route: OpenAIRoute,
        rendered: Rendered,
        admitted: Admitted,
        asked: Incoming,
        arrived_s: float,
        trace: RequestTrace,
    ) -> Dispatch:
        triaged, cap = admitted.triaged, admitted.decision.output_cap_tokens

        def body(engines: RequestPath) -> dict[str, Any]:
            priority = triaged.priority if self._spec.engines[engines].heeds_priority else None
            return rendered.engine_body(route, priority, cap)

        def lease(engines: RequestPath, excluded: frozenset[str]) -> Lease:
            replicas = self._replicas[engines]
            request = replicas.request(rendered.prompt, triaged.hashed)
            answer_tokens = cap or triaged.features.expected_output_tokens(self._config.routing.assumed_output_tokens)
            routed = replicas.routed(msgspec.structs.replace(request, excluded=excluded), answer_tokens)
            return Lease(self._engines[engines], engines, routed, self._config.limits.lease_timeout_s)

        return Dispatch(
            route,
            admitted,
            body,
            lease,
            self._connections,
            self._suspects,
            asked.timeout_s,
            arrived_s,
            trace.observing(self._observe),
            trace_headers=trace.headers,
        )
