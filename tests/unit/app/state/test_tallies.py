"""What is counted is read as it was counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.state.tallies import Distribution, Spread, Tally


def test_known_labels_count_from_zero_on_and_others_with_their_first_event() -> None:
    tally = Tally(("hot",))
    tally.add(2, "cold")
    tally.add(3, "cold")
    assert tally.read() == {("hot",): 0, ("cold",): 5}


def test_what_was_read_stays_as_it_was() -> None:
    tally = Tally(("hot",))
    before = tally.read()
    tally.add(1, "hot")
    assert before == {("hot",): 0}


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    seen = Distribution((1.0, 2.0))
    seen.observe((0.5, 1.0, 1.5, 2.0, 9.0), "hot")
    assert seen.read() == {("hot",): Spread((2, 2, 1), 14.0)}


def test_label_values_are_kept_apart() -> None:
    seen = Distribution((1.0,), ("hot",))
    seen.observe((3.0,), "cold")
    assert seen.read() == {("hot",): Spread((0, 0), 0.0), ("cold",): Spread((0, 1), 3.0)}


@given(st.lists(st.lists(st.floats(0, 10))))
def test_it_does_not_matter_how_values_are_grouped(groups: list[list[float]]) -> None:
    bounds = (0.1, 1.0, 5.0)
    together, apart = Distribution(bounds, ()), Distribution(bounds, ())
    for group in groups:
        together.observe(group)
        for value in group:
            apart.observe((value,))
    assert together.read()[()].counts == apart.read()[()].counts
    assert together.read()[()].count == sum(map(len, groups))
