"""An ingress's side of the board: sums up its requests and tells them once per second. No request waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping

from app.decisions.admission import AdmissionDecision
from app.requests import RequestPath
from app.state.board_reports import Decision, EnginesReport, IngressReport, PathReport, Prefix, PrefixCount
from app.state.engines import EnginesState
from deployments.board_client import BoardAwayError
from deployments.request_record import RequestRecord
from deployments.triage import Triaged

logger = logging.getLogger("ray.serve")

REPORT_S = 1.0
MOST_DECISIONS = 50
MOST_TIMES = 512
MOST_PREFIXES = 64
MOST_REPORT_TOKENS = 65_536  # of prefixes in one report; what does not fit is asked for again

Send = Callable[[IngressReport], Awaitable[list[int]]]


class BoardReporter:
    """Bounded: what the board does not take in time is lost, but for the content of frequent prefixes, which the board
    asks for until it has it.

    Args:
        ingress: this replica's unique id.
        send: gives a report to the board; raises BoardAwayError.
        states: of both paths' engines now.
    """

    def __init__(
        self,
        ingress: str,
        send: Send,
        states: Callable[[], Mapping[RequestPath, EnginesState]],
        period_s: float = REPORT_S,
    ) -> None:
        self._ingress = ingress
        self._period_s = period_s
        self._send = send
        self._states = states
        self._prefixes: OrderedDict[tuple[RequestPath, int], Prefix] = OrderedDict()  # of late
        self._wanted: set[int] = set()
        self._begin()

    def observe(self, record: RequestRecord) -> None:
        """An Observer of requests; takes microseconds."""
        path = record.path
        self._outcomes[path][record.outcome] += 1
        if record.ttft_s is not None:
            self._times[path].append(record.ttft_s)
        self._decisions.append(_decision(record))
        if record.replica:
            self._note_prefix(record.engines, record.triaged)

    async def run(self) -> None:
        """Report for ever."""
        away = False
        while True:
            await asyncio.sleep(self._period_s)
            try:
                self._wanted = set(await self._send(self.report()))
                away = False
            except BoardAwayError as error:
                if not away:
                    logger.info("the board is away (%s); requests flow without it", error)
                away = True
            except Exception:  # the next second is another one
                logger.exception("a report to the board failed")

    def report(self) -> IngressReport:
        """What came together since the one before."""
        report = IngressReport(
            self._ingress,
            {path: PathReport(dict(self._outcomes[path]), list(self._times[path])) for path in RequestPath},
            {engines: _engines_report(state) for engines, state in self._states().items()},
            list(self._decisions),
            self._prefix_counts(),
        )
        self._begin()
        return report

    def _begin(self) -> None:
        self._outcomes: dict[RequestPath, Counter[str]] = {path: Counter() for path in RequestPath}
        self._times: dict[RequestPath, deque[float]] = {path: deque(maxlen=MOST_TIMES) for path in RequestPath}
        self._decisions: deque[Decision] = deque(maxlen=MOST_DECISIONS)
        self._prefix_requests: Counter[tuple[RequestPath, int]] = Counter()

    def _note_prefix(self, engines: RequestPath, triaged: Triaged) -> None:
        """A frequent prefix is kept with its salt: it may be computed for requests with the same one only."""
        length, prompt, hashed = triaged.features.heavy_prefix_tokens, triaged.prompt, triaged.hashed
        if not length or prompt is None or not prompt.tokens:
            return
        key = (engines, hashed.hashes[length // hashed.block_size - 1])
        self._prefix_requests[key] += 1
        if key not in self._prefixes:
            self._prefixes[key] = Prefix(tuple(prompt.tokens[:length]), prompt.cache_salt)
        self._prefixes.move_to_end(key)
        if len(self._prefixes) > MOST_PREFIXES:
            self._prefixes.popitem(last=False)

    def _prefix_counts(self) -> list[PrefixCount]:
        """Those that were asked with, and those that the board asks for, whether anyone did so again or not."""
        room = MOST_REPORT_TOKENS
        requests = dict(self._prefix_requests.most_common(MOST_PREFIXES))
        wanted = {name: prefix for name, prefix in self._prefixes.items() if name[1] in self._wanted}
        counts = []
        for name in requests.keys() | wanted.keys():
            prefix = wanted.get(name)
            if prefix is not None and len(prefix.tokens) > room:
                prefix = None
            room -= 0 if prefix is None else len(prefix.tokens)
            counts.append(PrefixCount(*name, requests.get(name, 0), prefix))
        return counts


def _engines_report(state: EnginesState) -> EnginesReport:
    return EnginesReport(state.waiting, int(state.level), state.signal)


def _decision(record: RequestRecord) -> Decision:
    found, features, routing = record.triaged.found, record.triaged.features, record.routing
    return Decision(
        path=found.path,
        reason=found.reason,
        priority=record.triaged.priority,
        engines=record.engines,
        admission=_admission(record.admission, record.outcome),
        outcome=record.outcome,
        replica=record.replica,
        routing="" if routing is None else routing.reason,
        prompt_tokens=features.prompt_tokens,
        matched_tokens=0 if routing is None else routing.matched_tokens,
        waited_s=round(record.waited_s, 3),
        ttft_s=None if record.ttft_s is None else round(record.ttft_s, 4),
    )


def _admission(decision: AdmissionDecision | None, outcome: str) -> str:
    """A quota that refuses does so before admission, and its reason is the outcome."""
    return outcome if decision is None else decision.reason.value
