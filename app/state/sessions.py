"""Session labels: which path a client's earlier requests under the same label took."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from app.config.admission import SessionsConfig
from app.requests import RequestPath


@dataclass(frozen=True, slots=True)
class Session:
    """What the requests of one session inherit."""

    path: RequestPath
    priority: int


_NOTHING: tuple[None, float] = (None, float("-inf"))


class Sessions:
    """Labels by client, forgotten `ttl_s` after their last use, the least recently used first when a client has too
    many. One client's labels never meet another's, and however many it invents it pushes out its own only.

    Args:
        rules: lifetime and bound.
        clock: monotonic seconds.
    """

    def __init__(self, rules: SessionsConfig, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        # By client: digest of the label -> (session, expiry), in the order of expiry, since each use renews it.
        self._clients: dict[str, OrderedDict[bytes, tuple[Session, float]]] = {}

    def recall(self, client: str, label: str) -> Session | None:
        """What the label was given, unless it has expired."""
        labels = self._clients.get(client)
        session, expiry_s = labels.get(_digest(label), _NOTHING) if labels else _NOTHING
        return session if expiry_s > self._clock() else None

    def remember(self, client: str, label: str, session: Session) -> None:
        """Give the label a path and priority, and a new lifetime."""
        now_s = self._clock()
        labels = self._clients.setdefault(client, OrderedDict())
        labels[_digest(label)] = (session, now_s + self._rules.ttl_s)
        labels.move_to_end(_digest(label))
        while len(labels) > self._rules.max_per_client or next(iter(labels.values()))[1] <= now_s:
            labels.popitem(last=False)

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))


def _digest(label: str) -> bytes:
    """Labels come from outside in any length: what is kept has one."""
    return blake2b(label.encode("utf-8", "surrogatepass"), digest_size=16).digest()
