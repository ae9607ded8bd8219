"""`kvpulse check`: everything wrong with a configuration file, or the configuration as it will run, with reasons."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from app.config.facts import ResolvedPath
    from deployments.effective import EffectiveConfig

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("serve_config.yaml"))
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print errors and advice only.")
def check(file: Path, as_json: bool, quiet: bool) -> None:
    """Check FILE and print what every `auto` becomes on this machine, and why. Exit code 1 when it cannot be served."""
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a check starts no cluster
    sys.path.insert(0, str(Path.cwd()))  # class paths in the file are found as `serve run` finds them
    effective, errors = _examine(file)
    if as_json:
        click.echo(json.dumps({"errors": errors, **(_as_dict(effective) if effective else {})}, indent=2))
    elif effective is not None:
        _print(effective, quiet)
    else:
        for error in errors:
            click.secho(error, fg="red", err=True)
    sys.exit(1 if errors else 0)


def _examine(file: Path) -> tuple[EffectiveConfig | None, list[str]]:
    """The effective configuration, or one line per reason why there is none."""
    from app.errors import ConfigError
    from deployments import model_store, serve_schema
    from deployments.effective import effective_config

    try:
        document = _load(file)
        problems = serve_schema.refuse_unknown_keys(document)
        if problems:
            return None, [str(problem) for problem in problems]
        config = serve_schema.app_config(document)
        model_path = model_store.resolve(config.model.source)
        return effective_config(config, model_path, _is_loopback(document)), []
    except ConfigError as error:
        return None, str(error).splitlines()


def _load(file: Path) -> Any:
    import yaml

    from app.errors import ConfigError

    try:
        return yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name a Serve config file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text; name a Serve config file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None


def _is_loopback(document: dict[str, Any]) -> bool:
    host = str((document.get("http_options") or {}).get("host", "0.0.0.0"))  # noqa: S104 - Serve's default
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _as_dict(effective: EffectiveConfig) -> dict[str, Any]:
    return {
        "hardware": dataclasses.asdict(effective.hardware),
        "model": {"path": effective.model_path, **dataclasses.asdict(effective.model)},
        "paths": {name: dataclasses.asdict(path) for name, path in effective.paths.items()},
        "resources": {name: dataclasses.asdict(needs) for name, needs in effective.resources.items()},
        "admission": effective.config.admission.model_dump(),
        "scaling": effective.config.scaling.model_dump(),
        "advice": [dataclasses.asdict(advice) for advice in effective.advice],
    }


def _print(effective: EffectiveConfig, quiet: bool) -> None:
    from rich.console import Console

    console = Console()
    if not quiet:
        _print_tables(effective, console)
    for advice in effective.advice:
        colour = _COLOURS[advice.severity]
        console.print(f"[{colour}]{advice.severity}[/] {advice.name}: {advice.why} {advice.remedy}", soft_wrap=True)
    if not quiet:
        console.print("[green]This configuration can be served.[/]")


def _print_tables(effective: EffectiveConfig, console: Console) -> None:
    from rich.table import Table

    for title, facts in (("hardware", effective.hardware), ("model", effective.model)):
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in dataclasses.asdict(facts).items():
            table.add_row(name, _show(name, value))
        console.print(table)
    for name in effective.paths:
        console.print(_path_table(effective, name))
    table = Table(title="admission", title_justify="left", show_header=False)
    for key, value in _flat(effective.config.admission.model_dump()):
        table.add_row(key, "-" if value is None else f"{value:,}")
    console.print(table)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _path_table(effective: EffectiveConfig, name: str) -> Table:
    from rich.table import Column, Table

    path, needs = effective.paths[name], effective.resources[name]
    table = Table(Column("option", no_wrap=True), "value", "why", title=f"{name} engines", title_justify="left")
    table.add_row("share", str(path.share), _cores(path, effective.hardware.cores))
    table.add_row("max_ongoing_requests", str(path.max_ongoing_requests), "per replica; the engine queues the rest")
    for option in path.options:
        table.add_row(option.name, "-" if option.value is None else str(option.value), option.reason)
    asked = {**needs.ray_actor_options, "bundles": needs.placement_group_bundles}
    for key, value in (asked | {"strategy": needs.placement_group_strategy}).items():
        if value is not None:
            table.add_row(key, str(value), "asked of Ray per replica")
    for key, setting in needs.environment.items():
        table.add_row(key, setting, "environment of the replica")
    return table


def _cores(path: ResolvedPath, cores: int) -> str:
    yielding = f", nice {path.niceness}: they yield to the other path's" if path.niceness else ""
    decoding = f", {path.decode_threads} to decode" if path.decode_threads < path.threads else ""
    return f"{path.threads} thread(s) of {cores} core(s){decoding}{yielding}"


def _show(name: str, value: Any) -> str:
    from app.config.memory import gib

    return f"{value:,} ({gib(value)})" if name.endswith("_bytes") and value else str(value)
