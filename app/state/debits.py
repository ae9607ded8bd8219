"""What was sent to a replica and is not yet in its own report."""

from __future__ import annotations

from collections import OrderedDict


class Debit:
    """Work given to a replica, counted until its report contains it or the request ends, whichever is first."""

    __slots__ = ("decode_tokens", "made_at_s", "prefill_tokens")

    def __init__(self, prefill_tokens: int, decode_tokens: int, made_at_s: float) -> None:
        self.prefill_tokens = prefill_tokens
        self.decode_tokens = decode_tokens
        self.made_at_s = made_at_s


class DebitLedger:
    """The open, unsettled debits of one replica. Not thread-safe."""

    __slots__ = ("_open", "decode_tokens", "prefill_tokens")

    def __init__(self) -> None:
        self._open: OrderedDict[Debit, None] = OrderedDict()  # oldest first
        self.prefill_tokens = 0
        self.decode_tokens = 0

    def __len__(self) -> int:
        return len(self._open)

    def put_in(self, debit: Debit) -> None:
        self._open[debit] = None
        self.prefill_tokens += debit.prefill_tokens
        self.decode_tokens += debit.decode_tokens

    def take_out(self, debit: Debit) -> None:
        """Nothing happens to one that is not in it. Invariant: a debit is counted exactly while it is in `_open`."""
        if debit in self._open:
            del self._open[debit]
            self.prefill_tokens -= debit.prefill_tokens
            self.decode_tokens -= debit.decode_tokens

    def settle(self, made_until_s: float) -> None:
        """A report has come that contains every request sent until then."""
        while self._open:
            oldest = next(iter(self._open))
            if oldest.made_at_s > made_until_s:
                return
            self.take_out(oldest)
