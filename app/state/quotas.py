"""What each API key has left: requests and tokens per minute, and requests at once.

Both rates are token buckets: a bucket holds one minute's allowance and refills evenly, so a client may send a minute's
worth at once and then at the even rate, and no minute boundary lets it send twice as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.config.keys import Quota
from app.requests import Refusal

# A slot frees when one of the client's own requests ends, which nobody can date.
_CONCURRENCY_RETRY_S = 1.0
_ROUNDING = 1e-6  # of a request or token; a client that waits as long as it was told is let in


class _Bucket:
    """One minute's allowance of something. The balance may fall below zero: settled debts delay what comes next."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._balance = float(per_minute)
        self._at_s = now_s

    def balance(self, now_s: float) -> float:
        refilled = self._balance + (now_s - self._at_s) * self.per_minute / 60
        self._balance, self._at_s = min(float(self.per_minute), refilled), now_s
        return self._balance

    def wait_s(self, amount: float, now_s: float) -> float:
        """Until `amount` can be taken. More than the bucket holds can be taken from a full one."""
        missing = min(amount, self.per_minute) - self.balance(now_s)
        return missing * 60 / self.per_minute if missing > _ROUNDING else 0.0

    def take(self, amount: float, now_s: float) -> None:
        self._balance = min(float(self.per_minute), self.balance(now_s) - amount)


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit as the client is told of it."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """Whether a key may send this request now.

    Args:
        reason: the limit that forbids it, or None when it is let in.
        retry_after_s: until it would be let in.
    """

    reason: Refusal | None = None
    retry_after_s: float | None = None
    requests: Allowance | None = None
    tokens: Allowance | None = None

    @property
    def admitted(self) -> bool:
        return self.reason is None

    def headers(self) -> dict[str, str]:
        """OpenAI's rate limit headers, for answers and refusals alike."""
        told: dict[str, str] = {}
        for name, allowance in (("requests", self.requests), ("tokens", self.tokens)):
            if allowance is not None:
                told[f"x-ratelimit-limit-{name}"] = str(allowance.limit)
                told[f"x-ratelimit-remaining-{name}"] = str(allowance.remaining)
                told[f"x-ratelimit-reset-{name}"] = f"{allowance.reset_s:.3f}s"
        return told


class _Account:
    """What one key has left."""

    def __init__(self, quota: Quota, now_s: float) -> None:
        self.quota = quota
        self.running = 0
        self.requests = _Bucket(quota.requests_per_minute, now_s) if quota.requests_per_minute else None
        self.tokens = _Bucket(quota.tokens_per_minute, now_s) if quota.tokens_per_minute else None


class Charge:
    """One request's debit. It ends exactly once, by `settle` or `refund`; ending it again changes nothing."""

    def __init__(self, decision: QuotaDecision, account: _Account, tokens: int, clock: Callable[[], float]) -> None:
        self.decision = decision
        self._account = account
        self._tokens = tokens
        self._clock = clock
        self._ended = not decision.admitted

    def settle(self, used_tokens: int | None) -> None:
        """The request is over, however it ended.

        Args:
            used_tokens: prompt plus what was really generated, also of a stream that ended early; None when the engine
                did not tell, and the estimate stands.
        """
        self._end(0, 0 if used_tokens is None else self._tokens - used_tokens)

    def refund(self) -> None:
        """The request was not served at all."""
        self._end(1, self._tokens)

    def _end(self, requests: int, tokens: int) -> None:
        if self._ended:
            return
        self._ended = True
        self._account.running -= 1
        if requests and self._account.requests:
            self._account.requests.take(-requests, self._clock())
        if self._account.tokens:
            self._account.tokens.take(-tokens, self._clock())


class Quotas:
    """The accounts of all keys, as one ingress replica sees them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def charge(self, client: str, quota: Quota, estimated_tokens: int) -> Charge:
        """Debit a request, or say which limit forbids it. A refused one costs nothing.

        Args:
            client: the key's name.
            estimated_tokens: prompt plus expected answer; `Charge.settle` corrects it.
        """
        now_s = self._clock()
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(quota, now_s)
        reason, wait_s = _refusal(account, estimated_tokens, now_s)
        if reason is None:
            account.running += 1
            if account.requests:
                account.requests.take(1, now_s)
            if account.tokens:
                account.tokens.take(estimated_tokens, now_s)
        decision = QuotaDecision(reason, wait_s, _told(account.requests, now_s), _told(account.tokens, now_s))
        return Charge(decision, account, estimated_tokens, self._clock)

    def running(self, client: str) -> int:
        """Requests that are charged and not over."""
        return self._accounts[client].running if client in self._accounts else 0


def _refusal(account: _Account, tokens: int, now_s: float) -> tuple[Refusal | None, float | None]:
    """The limit with the longest wait, which is the one worth telling."""
    most = account.quota.concurrent_requests
    if most is not None and account.running >= most:
        return Refusal.CONCURRENT_REQUESTS, _CONCURRENCY_RETRY_S
    waits = [
        (bucket.wait_s(amount, now_s), reason)
        for bucket, amount, reason in (
            (account.requests, 1, Refusal.REQUESTS_PER_MINUTE),
            (account.tokens, tokens, Refusal.TOKENS_PER_MINUTE),
        )
        if bucket is not None
    ]
    wait_s, reason = max(waits, default=(0.0, Refusal.REQUESTS_PER_MINUTE))
    return (reason, wait_s) if wait_s > 0 else (None, None)


def _told(bucket: _Bucket | None, now_s: float) -> Allowance | None:
    if bucket is None:
        return None
    return Allowance(bucket.per_minute, max(0, int(bucket.balance(now_s))), bucket.wait_s(bucket.per_minute, now_s))
