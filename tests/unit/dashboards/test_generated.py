"""The committed files are what the code makes."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from commands.main import main
from dashboards import generated


def test_the_committed_files_are_what_the_code_makes() -> None:
    committed = {
        str(path.relative_to(generated.DIRECTORY)): path.read_text()
        for pattern in ("grafana/*", "prometheus/*", "*.md")
        for path in generated.DIRECTORY.glob(pattern)
    }
    assert committed == generated.files(), "run `kvpulse dashboards build`"


def test_build_writes_what_is_missing_and_then_nothing(tmp_path: Path) -> None:
    first = CliRunner().invoke(main, ["dashboards", "build", "--directory", str(tmp_path)])
    assert first.exit_code == 0
    assert first.output.count("wrote ") == len(generated.files())
    second = CliRunner().invoke(main, ["dashboards", "build", "--directory", str(tmp_path)])
    assert second.output == f"nothing changed in {tmp_path}\n"
