"""Session labels: kept, expired, bounded, and never shared between clients."""

from __future__ import annotations

import tracemalloc

from app.config.admission import SessionsConfig
from app.requests import RequestPath
from app.state.sessions import Session, Sessions
from tests.fakes import FakeClock

COLD = Session(RequestPath.COLD, 250)
HOT = Session(RequestPath.HOT, 50)
RULES = SessionsConfig(ttl_s=60, max_per_client=100)


def test_a_label_is_remembered_until_it_expires() -> None:
    clock = FakeClock()
    sessions = Sessions(RULES, clock)
    sessions.remember("ide", "s1", COLD)
    clock.advance(59.9)
    assert sessions.recall("ide", "s1") == COLD
    clock.advance(0.1)
    assert sessions.recall("ide", "s1") is None


def test_each_use_renews_a_label() -> None:
    clock = FakeClock()
    sessions = Sessions(RULES, clock)
    for _ in range(10):
        sessions.remember("ide", "s1", COLD)
        clock.advance(50)
    assert sessions.recall("ide", "s1") == COLD


def test_the_same_label_of_another_client_is_another_session() -> None:
    sessions = Sessions(RULES, FakeClock())
    sessions.remember("ide", "s1", COLD)
    assert sessions.recall("batch", "s1") is None
    sessions.remember("batch", "s1", HOT)
    assert (sessions.recall("ide", "s1"), sessions.recall("batch", "s1")) == (COLD, HOT)


def test_the_least_recently_used_label_goes_first() -> None:
    sessions = Sessions(RULES, FakeClock())
    for number in range(100):
        sessions.remember("ide", f"s{number}", COLD)
    sessions.remember("ide", "s0", COLD)
    sessions.remember("ide", "new", COLD)
    assert sessions.recall("ide", "s0") == COLD
    assert sessions.recall("ide", "s1") is None
    assert len(sessions) == 100


def test_a_client_that_invents_labels_pushes_out_none_of_anothers() -> None:
    sessions = Sessions(RULES, FakeClock())
    sessions.remember("ide", "mine", COLD)
    for number in range(10_000):
        sessions.remember("abuser", f"s{number}", HOT)
    assert sessions.recall("ide", "mine") == COLD


def test_expired_labels_leave_memory_with_the_next_one() -> None:
    clock = FakeClock()
    sessions = Sessions(RULES, clock)
    for number in range(50):
        sessions.remember("ide", f"s{number}", COLD)
    clock.advance(61)
    sessions.remember("ide", "new", COLD)
    assert len(sessions) == 1


def test_a_hundred_thousand_labels_of_any_length_leave_memory_flat() -> None:
    sessions = Sessions(SessionsConfig(max_per_client=1000), FakeClock())
    tracemalloc.start()
    for number in range(5000):
        sessions.remember("abuser", f"{number}" * 200, HOT)
    settled, _ = tracemalloc.get_traced_memory()
    for number in range(5000, 100_000):
        sessions.remember("abuser", f"{number}" * 200, HOT)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sessions) == 1000
    assert after < settled * 1.1


def test_a_label_that_is_no_valid_text_is_still_a_label() -> None:
    sessions = Sessions(RULES, FakeClock())
    sessions.remember("ide", "\udce4", COLD)
    assert sessions.recall("ide", "\udce4") == COLD
