"""The policy in a real Serve controller, fed by what replicas of several deployments really report."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray

from app import metrics as names
from deployments.application_secret import RayStore
from deployments.scaling_report import DecisionRecord, last_decisions
from tests.integration.cluster import APPLICATION, Cluster, eventually
from tests.integration.conftest import Stacks
from tests.integration.scaling_app import LOAD_FILE
from tests.integration.stack import Stack

BUSY_ENGINE = {
    "kv_usage_ratio": 0.4,
    "queued_prefill_tokens": 0.0,
    "running_sequences": 16.0,
    "waiting_sequences": 0.0,
    "computed_tokens_per_s": 1000.0,
    "busy_ratio": 1.0,
    "preemptions_per_s": 0.0,
    "evicted_blocks_per_s": 0.0,
}
IDLE_ENGINE = dict.fromkeys(BUSY_ENGINE, 0.0)
QUIET = {
    f"{path}_{name}": 0.0
    for path in ("hot", "cold")
    for name in ("offered_tokens_per_s", "offered_requests_per_s", "queued_requests", "queued_tokens")
}
RULES = {"consolidation_window_s": 5, "smoothing_s": 0.5, "stale_after_s": 6, "replica_start_s": 5}


class Load:
    def __init__(self, folder: Path) -> None:
        self._file = folder / LOAD_FILE

    def set(self, engine: dict[str, float] | None, ingress: dict[str, float] | None) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({"engine": engine, "ingress": ingress}))
        draft.replace(self._file)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    told = Load(tmp_path_factory.mktemp("scaling"))
    told.set(IDLE_ENGINE, QUIET)
    return told


@pytest.fixture(scope="module")
def stack(stacks: Stacks, load: Load) -> Stack:
    settings = {"rules": RULES, "devices": 3.0, "replica_devices": {"hot": 0.5, "cold": 0.5}}
    arguments = {
        "folder": str(load._file.parent),
        "settings": settings,
        "bounds": {"HotEngine": (1, 4), "ColdEngine": (1, 2)},
    }
    application = {
        "name": APPLICATION,
        "import_path": "tests.integration.scaling_app:build",
        "args": arguments,
        "deployments": [{"name": "HotEngine", "max_ongoing_requests": 50}],  # Serve then rebuilds its policy by name
    }
    document = {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1"}, "applications": [application]}
    return stacks.use("scaling", lambda: document)


@pytest.fixture(scope="module")
def cluster(stack: Stack) -> Iterator[Cluster]:
    connected = Cluster(stack)
    yield connected
    connected.close()


def decision(path: str) -> DecisionRecord | None:
    return last_decisions(APPLICATION, RayStore()).get(path)


def wait_for_reason(path: str, *reasons: str) -> DecisionRecord:
    def decided() -> DecisionRecord | None:
        found = decision(path)
        return found if found is not None and found.reason in reasons else None

    return eventually(decided, f"{path}: {reasons}", 60)


def test_what_ingress_and_engines_report_adds_replicas_to_the_path_that_needs_them(
    load: Load, cluster: Cluster
) -> None:
    load.set(BUSY_ENGINE, {**QUIET, "hot_offered_tokens_per_s": 2000.0, "hot_offered_requests_per_s": 4.0})
    eventually(lambda: cluster.running_replicas("HotEngine") == 3, "2,000 tokens/s at 75 % of 1,000: three", 60)
    assert cluster.running_replicas("ColdEngine") == 1
    assert cluster.running_replicas("Ingress") == 1


def test_the_shared_budget_bounds_a_path_before_its_own_maximum(load: Load, cluster: Cluster) -> None:
    load.set(BUSY_ENGINE, {**QUIET, "hot_offered_tokens_per_s": 9000.0, "hot_offered_requests_per_s": 9.0})
    found = wait_for_reason("hot", "budget")
    assert found.desired_replicas == 3  # half of three devices, at half a device each
    assert found.inputs["demand_tokens_per_s"] > 2000


def test_replicas_that_fall_silent_are_held(load: Load, cluster: Cluster) -> None:
    load.set(None, None)
    assert wait_for_reason("hot", "stale_hold").desired_replicas == 3
    assert cluster.running_replicas("HotEngine") == 3


def test_after_known_silence_the_path_goes_to_its_floor_and_open_requests_end_first(
    load: Load, stack: Stack, cluster: Cluster
) -> None:
    answers: list[httpx.Response] = []
    url = f"{stack.url}/?attend=20"
    askers = [threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=90))) for _ in range(9)]
    for asker in askers:
        asker.start()
    load.set(IDLE_ENGINE, QUIET)
    eventually(lambda: cluster.running_replicas("HotEngine") == 1, "the floor", 90)
    for asker in askers:
        asker.join()
    assert [answer.text for answer in answers] == ["done"] * 9
    found = wait_for_reason("hot", "steady")
    assert found.desired_replicas == 1
    assert found.changed is not None


def test_the_metrics_are_on_rays_metrics_port(cluster: Cluster) -> None:
    url = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"

    def exported() -> bool:
        lines = httpx.get(url, timeout=10).text.splitlines()
        wanted = {metric.ray_name for metric in (names.DESIRED_REPLICAS, names.SCALING_DECISIONS, names.DEMAND_TOKENS)}
        return wanted <= {line.split("{")[0] for line in lines if 'engines="hot"' in line}

    eventually(exported, "the scaling metrics", 60)


def test_each_change_is_one_line_of_the_controllers_log(stack: Stack, cluster: Cluster) -> None:
    lines = [
        line
        for path in stack.log_files()
        if "controller" in path.name
        for line in path.read_text(errors="replace").splitlines()
        if "engines from" in line
    ]
    changes = [line[line.index("Scaling ") :].split(" {")[0] for line in lines]
    assert changes[0].startswith("Scaling hot engines from 1 to ")
    assert changes[-1].endswith("consolidation")
    assert len(changes) == len(set(changes)) <= 6, changes
