"""`kvpulse drain` where there is nothing to drain."""

from __future__ import annotations

import socket

from click.testing import CliRunner

from commands.main import main


def test_a_cluster_that_does_not_answer_is_one_clear_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        outcome = CliRunner().invoke(main, ["drain", "--address", address])
    assert outcome.exit_code == 1
    assert address in outcome.output
    assert len(outcome.output.strip().splitlines()) <= 2
    assert "Traceback" not in outcome.output
