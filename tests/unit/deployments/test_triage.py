"""What caches, frequent prefixes and sessions make of a request."""

from __future__ import annotations

import random

import pytest

from app.config.keys import Client
from app.config.schema import AppConfig
from app.requests import Prompt, RequestFeatures, RequestPath
from app.state.pulse import ReplicaLoad
from deployments.path_replicas import PathReplicas
from deployments.rendering import Rendered
from deployments.triage import Triage, Triaged
from tests.fakes import FakeClock
from tests.unit.deployments.configs import config_of

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
RULES = {"hot_max_uncached_tokens": 200, "hot_max_output_tokens": 50, "warm_min_prefix_tokens": 64}
CLIENT = Client("someone", frozenset(), priority=20)
BLOCK = {HOT: 16, COLD: 32}


class NoFeed:
    """A subscriber that hears nothing: what is known of a replica is what a test says."""

    def follow(self, *_: object) -> None: ...

    def unfollow(self, *_: object) -> None: ...


def path_replicas(config: AppConfig) -> PathReplicas:
    return PathReplicas(config.routing, b"key", NoFeed(), random.Random(1))  # type: ignore[arg-type]  # a stand-in


class Scene:
    """One replica on each path, of which nothing is known but what a test says."""

    def __init__(self) -> None:
        self.config = config_of(routing=RULES, admission={"heavy_hitters": {"min_requests": 3, "min_share": 0}})
        self.replicas = {path: path_replicas(self.config) for path in BLOCK}
        for path, replicas in self.replicas.items():
            replicas.told({path: {"feed": {"pulses": "", "snapshots": "", "block_size": BLOCK[path]}}})
        self.triage = Triage(self.config, {HOT: 4000, COLD: 8000}, self.replicas, FakeClock())

    def holds(self, path: RequestPath, prompt: Prompt) -> None:
        replicas = self.replicas[path]
        replicas.view.replace(path, replicas.request(prompt).hashes, ReplicaLoad())

    def take(self, prompt: list[int], output: int | None = 10, label: str | None = None, **given: object) -> Triaged:
        return self.triage.take(rendered(prompt, output, **given), CLIENT, label)


def rendered(prompt: list[int], output: int | None = 10, **given: object) -> Rendered:
    features = RequestFeatures(len(prompt), output, **given)  # type: ignore[arg-type]  # a few of its fields
    return Rendered(features, Prompt(len(prompt), prompt), {})


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_long_prompt_that_hot_engines_hold_is_hot(scene: Scene) -> None:
    prompt = list(range(1000))
    assert scene.take(prompt).found.path is COLD
    scene.holds(HOT, Prompt(1000, prompt))
    triaged = scene.take(prompt)
    assert (triaged.found.path, triaged.features.cached_tokens) == (HOT, 992)


def test_a_cold_requests_cached_tokens_are_those_of_the_cold_engines(scene: Scene) -> None:
    prompt = list(range(1024))
    scene.holds(COLD, Prompt(1024, prompt))
    triaged = scene.take(prompt)
    assert (triaged.found.path, triaged.features.cached_tokens) == (COLD, 992)  # the last block is computed again


def test_a_prefix_that_many_share_makes_the_next_one_warm(scene: Scene) -> None:
    shared = list(range(512))
    found = [scene.take(shared + [n] * 100).found for n in range(3)]
    assert [(each.path, each.reason) for each in found] == [(COLD, "long_prompt")] * 2 + [(WARM, "heavy_prefix")]


def test_a_session_stays_on_its_path_and_a_forced_request_does_not_move_it(scene: Scene) -> None:
    assert scene.take([1] * 1000, label="s").found.path is COLD
    assert scene.take([2] * 10, label="t", forced_path=COLD).found.reason == "forced"
    short = scene.take([3] * 10, label="s").found
    assert (short.path, short.reason) == (COLD, "session")
    assert scene.take([3] * 10, label="t").found.path is HOT


def test_a_keys_priority_is_its_place_inside_the_path(scene: Scene) -> None:
    assert scene.take([1] * 10).found.priority == HOT.priority(20)


def test_what_is_forced_or_fits_one_context_only_may_not_move(scene: Scene) -> None:
    assert scene.take([1] * 10).may_move
    assert not scene.take([1] * 10, forced_path=HOT).may_move
    assert not scene.take([1] * 5000).may_move


def test_looking_leaves_no_trace(scene: Scene) -> None:
    shared = list(range(512))
    for n in range(10):
        looked = scene.triage.look(rendered(shared + [n] * 100), CLIENT, "s").found
        assert looked.reason == "long_prompt"
    assert scene.take([1] * 10, label="s").found.path is HOT


def test_looking_finds_what_taking_does(scene: Scene) -> None:
    shared = list(range(512))
    for n in range(3):
        scene.take(shared + [n] * 100)
    assert scene.triage.look(rendered(shared + [9] * 100), CLIENT, None).found.path is WARM


def test_a_prompt_is_hashed_once_where_both_paths_have_the_same_blocks(scene: Scene) -> None:
    prompt = Prompt(100, range(100))
    hot, cold = scene.replicas[HOT], scene.replicas[COLD]
    assert cold.request(prompt, hot.request(prompt)).hashes == cold.request(prompt).hashes
    assert hot.request(prompt, hashed := hot.request(prompt)) is hashed


def test_until_serve_has_told_the_replicas_there_are_no_readings(scene: Scene) -> None:
    untold = path_replicas(scene.config)
    assert untold.readings() is None
    untold.told({})
    assert untold.readings() == []


def test_readings_hold_what_was_sent_and_is_not_reported(scene: Scene) -> None:
    hot = scene.replicas[HOT]
    hot.view.replace(HOT, (), ReplicaLoad(kv_blocks=7))
    hot.view.debit(HOT, prefill_tokens=30, decode_tokens=50)
    (reading,) = hot.readings() or ()
    assert (reading.load, reading.kv_debit_tokens, reading.prefill_debit_tokens) == (ReplicaLoad(kv_blocks=7), 30, 30)
