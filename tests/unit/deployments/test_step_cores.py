"""One engine beside another one, whose claims are set by hand; the file that tells of them has tests of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from deployments.engine_activity import Claim, EngineActivity, Others
from deployments.step_cores import StepCores
from deployments.step_threads import SMALL_STEP_TOKENS, StepThreads
from deployments.step_turns import Turns
from tests.fakes import FakeClock

FULL = 256
PROMPT, DECODE = 100, 4


@dataclass
class Machine:
    """Of one other engine: what it claims now, and what the engine under test has claimed."""

    claim: Claim | None = None
    claims: list[Claim] = field(default_factory=list)
    busy: bool = False

    def others(self) -> Others:
        return Others(self.claim is not None, self.claim is Claim.URGENT, self.claim is Claim.TURN)

    def begin_step(self, claim: Claim) -> Others:
        self.claims.append(claim)
        self.busy = True
        return self.others()

    def end_step(self) -> None:
        self.busy = False


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def machine():
    return Machine()


def cores(machine: Machine, clock: FakeClock) -> StepCores:
    """With eight cores for prompts, two beside others. Its usual sizes have been computed before."""
    threads = StepThreads(prompt=8, decode=2, alone=8, full_step_tokens=FULL)
    for tokens in (DECODE, FULL):
        threads.of_step(tokens, Others())
    return StepCores(threads, machine, None, clock, clock)  # type: ignore[arg-type]  # stands in for the file


def cold_cores(machine: Machine, clock: FakeClock, time_ratio: float) -> StepCores:
    """Of an engine that yields; it has two threads beside others, for any step."""
    turns = Turns(time_ratio, clock, clock.advance)
    threads = StepThreads(prompt=2, decode=2, alone=8, full_step_tokens=FULL)
    return StepCores(threads, machine, turns, clock, clock)  # type: ignore[arg-type]  # stands in for the file


def threads_of(engine: StepCores, tokens: int) -> int:
    with engine.step(tokens) as threads:
        return threads


def test_prompts_are_urgent_and_decoding_is_not(machine, clock):
    hot = cores(machine, clock)
    for tokens in (PROMPT, SMALL_STEP_TOKENS, DECODE):
        threads_of(hot, tokens)
    assert machine.claims == [Claim.URGENT, Claim.NONE, Claim.NONE]


def test_prompts_take_every_core_but_from_an_engine_that_has_its_turn(machine, clock):
    hot = cores(machine, clock)
    found = []
    for machine.claim in (None, Claim.NONE, Claim.TURN):
        found.append(threads_of(hot, PROMPT))
    assert found == [8, 8, 2]


def test_an_engine_that_yields_takes_turns_beside_prompts_with_its_share_of_the_cores(machine, clock):
    cold = cold_cores(machine, clock, 0.25)
    machine.claim = Claim.URGENT
    began_s, begun_s = clock.now_s, []
    for _ in range(3):
        with cold.step(PROMPT) as threads:
            begun_s.append(clock.now_s - began_s)
            assert threads == 2
            clock.now_s += 2.0  # on each of two threads one second
    assert machine.claims == [Claim.TURN] * 3
    assert begun_s == pytest.approx([0, 4, 8], abs=0.02)


def test_a_prompt_that_comes_beside_an_engine_that_yields_is_left_alone_at_first(machine, clock):
    cold = cold_cores(machine, clock, 0.25)
    machine.claim = Claim.NONE
    with cold.step(PROMPT):
        clock.now_s += 2.0
        machine.claim = Claim.URGENT
    ended_s = clock.now_s
    threads_of(cold, PROMPT)
    assert clock.now_s - ended_s == pytest.approx(2, abs=0.02)  # one second of each thread is a quarter of four


@pytest.mark.parametrize("claim", [None, Claim.NONE])
def test_an_engine_that_yields_does_not_wait_where_no_prompt_is_computed(machine, clock, claim):
    cold = cold_cores(machine, clock, 0.01)
    machine.claim = claim
    began_s = clock.now_s
    for _ in range(3):
        threads_of(cold, PROMPT)
    assert (clock.now_s, machine.claims) == (began_s, [Claim.NONE] * 3)


def test_a_step_that_fails_is_over(machine, clock):
    cold = cold_cores(machine, clock, 0.05)
    machine.claim = Claim.URGENT
    with pytest.raises(MemoryError), cold.step(PROMPT):
        assert machine.busy
        clock.now_s += 8.0
        raise MemoryError
    assert not machine.busy
    began_s = clock.now_s
    threads_of(cold, PROMPT)
    assert clock.now_s > began_s, "the failed step has taken its time"


ENVIRONMENT = {"OMP_NUM_THREADS": "2", "KVPULSE_DECODE_THREADS": "1"}


def test_what_the_environment_says_is_what_the_engine_does(tmp_path):
    path = tmp_path / "engines"
    hot = StepCores.of_environment(ENVIRONMENT | {"KVPULSE_ALONE_THREADS": "8"}, FULL, path)
    assert isinstance(hot.activity, EngineActivity)
    assert hot.turns is None
    assert [threads_of(hot, tokens) for tokens in (DECODE, PROMPT)] == [8, 8]
    cold = {"KVPULSE_ALONE_THREADS": "8", "KVPULSE_TURNS": "0.4"}
    assert StepCores.of_environment(ENVIRONMENT | cold, FULL, path).turns is not None


def test_where_cores_are_not_shared_by_priority_nothing_is_told_and_the_threads_are_fixed(tmp_path):
    path = tmp_path / "engines"
    split = StepCores.of_environment(ENVIRONMENT, FULL, path)
    assert [threads_of(split, tokens) for tokens in (DECODE, PROMPT, FULL)] == [1, 2, 2]
    assert not path.exists()
