"""Starts and stops the servers that a comparison measures: one stack at a time, and nothing left of it."""

from __future__ import annotations

import os
import signal
import string
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import BaseModel, ConfigDict, Field

from loadtest.probe import ProbeError, ServedModel, wait_until_answering
from loadtest.records import TrafficClass
from loadtest.streaming import Target

STOP_TIMEOUT_S = 60.0


class StackConfig(BaseModel):
    """One server: how it starts, where it answers.

    `${NAME}` in the command and in `environment` is replaced from the environment of this process.

    Args:
        url: its address; every class without an entry in `class_urls` goes there.
        model: the name it serves; None takes the first that /v1/models lists.
        ready_path: a GET of it must succeed before the stack counts as started.
        ready_timeout_s: longest wait until it, and each of `class_urls`, completes a prompt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str
    command: Annotated[list[str], Field(min_length=1)]
    url: str
    class_urls: dict[TrafficClass, str] = {}
    model: str | None = None
    environment: dict[str, str] = {}
    directory: str | None = None
    ready_path: str | None = None
    ready_timeout_s: float = Field(300.0, gt=0)

    @property
    def target(self) -> Target:
        return Target(self.url, class_urls={str(name): url for name, url in self.class_urls.items()})


def substitute(text: str, environment: Mapping[str, str]) -> str:
    """`${NAME}` replaced. Raises ProbeError when a name is not set."""
    try:
        return string.Template(text).substitute(environment)
    except KeyError as error:
        raise ProbeError(f"{text!r} needs the environment variable {error.args[0]}: set it and start again") from error


@contextmanager
def running_stack(stack: StackConfig, log_path: Path) -> Iterator[ServedModel]:
    """The started stack's model, once every address of it has completed a prompt; stops the stack at the end.

    Raises ProbeError when it does not become ready; `log_path` holds what it wrote.
    """
    with started_stack(stack, log_path) as process:
        yield wait_until_ready(stack, process)


@contextmanager
def started_stack(stack: StackConfig, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The stack's first process, without waiting; stops the stack at the end."""
    command = [substitute(part, os.environ) for part in stack.command]
    extra = {name: substitute(value, os.environ) for name, value in stack.environment.items()}
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own
            command,
            env={**os.environ, **extra},
            cwd=stack.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            stop_process_tree(process.pid)
            process.wait()


def wait_until_ready(stack: StackConfig, process: subprocess.Popen[bytes]) -> ServedModel:
    """The model, once every address has completed a prompt. Raises ProbeError."""
    served = None
    for url in dict.fromkeys((stack.url, *stack.class_urls.values())):
        model = wait_until_answering(
            Target(url), stack.model, stack.ready_timeout_s, lambda: process.poll() is None, stack.ready_path
        )
        served = served or model
    assert served is not None  # noqa: S101 - there is at least one address
    return served


def stop_process_tree(pid: int, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End a process and all it started: SIGTERM to the first, which ends its own; what is left is killed."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]  # listed before: orphans lose their parent
    except psutil.NoSuchProcess:
        return
    root.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=timeout_s)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=timeout_s)
