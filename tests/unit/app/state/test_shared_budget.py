"""Two paths on one set of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.requests import RequestPath
from app.state.shared_budget import SharedBudget

HOT, COLD = RequestPath.HOT, RequestPath.COLD
COSTS = {HOT: 0.3, COLD: 0.7}


def test_without_a_budget_there_is_no_ceiling() -> None:
    assert SharedBudget(None, COSTS, False).ceilings({HOT: 9, COLD: 9}, {}) == {HOT: 9, COLD: 9}


def test_each_device_is_divided_as_the_shares_say() -> None:
    assert SharedBudget(4, COSTS, False).ceilings({HOT: 9, COLD: 1}, {}) == {HOT: 4, COLD: 4}


def test_what_the_other_path_does_not_want_may_be_lent() -> None:
    ceilings = SharedBudget(4, COSTS, True).ceilings({HOT: 9, COLD: 1}, {})
    assert ceilings[HOT] == 11  # 3.3 devices


def test_nothing_is_lent_that_is_wanted() -> None:
    assert SharedBudget(4, COSTS, True).ceilings({HOT: 9, COLD: 9}, {}) == {HOT: 4, COLD: 4}


def test_a_path_that_is_not_there_holds_nothing() -> None:
    assert SharedBudget(1, COSTS, True).ceilings({HOT: 9}, {})[HOT] == 3


@pytest.mark.parametrize("lend", [False, True])
def test_what_runs_in_any_case_is_not_promised_to_the_other_path(lend: bool) -> None:
    """Six hot ones hold three of four devices, more than the half that is theirs."""
    budget = SharedBudget(4, {HOT: 0.5, COLD: 0.5}, lend)
    assert budget.ceilings({HOT: 6, COLD: 8}, {HOT: 6, COLD: 1}) == {HOT: 6, COLD: 2}


replicas = st.integers(0, 40)
costs = st.sampled_from((0.1, 0.25, 0.3, 0.5, 0.7, 1.0, 2.0))


@given(replicas, replicas, st.integers(0, 4), st.integers(0, 4), costs, costs, st.floats(0.5, 20), st.booleans())
def test_what_the_paths_get_fits_the_budget(
    hot: int, cold: int, hot_least: int, cold_least: int, hot_cost: float, cold_cost: float, devices: float, lend: bool
) -> None:
    cost = {HOT: hot_cost, COLD: cold_cost}
    least = {HOT: hot_least, COLD: cold_least}
    wanted = {HOT: max(hot, hot_least), COLD: max(cold, cold_least)}
    ceilings = SharedBudget(devices, cost, lend).ceilings(wanted, least)
    got = {path: max(least[path], min(wanted[path], ceilings[path])) for path in wanted}
    in_any_case = sum(cost[path] * least[path] for path in wanted)
    assert sum(cost[path] * got[path] for path in wanted) <= max(devices, in_any_case) + 1e-6
