"""What an ingress tells the board: sums, the latest decisions, frequent prefixes on demand; never a text or a key."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from app.decisions.classifier import Classification
from app.decisions.routing import RoutingDecision, RoutingReason, RoutingRequest
from app.requests import Prompt, RequestFeatures
from app.state.board_reports import IngressReport, Prefix
from app.state.chain_hashes import ChainHasher, text_extra
from deployments.board_client import BoardAwayError
from deployments.board_reporter import MOST_DECISIONS, MOST_PREFIXES, MOST_REPORT_TOKENS, BoardReporter
from deployments.request_record import RequestRecord
from deployments.triage import Triaged
from tests.fakes import until
from tests.gates import COLD, HOT, WARM, Door

BLOCK = 16


class Board:
    """What the board would have got, and what it asks for."""

    def __init__(self) -> None:
        self.reports: list[IngressReport] = []
        self.wanted: list[int] = []
        self.away = False

    async def report(self, report: IngressReport) -> list[int]:
        self.reports.append(report)
        if self.away:
            raise BoardAwayError("TimeoutError")
        return self.wanted


def reporter(board: Board | None = None, door: Door | None = None) -> BoardReporter:
    gate = (door or Door()).gate
    return BoardReporter("ingress-1", (board or Board()).report, lambda: gate.states)


def record(
    seed: int = 1, outcome: str = "answered", frequent: int = 0, salt: str | None = None, length: int = 100
) -> RequestRecord:
    tokens = (seed, *range(2, length + 1))
    hashes = ChainHasher(b"key", BLOCK).prompt(tokens, text_extra(salt))
    triaged = Triaged(
        RequestFeatures(length, 10, heavy_prefix_tokens=frequent),
        Classification(WARM, "heavy_prefix", WARM.priority()),
        RoutingRequest(length, hashes, BLOCK),
        may_move=False,
        prompt=Prompt(length, tokens, salt),
    )
    routing = RoutingDecision("r0", RoutingReason.PREFIX_HIT, 64, 1.0)
    return RequestRecord(triaged, outcome, HOT, None, routing, "r0", duration_s=1.0, ttft_s=0.25, waited_s=0.1)


async def told(report: BoardReporter, wanted: list[int]) -> IngressReport:
    """The report that answers what the board asked for after the one before."""
    report._wanted = set(wanted)
    return report.report()


def test_a_report_sums_up_what_ended_since_the_one_before() -> None:
    reports = reporter()
    for outcome in ("answered", "answered", "queue_full"):
        reports.observe(record(outcome=outcome))
    warm = reports.report().paths[WARM]
    assert (warm.outcomes, list(warm.ttft_s)) == ({"answered": 2, "queue_full": 1}, [0.25] * 3)
    assert reports.report().paths[WARM].outcomes == {}


def test_a_decision_is_told_with_its_reasons() -> None:
    reports = reporter()
    reports.observe(record())
    reports.observe(replace(record(outcome="tokens_per_minute"), routing=None, replica=""))
    served, refused = reports.report().decisions
    assert (served.path, served.reason, served.engines, served.replica) == (WARM, "heavy_prefix", HOT, "r0")
    assert (served.routing, served.matched_tokens, served.prompt_tokens, served.ttft_s) == ("prefix_hit", 64, 100, 0.25)
    assert (refused.admission, refused.outcome, refused.routing) == ("tokens_per_minute", "tokens_per_minute", "")


async def test_the_state_of_the_engines_is_that_of_now() -> None:
    door = Door(slots=1)
    reports = reporter(door=door)
    door.admit(COLD)
    door.admit(COLD)
    door.report(HOT, kv_usage_ratio=0.86)
    door.gate.tick()
    engines = reports.report().engines
    assert (engines[COLD].queued_requests, engines[HOT].level, engines[HOT].signal) == (1, 1, "kv_usage_ratio")


async def test_the_content_of_a_frequent_prefix_leaves_only_when_it_is_asked_for() -> None:
    reports = reporter()
    reports.observe(record(frequent=64))
    (count,) = reports.report().prefixes
    assert (count.engines, count.requests, count.prefix) == (HOT, 1, None)
    assert (await told(reports, [])).prefixes == []
    (count,) = (await told(reports, [count.key])).prefixes  # though nobody has asked with it again
    assert (count.requests, count.prefix) == (0, Prefix((1, *range(2, 65))))


async def test_a_salted_prefix_keeps_its_salt_and_is_another_one() -> None:
    reports = reporter()
    for salt in (None, "ours", "theirs"):
        reports.observe(record(frequent=64, salt=salt))
    keys = [count.key for count in reports.report().prefixes]
    assert len(set(keys)) == 3
    for salt in (None, "ours", "theirs"):
        reports.observe(record(frequent=64, salt=salt))
    counts = (await told(reports, keys)).prefixes
    assert {count.prefix.cache_salt for count in counts if count.prefix} == {None, "ours", "theirs"}


def test_what_is_not_frequent_or_ran_nowhere_is_no_prefix() -> None:
    reports = reporter()
    reports.observe(record(frequent=0))
    reports.observe(replace(record(frequent=64), replica=""))
    assert reports.report().prefixes == []


async def test_however_much_comes_a_report_is_bounded() -> None:
    reports = reporter()
    length = MOST_REPORT_TOKENS // 8
    for seed in range(3 * MOST_PREFIXES):
        reports.observe(record(seed, frequent=length // BLOCK * BLOCK, length=length))
    keys = [count.key for count in reports.report().prefixes]
    assert len(keys) == MOST_PREFIXES
    for seed in range(3 * MOST_PREFIXES):
        reports.observe(record(seed, frequent=length // BLOCK * BLOCK, length=length))
    report = await told(reports, [*keys, *(each for each in range(10))])
    assert len(report.decisions) == MOST_DECISIONS
    assert sum(len(count.prefix.tokens) for count in report.prefixes if count.prefix) <= MOST_REPORT_TOKENS


async def test_a_board_that_is_away_stops_no_report() -> None:
    board = Board()
    board.away = True
    reports = BoardReporter("i", board.report, lambda: Door().gate.states, period_s=0.001)
    running = asyncio.create_task(reports.run())
    await until(lambda: len(board.reports) >= 2)
    board.away = False
    reports.observe(record())
    await until(lambda: any(report.decisions for report in board.reports))
    running.cancel()
