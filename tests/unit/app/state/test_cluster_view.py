"""What is known of replicas, how old it is, and what was sent to them since."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from threading import Thread

import pytest

from app.state.cluster_view import ClusterView, ReplicaStanding
from app.state.pulse import CacheChange, ReplicaLoad
from tests.fakes import FakeClock

PROMPT = (11, 12, 13)
IDLE = ReplicaLoad()
BUSY = ReplicaLoad(queued_prefill_tokens=900, kv_usage_ratio=0.7)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def view(clock: FakeClock) -> ClusterView:
    view = ClusterView(clock, stale_after_s=1.0, settle_s=0.2)
    view.keep_only(["a", "b"])
    return view


def standing(view: ClusterView, replica_id: str = "a") -> ReplicaStanding:
    return {each.replica_id: each for each in view.standings(PROMPT)}[replica_id]


def pending(view: ClusterView, replica_id: str = "a") -> tuple[int, int]:
    found = standing(view, replica_id)
    return found.pending_prefill_tokens, found.pending_decode_tokens


def test_a_replica_that_never_reported_is_unknown_not_idle(view: ClusterView) -> None:
    found = standing(view)
    assert (found.load, found.age_s, found.stale, found.matched_blocks) == (None, inf, True, 0)


def test_reports_change_the_cache_and_replace_the_load(view: ClusterView) -> None:
    assert view.apply("a", CacheChange(stored=PROMPT), IDLE)
    assert view.apply("a", CacheChange(removed=PROMPT[2:], stored=(99,)), BUSY)
    found = standing(view)
    assert (found.matched_blocks, found.load, found.stale, found.age_s) == (2, BUSY, False, 0.0)


def test_a_cleared_engine_is_forgotten_at_once_and_what_it_stored_since_counts(view: ClusterView) -> None:
    view.apply("a", CacheChange(stored=PROMPT), IDLE)
    view.apply("a", CacheChange(cleared=True, stored=PROMPT[:1]), IDLE)
    assert standing(view).matched_blocks == 1


def test_a_snapshot_replaces_what_was_known(view: ClusterView) -> None:
    view.apply("a", CacheChange(stored=PROMPT), IDLE)
    view.replace("a", PROMPT[:2], BUSY)
    assert (standing(view).matched_blocks, standing(view).load) == (2, BUSY)


def test_silence_makes_stale_and_forgets_nothing(view: ClusterView, clock: FakeClock) -> None:
    view.apply("a", CacheChange(stored=PROMPT), BUSY)
    clock.advance(1.5)
    found = standing(view)
    assert (found.stale, found.load, found.age_s, found.matched_blocks) == (True, BUSY, 1.5, 3)
    view.heartbeat("a")
    assert not standing(view).stale


def test_a_lost_feed_predicts_no_hit_and_a_heartbeat_does_not_bring_the_load_back(view: ClusterView) -> None:
    view.apply("a", CacheChange(stored=PROMPT), IDLE)
    view.disconnected("a")
    view.heartbeat("a")
    assert (standing(view).matched_blocks, standing(view).load, standing(view).stale) == (0, None, True)
    view.replace("a", PROMPT, IDLE)
    assert (standing(view).matched_blocks, standing(view).stale) == (3, False)


def test_a_restarted_replica_is_forgotten_at_once(view: ClusterView) -> None:
    view.apply("a", CacheChange(stored=PROMPT), BUSY)
    view.debit("a", 500, 600)
    view.keep_only(["b", "a-restarted"])
    assert [each.replica_id for each in view.standings(PROMPT)] == ["b", "a-restarted"]
    assert (standing(view, "a-restarted").matched_blocks, pending(view, "a-restarted")) == (0, (0, 0))


def test_a_late_report_brings_nobody_back(view: ClusterView) -> None:
    view.keep_only(["b"])
    assert not view.apply("a", CacheChange(stored=PROMPT), IDLE)
    assert not view.replace("a", PROMPT, IDLE)
    view.heartbeat("a")
    view.disconnected("a")
    assert [each.replica_id for each in view.standings(PROMPT)] == ["b"]
    view.keep_only(["a", "b"])
    assert standing(view).matched_blocks == 0


def test_a_replica_that_leaves_amid_a_large_snapshot_leaves_nothing_behind(view: ClusterView) -> None:
    def blocks() -> Iterator[int]:
        yield from range(5000)
        view.keep_only(["b"])
        view.keep_only(["a", "b"])
        yield from range(5000, 10_000)

    assert not view.replace("a", blocks(), IDLE)
    assert max(each.matched_blocks for each in view.standings(range(10_000))) == 0


def test_a_feed_lost_amid_a_large_snapshot_leaves_nothing_behind(view: ClusterView) -> None:
    def blocks() -> Iterator[int]:
        yield from range(5000)
        view.disconnected("a")
        yield from range(5000, 10_000)

    assert not view.replace("a", blocks(), IDLE)
    assert max(each.matched_blocks for each in view.standings(range(10_000))) == 0


def test_a_large_snapshot_lets_others_look_in_between(view: ClusterView) -> None:
    seen: list[int] = []

    def blocks() -> Iterator[int]:
        for block in range(4000):
            if block % 1000 == 0:
                seen.append(view.standings(range(4000))[0].matched_blocks)  # would wait for ever on a held lock
            yield block

    view.replace("a", blocks(), IDLE)
    assert len(seen) == 4
    assert sorted(set(seen)) == seen and seen[-1] > 1000


def test_a_debit_counts_until_a_report_must_contain_it(view: ClusterView, clock: FakeClock) -> None:
    view.debit("a", 400, 500)
    clock.advance(0.1)
    view.apply("a", CacheChange(), BUSY)
    assert pending(view) == (400, 500)  # the report may have been written before the request arrived
    view.debit("a", 30, 40)
    clock.advance(0.1)
    view.apply("a", CacheChange(), BUSY)
    assert pending(view) == (30, 40)


def test_blocks_of_a_running_request_are_expected_until_it_ends(view: ClusterView) -> None:
    request = view.debit("a", 400, 500, PROMPT)
    assert (standing(view).matched_blocks, standing(view, "b").matched_blocks) == (3, 0)
    sample = view.sample(PROMPT, random.Random(1), holders=1, others=1)
    assert {each.replica_id: each.matched_blocks for each in sample}["a"] == 3
    request.release()
    assert standing(view).matched_blocks == 0


def test_what_is_cached_stays_when_the_request_that_expected_it_ends(view: ClusterView) -> None:
    request = view.debit("a", 400, 500, PROMPT)
    view.apply("a", CacheChange(stored=PROMPT[:2]), IDLE)
    request.release()
    assert standing(view).matched_blocks == 2


def test_a_lost_feed_expects_nothing_either(view: ClusterView) -> None:
    request = view.debit("a", 400, 500, PROMPT)
    view.disconnected("a")
    assert standing(view).matched_blocks == 0
    later = view.debit("a", 400, 500, PROMPT)
    request.release()
    assert standing(view).matched_blocks == 3
    later.release()
    assert pending(view) == (0, 0)


def test_without_reports_a_debit_counts_until_it_is_released(view: ClusterView, clock: FakeClock) -> None:
    debit = view.debit("a", 400, 500)
    clock.advance(60)
    assert pending(view) == (400, 500)
    debit.release()
    assert pending(view) == (0, 0)


def test_a_debit_is_released_once_however_often_it_is_asked(view: ClusterView) -> None:
    first, second = view.debit("a", 400, 500), view.debit("a", 1, 2)
    first.release()
    first.release()
    assert pending(view) == (1, 2)
    second.release()
    assert pending(view) == (0, 0)


def test_a_settled_debit_takes_nothing_away_when_released(view: ClusterView, clock: FakeClock) -> None:
    old = view.debit("a", 400, 500)
    clock.advance(0.2)
    view.heartbeat("a")
    view.debit("a", 1, 2)
    old.release()
    assert pending(view) == (1, 2)


def test_a_debit_of_a_replica_that_left_is_released_in_silence(view: ClusterView) -> None:
    before = view.debit("a", 400, 500)
    view.keep_only(["b"])
    after = view.debit("a", 400, 500)
    before.release()
    after.release()
    view.keep_only(["a", "b"])
    assert pending(view) == (0, 0)


def test_after_a_mass_cancel_from_many_threads_every_counter_is_zero(view: ClusterView) -> None:
    view.apply("a", CacheChange(stored=PROMPT), IDLE)

    def flood(seed: int) -> None:
        rng = random.Random(seed)
        open_debits = []
        for number in range(500):
            open_debits.append(view.debit(rng.choice("ab"), rng.randint(0, 9999), rng.randint(0, 9999), PROMPT))
            if number % 50 == 0:
                view.apply(rng.choice("ab"), CacheChange(stored=PROMPT), BUSY)
                view.sample(PROMPT, rng, holders=4, others=4)
            if rng.random() < 0.5:
                rng.choice(open_debits).release()
        for debit in open_debits:
            debit.release()

    threads = [Thread(target=flood, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (pending(view, "a"), pending(view, "b")) == ((0, 0), (0, 0))


def test_a_sample_has_the_best_holder_and_the_asked_replica_among_a_thousand(view: ClusterView) -> None:
    view.keep_only([f"r{number}" for number in range(1000)])
    for number in range(500):
        view.replace(f"r{number}", PROMPT[:1], IDLE)
    view.replace("r700", PROMPT, IDLE)
    sample = view.sample(PROMPT, random.Random(1), holders=4, others=8, also="r800")
    matched = {each.replica_id: each.matched_blocks for each in sample}
    assert matched["r700"] == 3
    assert matched["r800"] == 0
    assert len(matched) <= 4 + 8 + 1
    gone = view.sample(PROMPT, random.Random(1), holders=4, others=8, also="gone")
    assert "gone" not in {each.replica_id for each in gone}


def test_of_few_replicas_all_are_sampled_with_what_they_hold(view: ClusterView) -> None:
    view.replace("b", PROMPT[:2], BUSY)
    sample = view.sample(PROMPT, random.Random(1), holders=4, others=8)
    assert {each.replica_id: each for each in sample} == {each.replica_id: each for each in view.standings(PROMPT)}


def test_the_longest_match_is_what_any_replica_holds_or_computes(view: ClusterView) -> None:
    assert view.longest_match(PROMPT) == 0
    view.replace("a", PROMPT[:1], IDLE)
    assert view.longest_match(PROMPT) == 1
    sent = view.debit("b", 10, 10, PROMPT[:2])
    assert view.longest_match(PROMPT) == 2
    sent.release()
    assert view.longest_match(PROMPT) == 1
