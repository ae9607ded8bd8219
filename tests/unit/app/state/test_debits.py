"""Debits against a naive model: counted exactly while open and unsettled, whatever the order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.state.debits import Debit, DebitLedger

events = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 5000)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("report"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(events)
def test_the_counters_are_the_sum_of_what_is_open_and_unsettled(happenings: list[tuple[str, int]]) -> None:
    ledger = DebitLedger()
    sent: list[Debit] = []
    counted: set[Debit] = set()
    for now, (what, number) in enumerate(happenings):
        if what == "send":
            sent.append(Debit(number, 2 * number, now))
            ledger.put_in(sent[-1])
            counted.add(sent[-1])
        elif what == "release" and sent:
            ledger.take_out(sent[number % len(sent)])
            counted.discard(sent[number % len(sent)])
        elif what == "report":
            ledger.settle(now - number)
            counted = {debit for debit in counted if debit.made_at_s > now - number}
        assert len(ledger) == len(counted)
        assert ledger.prefill_tokens == sum(debit.prefill_tokens for debit in counted)
        assert ledger.decode_tokens == sum(debit.decode_tokens for debit in counted)
    for debit in sent:
        ledger.take_out(debit)
    assert (len(ledger), ledger.prefill_tokens, ledger.decode_tokens) == (0, 0, 0)
