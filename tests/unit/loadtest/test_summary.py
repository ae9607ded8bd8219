from __future__ import annotations

import json

import pytest
from conftest import RecordMaker
from rich.console import Console

from loadtest import html_report
from loadtest.benchmark import EXIT_MISSED, EXIT_OK, Measured, Reports, report
from loadtest.plots import Axis, cumulative
from loadtest.records import Objective, Outcome, TrafficClass
from loadtest.report import RECENT_RECORDS, progress_of
from loadtest.runner import LoadRun
from loadtest.summary import missed_objectives, quantile, summarise, tokens_until

OBJECTIVES = {TrafficClass.IDE: Objective(ttft_s=0.2), TrafficClass.CHAT: Objective(ttft_s=0.2, itl_s=0.05, e2e_s=1.0)}


def test_quantiles_interpolate_and_nothing_has_none() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5


def test_goodput_is_over_what_was_offered(make_record: RecordMaker) -> None:
    records = [
        make_record(),
        make_record(),
        make_record(ttft_s=0.3),
        make_record(outcome=Outcome.REFUSED, status=429, reason="429 busy", ttft_s=None, output_tokens=0),
        make_record(outcome=Outcome.FAILED, reason="timeout"),
        make_record(outcome=Outcome.UNFINISHED, e2e_s=None),
    ]
    total = summarise(records, OBJECTIVES, duration_s=3.0).total
    assert (total.offered, total.ok, total.refused, total.failed, total.unfinished) == (6, 3, 1, 1, 1)
    assert (total.good, total.goodput_ratio) == (2, pytest.approx(1 / 3))
    assert total.output_tokens_per_s == pytest.approx(9 / 3)
    assert total.cached_ratio == pytest.approx(0.4)


def test_latency_is_of_answered_requests_alone(make_record: RecordMaker) -> None:
    records = [make_record(ttft_s=1.0), make_record(ttft_s=9.0, outcome=Outcome.FAILED)]
    assert summarise(records, OBJECTIVES, 1.0).total.ttft_s.p99 == 1.0


@pytest.mark.parametrize(
    ("changes", "good"),
    [({}, True), ({"ttft_s": 0.21}, False), ({"itl_s": [0.01, 0.1]}, False), ({"e2e_s": 1.1}, False)],
)
def test_every_limit_of_an_objective_binds(make_record: RecordMaker, changes: dict[str, object], good: bool) -> None:
    record = make_record(traffic_class=TrafficClass.CHAT, **{"itl_s": [0.01, 0.02], **changes})
    assert record.meets(OBJECTIVES[TrafficClass.CHAT]) is good


def test_first_touches_are_told_apart_and_counted_in_the_total(make_record: RecordMaker) -> None:
    summary = summarise([make_record(), make_record(first_touch=True, ttft_s=5.0)], OBJECTIVES, 1.0)
    assert [group.ttft_s.p50 for group in summary.groups] == [0.1]
    assert [group.ttft_s.p50 for group in summary.first_touches] == [5.0]
    assert summary.total.offered == 2


def test_the_span_ends_with_the_last_answer(make_record: RecordMaker) -> None:
    assert summarise([make_record(at_s=9.0, e2e_s=4.0)], OBJECTIVES, 10.0).span_s == 13.0


def test_tokens_in_a_window_leave_out_those_that_came_after_it(make_record: RecordMaker) -> None:
    record = make_record(at_s=9.0, ttft_s=0.5, itl_s=[0.4, 0.4], output_tokens=6)
    assert tokens_until(record, 10.0) == 4  # two of three chunks of two tokens
    assert tokens_until(make_record(outcome=Outcome.REFUSED), 10.0) == 0


def test_a_class_below_its_goodput_is_missed_by_name(make_record: RecordMaker) -> None:
    records = [make_record(), make_record(outcome=Outcome.REFUSED)]
    assert missed_objectives(records, OBJECTIVES, 0.5) == []
    (line,) = missed_objectives(records, OBJECTIVES, 0.9)
    assert line.startswith("ide: 1 of 2")


def test_the_reports_are_written_and_the_exit_code_follows_the_objectives(make_record: RecordMaker, tmp_path) -> None:
    run = LoadRun(duration_s=1.0)
    run.records = [make_record(key="<ide>"), make_record(outcome=Outcome.REFUSED, reason="429 <busy>", ttft_s=None)]
    page, data = tmp_path / "a" / "report.html", tmp_path / "b" / "report.json"
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    code = report(console, "title", {"host": "<h>"}, Measured(run, []), Reports(OBJECTIVES, 0.5, page, data))
    assert code == EXIT_OK
    assert "429 <busy>" in console.export_text()
    html = page.read_text()
    assert html.count("<svg") == html.count("</svg>") == 5
    assert "429 &lt;busy&gt;" in html
    assert "http" not in html.replace("<h>", "")  # it loads nothing
    written = json.loads(data.read_text())
    assert written["summary"]["total"]["goodput_ratio"] == 0.5
    assert len(written["records"]) == 2
    assert report(console, "title", {}, Measured(run, []), Reports(OBJECTIVES, 0.9)) == EXIT_MISSED
    assert report(console, "title", {}, Measured(LoadRun(1.0), []), Reports(OBJECTIVES, 0.9)) == EXIT_MISSED


def test_a_report_of_no_answers_renders(make_record: RecordMaker) -> None:
    records = [make_record(outcome=Outcome.FAILED, reason="timeout", ttft_s=None, itl_s=[], e2e_s=None)]
    page = html_report.render("t", {}, summarise(records, OBJECTIVES, 1.0), records, OBJECTIVES)
    assert "timeout" in page


def test_an_axis_puts_its_ends_at_its_ends() -> None:
    linear, logarithmic = Axis(0.0, 4.0), Axis.over([0.02, 3.0], logarithmic=True)
    assert [linear.share(0.0), linear.share(4.0)] == [0.0, 1.0]
    assert (logarithmic.low, logarithmic.high) == (pytest.approx(0.01), pytest.approx(10.0))
    assert logarithmic.share(0.1) == pytest.approx(1 / 3)


def test_a_cumulative_curve_ends_at_all_of_the_values() -> None:
    curve = cumulative([float(value) for value in range(10_000)])
    assert len(curve) < 400
    assert curve[-1] == (9999.0, 1.0)


def test_the_live_progress_counts_every_request_however_many_there_were(make_record: RecordMaker) -> None:
    first = [make_record(), make_record(outcome=Outcome.FAILED, reason="timeout", ttft_s=None)]
    late = [make_record(outcome=Outcome.REFUSED, ttft_s=None) for _ in range(RECENT_RECORDS)]
    shown = progress_of(LoadRun(duration_s=60.0, records=[*first, *late]))
    assert (shown["ok"], shown["failed"], shown["refused"]) == ("1", "1", str(RECENT_RECORDS))
    assert shown["sent"] == str(RECENT_RECORDS + 2)
