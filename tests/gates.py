"""A gate on a simulated clock, with replicas that report what a test tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.config.admission import AdmissionConfig
from app.config.keys import Client, Quota
from app.decisions.admission import Guard
from app.decisions.classifier import Classification
from app.decisions.routing import RoutingRequest
from app.requests import RequestFeatures, RequestPath
from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from app.state.quotas import Quotas
from deployments.admitted import Admitted
from deployments.gate import Gate
from deployments.request_record import Observer, log_request
from deployments.triage import Triaged
from tests.fakes import FakeClock

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
CLIENT = Client("someone", frozenset())


def triaged(path: RequestPath = HOT, prompt: int = 10, output: int | None = 10, may_move: bool = False) -> Triaged:
    found = Classification(path, "short_prompt_and_output", path.priority())
    return Triaged(RequestFeatures(prompt, output), found, RoutingRequest(prompt, (), 16), may_move)


class Door:
    """A gate before one hot and one cold replica of 10,000 tokens of cache each.

    Args:
        slots: requests that fit on each replica.
        observe: is told of refusals.
        rules: of admission.
    """

    def __init__(self, slots: int = 100, observe: Observer = log_request, **rules: Any) -> None:
        self.clock = FakeClock()
        block_size, chunk_tokens = {HOT: 16, COLD: 16}, {HOT: 128, COLD: 1024}
        self.guard = Guard(AdmissionConfig.model_validate(rules), block_size, chunk_tokens, 1.0, self.clock)
        self.quotas = Quotas(self.clock)
        self.replicas: dict[RequestPath, list[ReplicaReading] | None] = {}
        self.gate = Gate(
            self.guard,
            self.quotas,
            {HOT: lambda: self.replicas[HOT], COLD: lambda: self.replicas[COLD]},
            {HOT: slots, COLD: slots},
            assumed_output_tokens=256,
            clock=self.clock,
            observe=observe,
        )
        self.report(HOT)
        self.report(COLD)
        self.gate.tick()

    def report(self, engines: RequestPath, **load: Any) -> None:
        self.replicas[engines] = [ReplicaReading("only", ReplicaLoad(**{"kv_blocks": 625, **load}), 0.0)]

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.gate.tick()

    def admit(
        self,
        path: RequestPath = HOT,
        client: Client = CLIENT,
        timeout_s: float | None = None,
        told: Mapping[str, str] | None = None,
        **given: Any,
    ) -> Admitted:
        return self.gate.admit(triaged(path, **given), client, timeout_s, told or {})

    @property
    def empty(self) -> bool:
        """Nothing is held anywhere."""
        states = self.guard.states().values()
        held = [(state.used_slots, state.waiting, sum(state.lent.values()), state.least_urgent) for state in states]
        return held == [(0, 0, 0, None)] * 2 and not self.quotas.running(CLIENT.name)


def client_with(**quota: int) -> Client:
    return Client(CLIENT.name, frozenset(), quota=Quota(**quota))
