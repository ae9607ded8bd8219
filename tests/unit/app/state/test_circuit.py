"""A circuit opens on engine failures only, and closes through a probe."""

from __future__ import annotations

import pytest

from app.config.admission import BreakerConfig
from app.requests import Outcome
from app.state.circuit import Circuit, CircuitState
from tests.fakes import FakeClock

RULES = BreakerConfig(failures=3, open_s=5.0)


def fail(circuit: Circuit, times: int = 1) -> None:
    for _ in range(times):
        circuit.end(Outcome.ENGINE_FAILED, circuit.begin())


def opened(clock: FakeClock) -> Circuit:
    circuit = Circuit(RULES, clock)
    fail(circuit, 3)
    return circuit


def test_it_opens_on_failures_in_a_row() -> None:
    circuit = Circuit(RULES, FakeClock())
    fail(circuit, 2)
    assert circuit.takes_requests
    fail(circuit)
    assert (circuit.state, circuit.takes_requests, circuit.retry_after_s) == (CircuitState.OPEN, False, 5.0)


def test_an_answer_between_failures_keeps_it_closed() -> None:
    circuit = Circuit(RULES, FakeClock())
    for _ in range(10):
        fail(circuit, 2)
        circuit.end(Outcome.ANSWERED, circuit.begin())
    assert circuit.state is CircuitState.CLOSED


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ERROR, Outcome.CANCELLED])
def test_what_clients_do_wrong_or_call_off_never_opens_it(outcome: Outcome) -> None:
    circuit = Circuit(RULES, FakeClock())
    for _ in range(1000):
        circuit.end(outcome, circuit.begin())
    assert circuit.state is CircuitState.CLOSED


def test_client_errors_do_not_hide_that_every_engine_fails() -> None:
    circuit = Circuit(RULES, FakeClock())
    for _ in range(3):
        circuit.end(Outcome.CLIENT_ERROR, circuit.begin())
        fail(circuit)
    assert circuit.state is CircuitState.OPEN


def test_after_a_while_one_request_at_a_time_may_probe() -> None:
    clock = FakeClock()
    circuit = opened(clock)
    clock.advance(5.0)
    assert (circuit.state, circuit.takes_requests) == (CircuitState.HALF_OPEN, True)
    assert circuit.begin()
    assert not circuit.takes_requests


def test_an_answered_probe_closes_it() -> None:
    clock = FakeClock()
    circuit = opened(clock)
    clock.advance(5.0)
    circuit.end(Outcome.ANSWERED, circuit.begin())
    fail(circuit, 2)
    assert circuit.state is CircuitState.CLOSED


def test_a_failed_probe_opens_it_anew() -> None:
    clock = FakeClock()
    circuit = opened(clock)
    clock.advance(5.0)
    fail(circuit)
    assert (circuit.state, circuit.retry_after_s) == (CircuitState.OPEN, 5.0)


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ERROR, Outcome.CANCELLED])
def test_a_probe_that_proved_nothing_lets_the_next_one_go(outcome: Outcome) -> None:
    clock = FakeClock()
    circuit = opened(clock)
    clock.advance(5.0)
    circuit.end(outcome, circuit.begin())
    assert (circuit.state, circuit.takes_requests) == (CircuitState.HALF_OPEN, True)


@pytest.mark.parametrize("outcome", [Outcome.ANSWERED, Outcome.ENGINE_FAILED])
def test_what_started_before_it_opened_neither_closes_it_nor_prolongs_it(outcome: Outcome) -> None:
    clock = FakeClock()
    circuit = Circuit(RULES, clock)
    early = circuit.begin()
    fail(circuit, 3)
    clock.advance(4.0)
    circuit.end(outcome, early)
    assert (circuit.state, circuit.retry_after_s) == (CircuitState.OPEN, 1.0)
