"""The guard under pressure: debits, reports, silence, storms, abuse."""

from __future__ import annotations

from itertools import pairwise

from app.decisions.admission import Action, Ask
from app.requests import Outcome, Refusal, RequestFeatures, RequestPath
from app.state.watermarks import Level
from tests.fakes import FakeClock
from tests.unit.app.decisions.guards import COLD, HOT, admit, guard_of, nothing_is_held, report, started


def test_usage_that_swings_around_a_watermark_does_not_switch_decisions_on_and_off() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    actions = []
    for tick in range(600):
        report(guard, COLD, kv_usage_ratio=0.91 if tick % 2 else 0.87)
        admission = admit(guard, COLD, prompt=3000)
        actions.append(admission.decision.action)
        if admission.reservation is not None:
            admission.reservation.release()
        clock.advance(0.1)
    assert sum(before is not after for before, after in pairwise(actions)) == 1
    assert actions[-1] is Action.REFUSE


def test_a_burst_is_refused_by_its_own_debits_before_any_report_shows_it() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    decisions = [admit(guard, COLD, prompt=3000).decision for _ in range(100)]
    assert [decision.action for decision in decisions].count(Action.START) == 3  # 9,000 of 10,000 tokens
    assert {decision.reason for decision in decisions[3:]} == {Refusal.KV_CACHE_HIGH}


def test_a_report_takes_the_place_of_debits() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    for _ in range(3):
        started(guard, COLD, prompt=3000)
    report(guard, COLD, kv_usage_ratio=0.3)  # they shared most of their blocks
    assert admit(guard, COLD, prompt=3000).decision.action is Action.START


def test_after_a_mass_abort_the_level_falls_at_once() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    held = [started(guard, COLD, prompt=3000) for _ in range(3)]
    assert guard.states()[COLD].level is Level.REFUSE_LONG
    for reservation in held:
        reservation.release(Outcome.CANCELLED)
    assert guard.states()[COLD].level is Level.NORMAL
    assert nothing_is_held(guard)


def test_pressure_grows_from_alert_to_refusal_to_compression_to_shedding_and_back() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    started(guard, COLD)
    seen = []
    for usage in [0.8, 0.86, 0.91, 0.96, *[0.96] * 6, 0.89, 0.84, 0.79]:
        report(guard, COLD, kv_usage_ratio=usage)
        decision = admit(guard, COLD, prompt=3000 if usage < 0.95 else 100, output=5000).decision
        seen.append((decision.level.name, str(decision.reason), decision.output_cap_tokens))
        clock.advance(1.0)
    assert list(dict.fromkeys(seen)) == [
        ("NORMAL", "home", None),
        ("ALERT", "home", None),
        ("REFUSE_LONG", "kv_cache_high", None),
        ("COMPRESS", "home", 256),
        ("SHED", "load_shed", None),
    ]
    assert [level for level, *_ in seen[-3:]] == ["REFUSE_LONG", "ALERT", "NORMAL"]


def test_a_feed_that_falls_silent_holds_the_level_for_a_while_and_refuses_nobody_after_it() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, COLD, kv_usage_ratio=0.92)
    reasons = []
    for tenth in range(1, 200):
        clock.advance(0.1)
        report(guard, COLD, age_s=tenth / 10, kv_usage_ratio=0.92)
        admission = admit(guard, COLD, prompt=3000)
        reasons.append(str(admission.decision.reason))
        if admission.reservation is not None:
            admission.reservation.release()
    assert set(reasons[:100]) == {"kv_cache_high"}
    assert set(reasons[115:]) == {"home"}
    assert guard.states()[COLD].level is Level.ALERT


def test_silence_on_an_idle_path_is_not_taken_for_a_full_one() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, COLD, kv_usage_ratio=0.1)
    for _ in range(100):
        clock.advance(1.0)
        report(guard, COLD, age_s=1e9, kv_usage_ratio=0.1)
        started(guard, COLD, prompt=9000).release()


def test_a_preemption_storm_refuses_long_prompts_while_hot_goes_on_and_passes() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    reasons: dict[RequestPath, list[str]] = {HOT: [], COLD: []}
    for tenth in range(900):
        storm = min(tenth, 300)  # 10 a second for half a minute
        for path, seen in reasons.items():
            report(guard, path, kv_usage_ratio=0.32, preemptions=storm)
            admission = admit(guard, path, prompt=3000, priority=0)
            seen.append(str(admission.decision.reason))
            if admission.reservation is not None:
                admission.reservation.release(Outcome.ANSWERED)
        clock.advance(0.1)
    assert "preemption_storm" in reasons[COLD][:300]
    assert set(reasons[COLD][-300:]) == {"home"}
    assert set(reasons[HOT]) == {"home"}


def test_a_huge_max_tokens_is_no_reason_to_refuse_and_is_cut_when_it_matters() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    assert admit(guard, COLD, output=10**9).decision.output_cap_tokens is None
    assert guard.states()[COLD].level is Level.NORMAL
    report(guard, COLD, kv_usage_ratio=0.96)
    assert admit(guard, COLD, output=10**9).decision.output_cap_tokens == 256


def test_a_request_with_many_sequences_is_debited_for_all_of_them() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    guard.admit(Ask(RequestFeatures(100, 10, sequences=95), COLD, COLD.priority()))
    assert guard.states()[COLD].level is Level.COMPRESS
