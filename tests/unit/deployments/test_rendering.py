"""What `model` may say."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidRequestError, NotFoundError
from app.requests import RequestPath
from deployments.rendering import resolve_model

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
