"""One stack at a time: modules are named so that those of one stack follow each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is imported: the clusters of `serve run` ask for a token

import pytest

from tests.integration import configs
from tests.integration.cluster import Cluster
from tests.integration.stack import SERVE_RUN, Stack
from tests.otlp_collector import OtlpCollector
from tests.tiny_model import make_tiny_mla_model, make_tiny_model

_LOG_TAIL = 6000


class Stacks:
    """Starts a stack when a test first asks for it, after the one before has stopped."""

    def __init__(self) -> None:
        self._name = ""
        self.stack: Stack | None = None

    def use(self, name: str, config: Callable[[], dict[str, Any]], command: Sequence[str | Path] = SERVE_RUN) -> Stack:
        if self.stack is None or self._name != name:
            self.stop()
            self._name, self.stack = name, Stack(config(), command)
            self.stack.start()
            self.stack.wait_until_ready()
        return self.stack

    def stop(self) -> None:
        stack, self.stack = self.stack, None
        if stack is not None:
            left = stack.stop()
            assert not left, f"processes that outlived `serve run`: {left}"


@pytest.fixture(scope="session")
def stacks() -> Iterator[Stacks]:
    running = Stacks()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def key_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="session")
def collector() -> Iterator[OtlpCollector]:
    listening = OtlpCollector()
    yield listening
    listening.close()


@pytest.fixture(scope="module")
def two_nodes(stacks: Stacks, tiny_model: str) -> Stack:
    command = [sys.executable, "-m", "tests.integration.two_nodes"]
    return stacks.use("two nodes", lambda: configs.two_nodes(tiny_model), command)


@pytest.fixture(scope="module")
def latent_attention(stacks: Stacks, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    model = make_tiny_mla_model(tmp_path_factory.mktemp("mla"))
    return stacks.use("latent attention", lambda: configs.latent_attention(model))


@pytest.fixture(scope="module")
def plumbing(stacks: Stacks, tiny_model: str) -> Stack:
    return stacks.use("plumbing", lambda: configs.plumbing(tiny_model))


@pytest.fixture(scope="module")
def answers(stacks: Stacks, key_folder: Path) -> Stack:
    return stacks.use("answers", lambda: configs.answers(key_folder))


@pytest.fixture(scope="module")
def tight(stacks: Stacks, tiny_model: str, key_folder: Path, collector: OtlpCollector) -> Stack:
    return stacks.use("tight", lambda: configs.tight(tiny_model, key_folder, collector.url))


@pytest.fixture(scope="module")
def tight_cluster(tight: Stack) -> Iterator[Cluster]:
    cluster = Cluster(tight)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def plumbing_cluster(plumbing: Stack) -> Iterator[Cluster]:
    cluster = Cluster(plumbing)
    yield cluster
    cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the end of what the stack has logged."""
    report = yield
    stacks = getattr(item, "funcargs", {}).get("stacks")
    stack = stacks.stack if isinstance(stacks, Stacks) else None
    if report.failed and stack is not None and stack.log_path.exists():
        report.sections.append(("serve run", stack.log_text()[-_LOG_TAIL:]))
    return report
