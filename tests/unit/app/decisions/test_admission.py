"""Each rule of admission by itself: from what is known of the engines to a decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.admission import AdmissionConfig
from app.decisions.admission import Action, Ask, Placement, decide
from app.requests import Refusal, RequestFeatures, RequestPath
from app.state.engines import EnginesState
from app.state.prefill_outlook import PrefillOutlook
from app.state.pressure import Signal
from app.state.watermarks import Level

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
KV, PREFILL, PREEMPTIONS = Signal.KV_USAGE_RATIO, Signal.QUEUED_PREFILL_S, Signal.PREEMPTIONS_PER_S
RULES = AdmissionConfig.model_validate(
    {"borrowing": {"hot_on_cold": 0.25, "warm_on_cold": 0.5, "cold_on_hot": 0.1, "failover": 0.75}}
)
IDLE = EnginesState(
    level=Level.NORMAL,
    signal=None,
    takes_requests=True,
    crowded=False,
    slots=20,
    used_slots=0,
    waiting=0,
    lent={},
    least_urgent=None,
    retry_after_s=7.0,
)
FULL = replace(IDLE, used_slots=20)
CROWDED = replace(FULL, crowded=True, crowded_for_s=RULES.queues.crowded_after_s, waiting=9)
BROKEN = replace(IDLE, takes_requests=False)
GONE = replace(IDLE, slots=0)


def pressed(level: Level, signal: Signal = KV, least_urgent: int | None = 250) -> EnginesState:
    return replace(IDLE, level=level, signal=signal, least_urgent=least_urgent)


def ask(
    path: RequestPath, prompt: int = 100, output: int | None = 100, cached: int = 0, within: int = 50, move: bool = True
) -> Ask:
    features = RequestFeatures(prompt, output, cached_tokens=cached)
    return Ask(features, path, path.priority(within), may_move=move)


def decided(asked: Ask, hot: EnginesState = IDLE, cold: EnginesState = IDLE) -> tuple[Action, RequestPath, str]:
    decision = decide(asked, {HOT: hot, COLD: cold}, RULES)
    return decision.action, decision.engines, decision.reason


@pytest.mark.parametrize(("path", "engines"), [(HOT, HOT), (WARM, HOT), (COLD, COLD)])
def test_with_room_a_request_starts_at_home(path: RequestPath, engines: RequestPath) -> None:
    assert decided(ask(path)) == (Action.START, engines, Placement.HOME)


def test_without_room_it_waits_at_home() -> None:
    assert decided(ask(HOT), hot=FULL) == (Action.WAIT, HOT, Placement.HOME)


def test_a_newcomer_passes_nobody_who_waits() -> None:
    assert decided(ask(HOT), hot=replace(IDLE, waiting=1))[0] is Action.WAIT


def test_before_the_first_observation_requests_start() -> None:
    assert decided(ask(COLD), cold=replace(IDLE, slots=None))[0] is Action.START


@pytest.mark.parametrize("path", [HOT, WARM])
def test_traffic_of_crowded_hot_engines_moves_to_where_there_is_room(path: RequestPath) -> None:
    assert decided(ask(path), hot=CROWDED) == (Action.START, COLD, Placement.SPILLED)


def test_warm_moves_off_pressed_hot_engines_and_hot_does_not() -> None:
    hot = pressed(Level.REFUSE_LONG)
    assert decided(ask(WARM), hot=hot) == (Action.START, COLD, Placement.SPILLED)
    assert decided(ask(HOT), hot=hot) == (Action.START, HOT, Placement.HOME)


@pytest.mark.parametrize(("path", "most"), [(HOT, 5), (WARM, 10), (COLD, 2)])
def test_borrowing_ends_at_the_declared_share(path: RequestPath, most: int) -> None:
    home, other = path.engines, path.other_engines
    for lent, engines in ((most - 1, other), (most, home)):
        states = {home: CROWDED, other: replace(IDLE, lent={path: lent})}
        assert decide(ask(path), states, RULES).engines is engines


@pytest.mark.parametrize(
    "lender",
    [FULL, CROWDED, BROKEN, GONE, pressed(Level.ALERT), replace(IDLE, waiting=1), replace(IDLE, slots=None)],
)
@pytest.mark.parametrize("home", [CROWDED, GONE])
def test_only_what_is_spare_is_lent(lender: EnginesState, home: EnginesState) -> None:
    assert decided(ask(HOT), hot=home, cold=lender) == (Action.WAIT, HOT, Placement.HOME)


def test_a_forced_path_or_one_that_alone_fits_is_not_moved() -> None:
    assert decided(ask(WARM, move=False), hot=CROWDED) == (Action.WAIT, HOT, Placement.HOME)
    assert decided(ask(WARM, move=False), hot=BROKEN) == (Action.REFUSE, HOT, Refusal.ENGINES_FAILED)


@pytest.mark.parametrize("path", [HOT, WARM, COLD])
@pytest.mark.parametrize("failed", [BROKEN, GONE])
def test_a_path_whose_engines_fail_uses_the_others_spare_room(path: RequestPath, failed: EnginesState) -> None:
    states = {path.engines: failed, path.other_engines: replace(IDLE, lent={path: 14})}
    assert decide(ask(path), states, RULES).reason is Placement.FAILOVER
    states[path.other_engines] = replace(IDLE, lent={path: 15})
    assert decide(ask(path), states, RULES).engines is path.engines


def test_with_no_engines_to_trust_a_request_is_refused_and_told_when_to_return() -> None:
    decision = decide(ask(HOT), {HOT: BROKEN, COLD: FULL}, RULES)
    assert (decision.action, decision.reason, decision.retry_after_s) == (Action.REFUSE, Refusal.ENGINES_FAILED, 7.0)


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (KV, Refusal.KV_CACHE_HIGH),
        (PREFILL, Refusal.PREFILL_QUEUE_LONG),
        (PREEMPTIONS, Refusal.PREEMPTION_STORM),
    ],
)
def test_long_prompts_are_refused_by_the_name_of_the_signal(signal: Signal, reason: Refusal) -> None:
    cold = pressed(Level.REFUSE_LONG, signal)
    assert decided(ask(COLD, prompt=2049), cold=cold) == (Action.REFUSE, COLD, reason)
    assert decided(ask(COLD, prompt=2048), cold=cold)[0] is Action.START


def test_a_cached_prompt_is_long_for_the_cache_and_short_for_the_prefill_queue() -> None:
    cached = ask(COLD, prompt=6000, cached=5900)
    assert decided(cached, cold=pressed(Level.REFUSE_LONG, KV))[0] is Action.REFUSE
    assert decided(cached, cold=pressed(Level.REFUSE_LONG, PREFILL))[0] is Action.START


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("signal", list(Signal))
def test_hot_traffic_goes_on_at_every_level(level: Level, signal: Signal) -> None:
    assert decided(ask(HOT, prompt=6000, cached=5900), hot=pressed(level, signal)) == (
        Action.START,
        HOT,
        Placement.HOME,
    )


def test_an_alert_refuses_and_shortens_nothing() -> None:
    decision = decide(ask(COLD, prompt=9000, output=9000), {HOT: IDLE, COLD: pressed(Level.ALERT)}, RULES)
    assert (decision.action, decision.output_cap_tokens) == (Action.START, None)


@pytest.mark.parametrize(
    ("path", "output", "cap"), [(COLD, 9000, 256), (COLD, None, 256), (COLD, 256, None), (WARM, 9000, None)]
)
def test_compression_caps_the_answers_of_new_cold_work_only(
    path: RequestPath, output: int | None, cap: int | None
) -> None:
    compressed = pressed(Level.COMPRESS)
    decision = decide(ask(path, output=output, move=False), {HOT: compressed, COLD: compressed}, RULES)
    assert (decision.action, decision.output_cap_tokens) == (Action.START, cap)


def test_shedding_refuses_who_is_no_more_urgent_than_the_least_urgent_that_runs() -> None:
    cold = pressed(Level.SHED, least_urgent=COLD.priority(50))
    assert decided(ask(COLD, within=50), cold=cold) == (Action.REFUSE, COLD, Refusal.LOAD_SHED)
    assert decided(ask(COLD, within=49), cold=cold)[0] is Action.START
    assert decided(ask(COLD), cold=pressed(Level.SHED, least_urgent=None))[0] is Action.REFUSE


def test_shedding_on_the_hot_engines_refuses_warm_before_hot() -> None:
    hot = pressed(Level.SHED, least_urgent=HOT.priority())
    assert decided(ask(WARM, move=False), hot=hot)[2] is Refusal.LOAD_SHED
    assert decided(ask(HOT), hot=hot)[0] is Action.START


def test_an_alert_for_want_of_reports_refuses_nobody() -> None:
    unknown = replace(IDLE, level=Level.ALERT, signal=None)
    assert decided(ask(COLD, prompt=100_000, output=100_000), cold=unknown) == (Action.START, COLD, Placement.HOME)


def busy(queued_tokens: float, state: EnginesState = IDLE) -> EnginesState:
    """With prompts ahead that take a second for every 500 tokens."""
    return replace(state, outlook=PrefillOutlook(queued_tokens, tokens_per_s=500.0))


FIRST_TOKEN_TOKENS = 500 * RULES.queues.hot.first_token_s


def test_a_hot_request_whose_first_token_would_be_late_is_refused_at_once() -> None:
    in_time, late = busy(FIRST_TOKEN_TOKENS - 100), busy(FIRST_TOKEN_TOKENS - 99)
    assert decided(ask(HOT), hot=in_time, cold=FULL)[0] is Action.START
    decision = decide(ask(HOT), {HOT: late, COLD: FULL}, RULES)
    assert (decision.action, decision.reason) == (Action.REFUSE, Refusal.PREFILL_QUEUE_LONG)
    assert decision.retry_after_s == IDLE.retry_after_s
    assert decision.prefill_s == pytest.approx(RULES.queues.hot.first_token_s, abs=0.01)


def test_a_hot_request_that_is_late_at_home_runs_where_it_is_known_to_be_in_time() -> None:
    late = busy(FIRST_TOKEN_TOKENS)
    refused = (Action.REFUSE, HOT, Refusal.PREFILL_QUEUE_LONG)
    assert decided(ask(HOT), hot=late, cold=busy(0)) == (Action.START, COLD, Placement.SPILLED)
    assert decided(ask(HOT), hot=late, cold=late) == refused
    assert decided(ask(HOT), hot=late, cold=IDLE) == refused  # nobody knows how fast those are
    cached_at_home = ask(HOT, prompt=int(FIRST_TOKEN_TOKENS) + 1, cached=int(FIRST_TOKEN_TOKENS))
    assert decided(cached_at_home, hot=late, cold=busy(0)) == refused


def test_cached_tokens_take_no_time() -> None:
    hot = busy(FIRST_TOKEN_TOKENS - 100)
    assert decided(ask(HOT, prompt=2000, cached=1900), hot=hot, cold=FULL)[0] is Action.START
    assert decided(ask(HOT, prompt=2000), hot=hot, cold=FULL)[0] is Action.REFUSE


def test_a_prompt_that_is_late_by_itself_starts_where_little_is_ahead() -> None:
    own = int(3 * FIRST_TOKEN_TOKENS)
    assert decided(ask(HOT, prompt=own), hot=busy(FIRST_TOKEN_TOKENS / 4), cold=FULL)[0] is Action.START
    assert decided(ask(HOT, prompt=own), hot=busy(FIRST_TOKEN_TOKENS / 4 + 1), cold=FULL)[0] is Action.REFUSE


def test_a_client_that_names_its_own_deadline_may_wait_as_long() -> None:
    hot = busy(2 * FIRST_TOKEN_TOKENS)
    patient = replace(ask(HOT), timeout_s=3 * RULES.queues.hot.first_token_s)
    hasty = replace(ask(HOT), timeout_s=0.1)
    assert decided(patient, hot=hot, cold=FULL)[0] is Action.START
    assert decided(hasty, hot=busy(FIRST_TOKEN_TOKENS / 2), cold=FULL)[2] is Refusal.PREFILL_QUEUE_LONG


@pytest.mark.parametrize("path", [WARM, COLD])
def test_only_hot_requests_are_refused_by_the_time_to_their_first_token(path: RequestPath) -> None:
    late = busy(9 * FIRST_TOKEN_TOKENS)
    assert decided(ask(path), hot=late, cold=late)[0] is Action.START


STATES = st.builds(
    EnginesState,
    level=st.sampled_from(Level),
    signal=st.none() | st.sampled_from(Signal),
    takes_requests=st.booleans(),
    crowded=st.booleans(),
    slots=st.none() | st.integers(0, 20),
    used_slots=st.integers(0, 25),
    waiting=st.integers(0, 3),
    lent=st.dictionaries(st.sampled_from(RequestPath), st.integers(0, 20)),
    least_urgent=st.none() | st.integers(0, 299),
    retry_after_s=st.floats(1, 60),
    outlook=st.builds(
        PrefillOutlook,
        st.floats(0, 1e6),
        st.lists(st.tuples(st.sampled_from([HOT, WARM]), st.integers(1, 9000)), max_size=5).map(tuple),
        st.integers(1, 4),
        st.integers(1, 2048),
        st.none() | st.floats(1, 1e5),
    ),
)


@given(STATES, STATES, st.sampled_from(RequestPath), st.integers(1, 10_000), st.none() | st.integers(0, 10**9))
def test_whatever_the_state_the_decision_keeps_the_promises(
    hot: EnginesState, cold: EnginesState, path: RequestPath, prompt: int, output: int | None
) -> None:
    states = {HOT: hot, COLD: cold}
    decision = decide(ask(path, prompt, output), states, RULES)
    if decision.action is Action.REFUSE:
        assert isinstance(decision.reason, Refusal)
        assert decision.retry_after_s is not None
    if path is HOT and decision.action is Action.REFUSE:  # no pressure turns hot away
        assert decision.reason in (Refusal.ENGINES_FAILED, Refusal.PREFILL_QUEUE_LONG)
        assert hot.outlook.queued_tokens or not hot.takes_requests
    if path is COLD and decision.engines is HOT:  # hot is never displaced by cold
        assert decision.action is Action.START
        assert hot.level is Level.NORMAL
        assert not hot.waiting
        assert hot.slots is not None
        assert hot.used_slots < hot.slots
    if decision.action is Action.START:
        assert states[decision.engines].has_room
