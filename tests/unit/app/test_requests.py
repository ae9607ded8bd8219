"""The nouns of one request."""

from __future__ import annotations

import dataclasses

import pytest

from app.requests import DEFAULT_PRIORITY, RequestFeatures, RequestPath


def test_uncached_tokens_are_those_no_replica_holds() -> None:
    assert RequestFeatures(prompt_tokens=6000, max_output_tokens=None, cached_tokens=5900).uncached_tokens == 100


def test_without_knowledge_of_a_cache_every_token_is_uncached() -> None:
    assert RequestFeatures(prompt_tokens=40, max_output_tokens=8).uncached_tokens == 40


def test_features_do_not_change() -> None:
    features = RequestFeatures(prompt_tokens=1, max_output_tokens=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        features.prompt_tokens = 2  # type: ignore[misc]  # the assignment that must fail


def test_a_path_is_its_name() -> None:
    assert RequestPath("hot") is RequestPath.HOT
    assert f"{RequestPath.COLD}" == "cold"


@pytest.mark.parametrize(("path", "engines"), [("hot", "hot"), ("warm", "hot"), ("cold", "cold")])
def test_warm_is_at_home_on_the_hot_engines(path: str, engines: str) -> None:
    assert RequestPath(path).engines == engines
    assert {RequestPath(path).engines, RequestPath(path).other_engines} == {"hot", "cold"}


def test_no_key_makes_a_path_as_urgent_as_the_one_above() -> None:
    assert RequestPath.HOT.priority(99) < RequestPath.WARM.priority(0)
    assert RequestPath.WARM.priority(99) < RequestPath.COLD.priority(0)
    assert RequestPath.HOT.priority(0) < RequestPath.HOT.priority() == DEFAULT_PRIORITY
