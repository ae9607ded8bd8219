"""What is told of a request at its end."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import JSONResponse

from app.decisions.routing import RoutingReason
from app.errors import ApiError
from app.requests import Refusal
from deployments.request_record import RequestRecord, log_request, observed_by
from tests.answers_rig import DEAD, Client, setting
from tests.fakes import ServeApp, events
from tests.gates import COLD, HOT, Door, triaged


async def test_a_streamed_answer_is_told_with_its_times_from_its_arrival(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, events("1", "[DONE]"), used_tokens=12)
    await scene.answer()
    await scene.released()
    (record,) = scene.records
    assert (record.path, record.engines, record.outcome) == (HOT, HOT, "answered")
    assert (record.ttft_s, record.duration_s, record.waited_s) == (0.5, 0.5, 0.0)  # the rig's clock stands still
    assert (record.replica, record.used_tokens) == ("r0", 12)
    assert record.routing is not None
    assert record.routing.reason is RoutingReason.FALLBACK


async def test_an_answer_in_one_piece_has_no_first_token(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({}))
    await scene.answer()
    await scene.released()
    assert [record.ttft_s for record in scene.records] == [None]


async def test_a_request_that_engines_failed_is_told_once_with_the_error_that_its_client_got(
    serve_app: ServeApp,
) -> None:
    scene = await setting(serve_app, DEAD, DEAD)
    with pytest.raises(ApiError) as failure:
        await scene.answer()
    await scene.released()
    assert [record.outcome for record in scene.records] == [failure.value.code]


async def test_an_error_without_a_code_is_told_by_its_type(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({"error": {"message": "no such field", "code": 400}}, 400))
    with pytest.raises(ApiError, match="no such field"):
        await scene.answer()
    await scene.released()
    assert [record.outcome for record in scene.records] == ["invalid_request_error"]


async def test_an_unexpected_error_is_not_taken_for_a_client_that_left(serve_app: ServeApp) -> None:
    class Fails(Client):
        async def send(self, message: Any) -> None:
            raise RuntimeError("unexpected")

    scene = await setting(serve_app, events("1", "[DONE]"))
    scene.client = Fails()
    with pytest.raises(RuntimeError, match="unexpected"):
        await scene.answer()
    await scene.released()
    assert [record.outcome for record in scene.records] == ["internal_error"]


async def test_a_refusal_is_told_with_its_reason() -> None:
    records: list[RequestRecord] = []
    door = Door(observe=records.append, queues={"cold": {"max_requests": 1, "max_tokens": 100}}, slots=1)
    for _ in ("runs", "waits"):
        door.admit(COLD)
    with pytest.raises(ApiError):
        door.admit(COLD)
    (record,) = records
    assert (record.path, record.engines, record.outcome) == (COLD, COLD, Refusal.QUEUE_FULL)
    assert record.admission is not None
    assert record.duration_s is None


def request_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Not what else is logged meanwhile, of what earlier tests left to the garbage collector."""
    return [record.getMessage() for record in caplog.records if record.name == "ray.serve"]


def test_the_line_of_the_log_tells_every_decision(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    door.report(COLD, kv_usage_ratio=0.96)
    door.gate.tick()
    admitted = door.admit(COLD, output=2000)
    with caplog.at_level("INFO", logger="ray.serve"):
        log_request(RequestRecord(admitted.triaged, "answered", COLD, admitted.decision))
    (line,) = request_lines(caplog)
    for told in ("path=cold", "admission=home", "level=compress", "engines=cold", "output_cap_tokens=256", "routing=-"):
        assert f" {told} " in line


def test_the_line_of_the_log_tells_what_was_predicted_beside_what_came(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    first = door.admit(HOT, prompt=1000)
    door.clock.advance(2.0)
    first.first_token()
    door.report(HOT)
    door.gate.tick()
    admitted = door.admit(HOT, prompt=400)
    with caplog.at_level("INFO", logger="ray.serve"):
        log_request(RequestRecord(admitted.triaged, "answered", HOT, admitted.decision, ttft_s=0.9))
    (line,) = request_lines(caplog)
    assert " prefill_ms=800 ttft_ms=900 " in line


def test_an_observer_that_fails_keeps_nothing_from_the_others() -> None:
    told: list[RequestRecord] = []

    def fails(record: RequestRecord) -> None:
        raise RuntimeError("no")

    record = RequestRecord(triaged(), "answered", HOT, None)
    observed_by(fails, told.append)(record)
    assert told == [record]
