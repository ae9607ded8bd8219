"""Ten minutes of history: exact, bounded, with unknown apart from zero."""

from __future__ import annotations

import msgspec
import pytest

from app.requests import RequestPath
from app.state.board_reports import IngressReport, PathReport
from app.state.cache_condition import Health
from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from app.state.pulse_board import HISTORY_S, MOST_DECISIONS, MOST_EVENTS, MOST_REPLICAS, BoardState
from tests.fakes import FakeClock
from tests.live_page_rig import COLD, HOT, RULES, WARM, ScriptedBoard


@pytest.fixture
def board() -> ScriptedBoard:
    return ScriptedBoard()


def test_a_second_is_a_sample_of_what_engines_and_ingresses_told(board: ScriptedBoard) -> None:
    board.second()
    board.report(HOT, queued=3, level=1, ttft_s=0.2)
    board.second({HOT: 0.8}, kv_usage_ratio=0.5, running_requests=2, waiting_requests=1, queued_prefill_tokens=70)
    sample = board.state.update(None).samples[-1]
    hot = sample.engines[HOT]
    assert (hot.replicas, hot.stale_replicas, hot.hit_ratio, hot.kv_usage_ratio) == (2, 0, 0.8, 0.5)
    assert (hot.running_requests, hot.waiting_requests, hot.queued_prefill_tokens) == (4, 2, 140)
    assert (hot.queued_requests, hot.level, hot.signal) == (3, 1, "kv_usage_ratio")
    assert sample.paths is not None
    assert sample.paths[HOT].outcomes == {"answered": 1}
    assert (sample.paths[HOT].ttft_p50_s, sample.paths[WARM].ttft_p50_s) == (0.2, None)


def test_a_silent_replica_is_stale_and_its_path_goes_on_with_the_others(board: ScriptedBoard) -> None:
    board.second()
    board.silent.add("hot1f9e8d7c")
    board.second(running_requests=3)
    update = board.state.update(None)
    assert update.samples[-1].replicas["hot1f9e8d7c"] is None
    assert update.replicas["hot1f9e8d7c"].stale
    assert update.replicas["hot1f9e8d7c"].heard_s == 7.0
    hot = update.samples[-1].engines[HOT]
    assert (hot.replicas, hot.stale_replicas, hot.running_requests) == (2, 1, 3)


def test_a_path_of_which_nothing_is_heard_is_unknown(board: ScriptedBoard) -> None:
    board.silent = set(board.loads)
    board.second()
    update = board.state.update(None)
    cold = update.samples[-1].engines[COLD]
    assert (cold.hit_ratio, cold.kv_usage_ratio, cold.running_requests, cold.queued_requests, cold.level) == (None,) * 5
    assert update.conditions[COLD].health is Health.UNKNOWN
    assert update.samples[-1].paths is None


def test_an_ingress_that_stopped_reporting_queues_nothing_any_more(board: ScriptedBoard) -> None:
    board.report(queued=5)
    board.second()
    assert board.state.update(None).samples[-1].engines[HOT].queued_requests == 5
    for _ in range(6):
        board.second()
    assert board.state.update(None).samples[-1].engines[HOT].queued_requests is None


def test_ingresses_add_up_and_the_most_pressed_one_counts(board: ScriptedBoard) -> None:
    board.report(queued=2, level=0)
    first = next(iter(board.state._ingresses.values()))[1]
    board.state.report(msgspec.structs.replace(first, ingress="other"))
    board.report(queued=3, level=3)
    board.second()
    hot = board.state.update(None).samples[-1].engines[HOT]
    assert (hot.queued_requests, hot.level) == (5, 3)


def test_who_has_seen_an_update_gets_what_follows_it(board: ScriptedBoard) -> None:
    board.report()
    board.second()
    seen = board.state.update(None)
    board.report(outcome="queue_full")
    board.scaled(1, 2)
    board.second()
    board.second()
    following = board.state.update(seen.id)
    assert not following.whole
    assert [sample.at_s for sample in following.samples] == [seen.at_s + 1, seen.at_s + 2]
    assert [made.decision.outcome for made in following.decisions] == ["queue_full"]
    assert len(following.scaling) == 1
    assert board.state.update(following.id).samples == []


