"""Two paths on one set of devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.requests import RequestPath
from app.state.shared_budget import SharedBudget

HOT, COLD = RequestPath.HOT, RequestPath.COLD
COSTS = {HOT: 0.3, COLD: 0.7}


def test_without_a_budget_there_is_no_ceiling() -> None:
    assert SharedBudget(None, COSTS, False).ceilings({HOT: 9, COLD: 9}) == {HOT: 9, COLD: 9}


def test_each_device_is_divided_as_the_shares_say() -> None:
    assert SharedBudget(4, COSTS, False).ceilings({HOT: 9, COLD: 1}) == {HOT: 4, COLD: 4}


def test_what_the_other_path_does_not_want_may_be_lent() -> None:
    ceilings = SharedBudget(4, COSTS, True).ceilings({HOT: 9, COLD: 1})
    assert ceilings[HOT] == 11  # 3.3 devices


def test_nothing_is_lent_that_is_wanted() -> None:
    assert SharedBudget(4, COSTS, True).ceilings({HOT: 9, COLD: 9}) == {HOT: 4, COLD: 4}


def test_a_path_that_is_not_there_holds_nothing() -> None:
    assert SharedBudget(1, COSTS, True).ceilings({HOT: 9})[HOT] == 3


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.5, 20), st.booleans())
def test_what_the_paths_get_fits_the_budget(hot: int, cold: int, devices: float, lend: bool) -> None:
    wanted = {HOT: hot, COLD: cold}
    ceilings = SharedBudget(devices, COSTS, lend).ceilings(wanted)
    assert sum(COSTS[path] * min(wanted[path], ceilings[path]) for path in wanted) <= devices + 1e-6
