"""Who passes, who waits, who is refused and what for, and that nothing stays booked."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import ApiError, OverloadedError, TimeoutExceededError, UnavailableError
from app.requests import Outcome, Refusal, RequestPath
from deployments.admitted import Admitted
from tests.gates import COLD, HOT, WARM, Door, client_with, triaged


def close(*admitted: Admitted, outcome: Outcome = Outcome.ANSWERED, error: ApiError | None = None) -> None:
    for each in admitted:
        each.close(outcome, used_tokens=None, served=True, error=error)


async def test_with_room_a_request_passes_without_waiting_for_anything() -> None:
    door = Door()
    admitted = door.admit(HOT)
    with pytest.raises(StopIteration) as passed:
        admitted.slot().send(None)  # the coroutine ends in its first step
    assert passed.value.value is HOT
    assert (admitted.waited_s, admitted.started) == (0.0, True)
    close(admitted)
    assert door.empty


async def test_who_finds_no_room_starts_when_another_ends_and_tells_how_long_it_waited() -> None:
    door = Door(slots=1)
    first, second = door.admit(), door.admit()
    waiting = asyncio.create_task(second.slot())
    await asyncio.sleep(0)
    door.pass_time(2.5)
    assert not waiting.done() and not second.started
    close(first)
    assert await waiting is HOT
    assert second.waited_s == pytest.approx(2.5)
    close(second)
    assert door.empty


async def test_room_that_a_report_shows_wakes_those_who_wait() -> None:
    door = Door(slots=1)
    door.report(HOT, running_requests=1)  # another ingress replica's
    door.gate.tick()
    admitted = door.admit()
    assert not admitted.started
    door.report(HOT)
    door.gate.tick()
    assert await admitted.slot() is HOT
    close(admitted)
    assert door.empty


async def test_while_serve_has_named_no_replicas_requests_pass_and_wait_for_their_lease() -> None:
    door = Door()
    door.replicas[HOT] = None
    assert door.admit(HOT).started


async def test_without_a_replica_requests_wait_for_one() -> None:
    door = Door()
    door.replicas[HOT] = []
    door.gate.tick()
    admitted = door.admit()
    assert not admitted.started
    door.report(HOT)
    door.gate.tick()
    assert await admitted.slot() is HOT


@pytest.mark.parametrize(
    ("timeout_s", "kind", "status"), [(None, OverloadedError, 429), (2.0, TimeoutExceededError, 408)]
)
async def test_nobody_waits_past_the_deadline(timeout_s: float | None, kind: type[ApiError], status: int) -> None:
    door = Door(slots=1, queues={"hot": {"deadline_s": 3.0}})
    running, late = door.admit(), door.admit(timeout_s=timeout_s)
    door.pass_time(3.1)
    with pytest.raises(kind) as refused:
        await late.slot()
    assert (refused.value.status, refused.value.code) == (status, Refusal.DEADLINE_PASSED)
    late.close(Outcome.CANCELLED, None, served=False, error=refused.value)
    assert door.gate.refusals == {(HOT, Refusal.DEADLINE_PASSED): 1}
    close(running)
    assert door.empty


async def test_a_wait_that_is_given_up_leaves_nothing_and_the_next_one_starts() -> None:
    door = Door(slots=1)
    running, leaving, staying = door.admit(), door.admit(), door.admit()
    waiting = asyncio.create_task(leaving.slot())
    await asyncio.sleep(0)
    waiting.cancel()
    close(leaving, outcome=Outcome.CANCELLED)
    close(running)
    assert await staying.slot() is HOT
    close(staying)
    assert door.empty


async def test_a_slot_that_comes_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    door = Door(slots=1)
    running, leaving, staying = door.admit(), door.admit(), door.admit()
    waiting = asyncio.create_task(leaving.slot())
    await asyncio.sleep(0)
    waiting.cancel()
    close(running)  # gives the slot to the one who is about to be closed
    assert leaving.started and not staying.started
    close(leaving, outcome=Outcome.CANCELLED)
    assert await staying.slot() is HOT
    close(staying)
    assert door.empty


async def test_a_refusal_says_why_is_counted_and_holds_nothing() -> None:
    door = Door()
    door.report(COLD, kv_usage_ratio=0.93)
    door.gate.tick()
    with pytest.raises(OverloadedError) as refused:
        door.admit(COLD, prompt=5000, told={"x-kvpulse-ignored": "priority"})
    error = refused.value
    assert (error.status, error.code) == (429, "kv_cache_high")
    assert error.headers()["x-kvpulse-admission"] == "kv_cache_high"
    assert error.headers()["x-kvpulse-path"] == "cold"
    assert error.headers()["x-kvpulse-ignored"] == "priority"
    assert int(error.headers()["retry-after"]) >= 1
    assert door.gate.refusals == {(COLD, Refusal.KV_CACHE_HIGH): 1}
    assert door.empty
    assert door.admit(HOT).started, "hot traffic goes on"


async def test_a_full_line_refuses() -> None:
    door = Door(slots=1, queues={"hot": {"max_requests": 1, "max_tokens": 1000}})
    door.admit()
    door.admit()
    with pytest.raises(OverloadedError) as refused:
        door.admit()
    assert refused.value.code == "queue_full"


async def test_engines_that_fail_are_a_503_and_client_errors_are_not_their_failure() -> None:
    door = Door(breaker={"failures": 3})
    for _ in range(10):
        close(door.admit(HOT), outcome=Outcome.CLIENT_ERROR)
    for _ in range(3):
        close(door.admit(HOT), outcome=Outcome.ENGINE_FAILED)
    with pytest.raises(UnavailableError) as refused:
        door.admit(HOT)
    assert (refused.value.status, refused.value.code) == (503, "engines_failed")
    assert door.empty


async def test_warm_moves_to_cold_engines_when_its_own_are_crowded() -> None:
    door = Door()
    door.report(HOT, waiting_requests=20)
    door.pass_time(1.1)
    moved = door.admit(WARM, may_move=True)
    assert (await moved.slot(), moved.headers()["x-kvpulse-admission"]) == (COLD, "spilled")
    assert (moved.headers()["x-kvpulse-path"], moved.headers()["x-kvpulse-engines"]) == ("warm", "cold")


async def test_who_waits_for_engines_that_vanish_runs_on_the_others() -> None:
    door = Door(slots=2)
    running = [door.admit(), door.admit()]
    waiting = door.admit(may_move=True)
    door.replicas[HOT] = []
    door.gate.tick()
    assert await waiting.slot() is COLD
    close(*running, waiting)
    assert door.empty


async def test_under_pressure_a_cold_answer_is_shortened_and_its_client_told() -> None:
    door = Door()
    door.report(COLD, kv_usage_ratio=0.96)
    door.gate.tick()
    admitted = door.admit(COLD, prompt=100, output=2000)
    assert admitted.decision.output_cap_tokens == 256
    assert admitted.headers()["x-kvpulse-output-cap-tokens"] == "256"
    assert admitted.headers()["x-kvpulse-level"] == "compress"


async def test_the_least_urgent_gives_way_once_the_cache_is_exhausted_for_long() -> None:
    door = Door(breaker={"abort_after_s": 5, "abort_every_s": 5})
    aborted: list[tuple[str, ApiError]] = []
    for name, path in (("hot", HOT), ("oldest cold", COLD), ("younger cold", COLD)):
        door.admit(path).on_abort = lambda error, name=name: aborted.append((name, error))
    door.report(COLD, kv_usage_ratio=0.99, waiting_requests=1)
    door.pass_time(5.2)
    ((name, error),) = aborted
    assert name == "oldest cold"
    assert (error.status, error.code) == (503, "aborted_for_capacity")


async def test_quotas_refuse_with_what_is_left_and_answers_tell_it_too() -> None:
    door = Door()
    client = client_with(requests_per_minute=2, tokens_per_minute=1000)
    first = door.admit(client=client)
    assert first.headers()["x-ratelimit-remaining-requests"] == "1"
    assert first.headers()["x-ratelimit-remaining-tokens"] == "980"
    close(first, door.admit(client=client))
    with pytest.raises(OverloadedError) as refused:
        door.admit(client=client)
    assert refused.value.code == "requests_per_minute"
    assert refused.value.headers()["retry-after"] == "30"
    assert refused.value.headers()["x-ratelimit-remaining-requests"] == "0"
    assert door.gate.refusals == {(HOT, Refusal.REQUESTS_PER_MINUTE): 1}
    assert door.empty


async def test_what_the_guard_refuses_costs_its_key_nothing() -> None:
    door = Door()
    client = client_with(requests_per_minute=1, tokens_per_minute=100_000, concurrent_requests=1)
    door.report(COLD, kv_usage_ratio=0.93)
    door.gate.tick()
    for _ in range(5):
        with pytest.raises(OverloadedError, match="KV cache"):
            door.admit(COLD, client=client, prompt=5000)
    assert door.admit(HOT, client=client).headers()["x-ratelimit-remaining-tokens"] == "99980"


@pytest.mark.parametrize(
    ("used_tokens", "served", "remaining"), [(400, True, 600), (None, True, 500), (None, False, 1000)]
)
async def test_a_key_pays_for_what_was_used(used_tokens: int | None, served: bool, remaining: int) -> None:
    door = Door()
    client = client_with(tokens_per_minute=1000)
    admitted = door.admit(client=client, prompt=100, output=400)
    admitted.close(Outcome.ANSWERED, used_tokens, served, None)
    told = door.admit(client=client, prompt=0, output=0).headers()
    assert told["x-ratelimit-remaining-tokens"] == str(remaining)


async def test_a_missing_limit_is_charged_as_the_assumed_one() -> None:
    door = Door()
    told = door.admit(client=client_with(tokens_per_minute=1000), prompt=44, output=None).headers()
    assert told["x-ratelimit-remaining-tokens"] == "700"


@pytest.mark.parametrize("path", [HOT, WARM, COLD])
async def test_explaining_says_what_then_happens_and_books_nothing(path: RequestPath) -> None:
    door = Door(slots=1, queues={name: {"max_requests": 1, "max_tokens": 10_000} for name in ("hot", "warm", "cold")})
    client = client_with(requests_per_minute=3)
    seen = []
    for _ in range(4):
        for _ in range(3):
            verdict = door.gate.explain(triaged(path), client, None)
        seen.append(str(verdict.quota.reason or verdict.decision.action))
        try:
            told = door.admit(path, client=client).started
        except OverloadedError as error:
            told = error.code
        assert told == {"start": True, "wait": False, "refuse": "queue_full"}.get(seen[-1], seen[-1])
    assert seen == ["start", "wait", "refuse", "refuse"]


async def test_after_a_mass_cancel_every_count_is_zero() -> None:
    door = Door(slots=4)
    paths = [HOT, WARM, COLD] * 40
    admitted = [door.admit(path, may_move=True) for path in paths]
    tasks = [asyncio.create_task(each.slot()) for each in admitted]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in reversed(admitted):
        each.close(Outcome.CANCELLED, None, served=False, error=None)
    assert door.empty
    assert not door.gate.refusals


async def test_what_a_prompt_has_left_to_compute_makes_no_request_more_or_less_worth_keeping() -> None:
    """Engines take short prompts first; whom to shed and whom to abort is a matter of the key's priority and of age."""
    door = Door(watermarks={"shed_after_s": 1}, breaker={"abort_after_s": 5})
    aborted: list[str] = []
    for name, prompt in (("oldest", 100), ("longest", 3000)):
        door.admit(COLD, prompt=prompt).on_abort = lambda error, name=name: aborted.append(name)
    door.report(COLD, kv_usage_ratio=0.99, waiting_requests=1)
    door.pass_time(2.0)
    with pytest.raises(OverloadedError) as refused:
        door.admit(COLD, prompt=100)
    assert refused.value.code == "load_shed"
    door.pass_time(3.2)
    assert aborted == ["oldest"]
