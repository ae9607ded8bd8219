"""What `model` may say, and what an engine is told beside the client's own body."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidRequestError, NotFoundError
from app.requests import Prompt, RequestFeatures, RequestPath
from deployments.rendering import CHAT, COMPLETIONS, RESPONSES, OpenAIRoute, Rendered, resolve_model

SERVED = frozenset({"tiny", "odd:name"})


@pytest.mark.parametrize(
    ("wanted", "name", "forced"),
    [
        ("tiny", "tiny", None),
        ("tiny:hot", "tiny", RequestPath.HOT),
        ("tiny:cold", "tiny", RequestPath.COLD),
        ("odd:name", "odd:name", None),
        ("odd:name:cold", "odd:name", RequestPath.COLD),
    ],
)
def test_a_served_name_may_carry_a_path(wanted: str, name: str, forced: RequestPath | None) -> None:
    assert resolve_model({"model": wanted}, SERVED, may_force=True) == (name, forced)


@pytest.mark.parametrize("wanted", ["other", "tiny:warm", "tiny:", ":hot", "tiny:hot:hot", "TINY"])
def test_any_other_name_is_unknown(wanted: str) -> None:
    with pytest.raises(NotFoundError) as unknown:
        resolve_model({"model": wanted}, SERVED, may_force=True)
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")


def test_a_path_without_permission_is_an_unknown_model() -> None:
    with pytest.raises(NotFoundError):
        resolve_model({"model": "tiny:cold"}, SERVED, may_force=False)


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"model": 7}, {"model": ["tiny"]}])
def test_a_model_that_is_no_name_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        resolve_model(body, SERVED, may_force=True)
    assert refused.value.param == "model"


def engine_body(
    route: OpenAIRoute, body: dict[str, Any], priority: int | None = None, cap: int | None = None
) -> dict[str, Any]:
    return Rendered(RequestFeatures(3, None), Prompt(3), body).engine_body(route, priority, cap)


def test_an_engine_is_told_the_priority_unless_the_client_has_set_one() -> None:
    assert engine_body(CHAT, {"n": 1}, priority=150) == {"n": 1, "priority": 150}
    assert engine_body(CHAT, {"priority": 0}, priority=150) == {"priority": 0}
    assert engine_body(CHAT, {"n": 1}) == {"n": 1}


@pytest.mark.parametrize(
    ("route", "body", "capped"),
    [
        (CHAT, {}, {"max_completion_tokens": 256}),
        (CHAT, {"max_tokens": 900}, {"max_tokens": 256}),
        (CHAT, {"max_completion_tokens": 900, "max_tokens": 9}, {"max_completion_tokens": 256, "max_tokens": 9}),
        (COMPLETIONS, {"max_tokens": 900, "min_tokens": 800}, {"max_tokens": 256, "min_tokens": 256}),
        (RESPONSES, {"max_output_tokens": None}, {"max_output_tokens": 256}),
    ],
)
def test_a_capped_answer_is_capped_in_the_field_that_the_route_heeds(
    route: OpenAIRoute, body: dict[str, Any], capped: dict[str, Any]
) -> None:
    before = dict(body)
    assert engine_body(route, body, cap=256) == capped
    assert body == before