@pytest.mark.parametrize("after", [None, "", "nonsense", "another-3", "first-999", "first-x", "first-" + "1" * 5000])
def test_who_has_seen_nothing_of_this_board_gets_everything(board: ScriptedBoard, after: str | None) -> None:
    for _ in range(5):
        board.second()
    update = board.state.update(after)
    assert update.whole
    assert len(update.samples) == 5


def test_who_was_away_for_longer_than_the_history_gets_all_there_is(board: ScriptedBoard) -> None:
    board.second()
    seen = board.state.update(None)
    for _ in range(HISTORY_S + 50):
        board.second()
    update = board.state.update(seen.id)
    assert update.whole
    assert len(update.samples) == HISTORY_S


def test_whatever_it_is_told_it_stays_bounded(board: ScriptedBoard) -> None:
    for count in range(3 * HISTORY_S):
        board.report()
        board.scaled(count, count + 1)
        board.second()
    update = board.state.update(None)
    assert (len(update.samples), len(update.decisions), len(update.scaling)) == (HISTORY_S, MOST_DECISIONS, MOST_EVENTS)


def test_of_very_many_replicas_all_count_and_some_have_a_history() -> None:
    state = BoardState(RULES, "b", FakeClock(), FakeClock())
    readings = [ReplicaReading(f"r{n}", ReplicaLoad(running_requests=1), 0.1) for n in range(3 * MOST_REPLICAS)]
    state.tick({HOT: readings})
    update = state.update(None)
    assert update.samples[0].engines[HOT].running_requests == 3 * MOST_REPLICAS
    assert len(update.samples[0].replicas) == len(update.replicas) == MOST_REPLICAS


def test_a_replica_that_serve_has_stopped_is_gone_at_once_and_its_past_stays(board: ScriptedBoard) -> None:
    board.second()
    board.state.tick({HOT: [], COLD: None})
    update = board.state.update(None)
    assert update.replicas == {}
    assert update.samples[0].replicas
    assert update.samples[1].engines[HOT].replicas == 0


def test_a_cache_that_collapses_is_called_so(board: ScriptedBoard) -> None:
    for _ in range(90):
        board.second({HOT: 0.9, COLD: 0.8})
    assert board.state.update(None).conditions[HOT].health is Health.STEADY
    for _ in range(20):
        board.second({HOT: 0.2, COLD: 0.8})
    conditions = board.state.update(None).conditions
    assert (conditions[HOT].health, conditions[HOT].hit_ratio, conditions[HOT].usual_hit_ratio) == (
        Health.COLLAPSED,
        0.2,
        0.9,
    )
    assert conditions[COLD].health is Health.STEADY


def test_rates_and_times_are_of_the_last_ten_seconds(board: ScriptedBoard) -> None:
    for _ in range(10):
        board.state.report(IngressReport("i", {WARM: PathReport({"answered": 4}, [0.1, 0.3])}, {}))
        board.second()
    paths = board.state.update(None).samples[-1].paths
    assert paths is not None
    assert (paths[WARM].requests_per_s, paths[WARM].ttft_p95_s, paths[WARM].outcomes) == (4.0, 0.3, {"answered": 4})
    for _ in range(3):
        board.state.report(IngressReport("i", {}, {}))
        board.second()
    paths = board.state.update(None).samples[-1].paths
    assert paths is not None
    assert paths[WARM].outcomes == {}
    assert paths[WARM].requests_per_s < 4.0


def test_no_token_of_a_prefix_is_in_an_update(board: ScriptedBoard) -> None:
    board.report()
    board.second()
    assert 'tokens":[' not in msgspec.json.encode(board.state.update(None)).decode()
    assert [len(prefix.tokens) for prefix in board.state.hottest(RequestPath.HOT, 1000)] == [512]
