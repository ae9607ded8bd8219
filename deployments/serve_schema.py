"""Check a whole Serve config file against Ray's own schemas and ours. Ray ignores keys that it does not know."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.config.nearest import did_you_mean
from app.config.schema import AppConfig
from deployments import engine_options

APPLICATION = "deployments.application:build_app"
DEPLOYMENT_NAMES = ("Ingress", "HotEngine", "ColdEngine", "PulseBoard")
# Keys whose value is the import path of a class or function.
_IMPORTED = ("request_router_class", "policy_function", "exporter_import_path", "actor_class")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of the file, at a path such as `applications[0].args.paths.hot.share`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def refuse_unknown_keys(document: Any) -> list[Problem]:
    """Return every fault of a parsed Serve config file: unknown keys, wrong values, names that do not exist.

    Class paths are imported, as Ray would do when it deploys the file.
    """
    from ray.serve.schema import ServeDeploySchema

    if not isinstance(document, dict):
        return [Problem("", "the file is not a mapping; start it with `applications:`")]
    problems = [*_unknown_keys(document, ServeDeploySchema, "")]
    applications = document.get("applications")
    ours = [(f"applications[{index}]", item) for index, item in enumerate(_dicts(applications)) if _is_ours(item)]
    if not ours:
        problems.append(Problem("applications", f"none has import_path: {APPLICATION}"))
    for path, application in ours:
        problems += [*_arguments(application.get("args"), f"{path}.args"), *_deployments(application, path)]
    problems += _imports(document, "")
    if not problems:  # Ray's own validation imports the classes again; with faults known it would only repeat them
        problems += _invalid(document, ServeDeploySchema, "")
    return problems


def app_config(document: dict[str, Any]) -> AppConfig:
    """The configuration of our application in a file without problems."""
    application = next(filter(_is_ours, document["applications"]))
    return AppConfig.model_validate(application["args"])


def _is_ours(application: dict[str, Any]) -> bool:
    return str(application.get("import_path")).replace(":", ".") == APPLICATION.replace(":", ".")


def _arguments(arguments: Any, path: str) -> Iterator[Problem]:
    arguments = {} if arguments is None else arguments
    yield from _unknown_keys(arguments, AppConfig, path)
    yield from _invalid(arguments, AppConfig, path)
    for name in ("hot", "cold"):
        engine = arguments
        for step in ("paths", name, "engine"):
            engine = engine.get(step) if isinstance(engine, dict) else None
        for fault in engine_options.unknown(engine if isinstance(engine, dict) else ()):
            yield Problem(f"{path}.paths.{name}.engine", fault)


def _deployments(application: dict[str, Any], path: str) -> Iterator[Problem]:
    for index, deployment in enumerate(_dicts(application.get("deployments"))):
        where = f"{path}.deployments[{index}]"
        name = deployment.get("name")
        if name is not None and name not in DEPLOYMENT_NAMES:
            hint = did_you_mean(str(name), DEPLOYMENT_NAMES)
            yield Problem(f"{where}.name", f"the application has no deployment {name!r}; {hint}")
        if isinstance(deployment.get("num_replicas"), int) and deployment.get("autoscaling_config") is not None:
            yield Problem(f"{where}.num_replicas", "cannot stand beside autoscaling_config; remove one of them")
        if name in _scaled(application):
            yield from _overrides_scaling(deployment, where)


def _scaled(application: dict[str, Any]) -> set[str]:
    """Deployments whose `autoscaling_config` the application makes, since `replicas` of a path is a range."""
    paths = (application.get("args") or {}).get("paths") or {}
    ranges = {"hot": "HotEngine", "cold": "ColdEngine"}
    scaled = {name for key, name in ranges.items() if isinstance((paths.get(key) or {}).get("replicas"), dict)}
    return {*scaled, "Ingress"} if scaled else set()


def _overrides_scaling(deployment: dict[str, Any], where: str) -> Iterator[Problem]:
    own = deployment.get("autoscaling_config")
    if deployment.get("num_replicas") is not None:
        yield Problem(f"{where}.num_replicas", "would be ignored: a path's `replicas` is a range; say numbers in args")
    if own is not None and not (isinstance(own, dict) and own.get("policy")):
        yield Problem(
            f"{where}.autoscaling_config", "replaces the policy of args.scaling; name one in it, or remove it"
        )


def _unknown_keys(value: Any, schema: type[BaseModel], path: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        return
    fields = {field.alias or name: field.annotation for name, field in schema.model_fields.items()}
    for key, inner in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in fields:
            yield from _nested(inner, fields[key], where)
        elif schema.model_config.get("extra") != "allow":
            yield Problem(where, f"unknown key; {did_you_mean(str(key), fields)}")


def _nested(value: Any, annotation: Any, path: str) -> Iterator[Problem]:
    schema = _schema_in(annotation)
    if schema is None:
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_keys(item, schema, f"{path}[{index}]")
    else:
        yield from _unknown_keys(value, schema, path)


def _schema_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside annotations such as `Optional[Union[Dict, AutoscalingConfig]]` or `List[DeploymentSchema]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_schema_in, typing.get_args(annotation))), None)


def _invalid(value: Any, schema: type[BaseModel], path: str) -> Iterator[Problem]:
    """What pydantic refuses, one problem per value: the members of a union complain about the same value each."""
    try:
        schema.model_validate(value)
    except ValidationError as error:
        messages: dict[str, list[str]] = {}
        given: dict[str, str] = {}
        for fault in error.errors():
            where = _join(path, _steps_in(value, fault))
            found = messages.setdefault(where, [])
            if fault["type"] != "extra_forbidden":  # reported with the nearest valid name elsewhere
                found.append(fault["msg"].removeprefix("Value error, "))
                given[where] = _given(fault["input"])
        for where, found in messages.items():
            inner_fault = any(other.startswith((f"{where}.", f"{where}[")) for other in messages if where)
            if found and not inner_fault:
                yield Problem(where, "; or ".join(dict.fromkeys(found)) + given[where])
    except Exception as error:  # Ray's validators import classes, which may raise anything
        yield Problem(path, str(error).splitlines()[0] if str(error) else type(error).__name__)


def _steps_in(value: Any, fault: ErrorDetails) -> list[int | str]:
    """The steps of a fault's location that the file has too: pydantic also names the union member it tried."""
    steps: list[int | str] = []
    for step in fault["loc"]:
        missing = fault["type"] == "missing" and step == fault["loc"][-1]
        present = isinstance(value, dict) and step in value
        if present or (isinstance(value, list) and isinstance(step, int)):
            value = value[step]
        elif not missing:
            continue
        steps.append(step)
    return steps


def _given(value: Any) -> str:
    return f" (got {value!r})" if isinstance(value, str | int | float | bool) else ""


def _join(path: str, steps: Iterable[int | str]) -> str:
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path


def _imports(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _imports(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            where = _join(path, [str(key)])
            if key in _IMPORTED and isinstance(inner, str):
                yield from _import(inner, where)
            else:
                yield from _imports(inner, where)


def _import(target: str, path: str) -> Iterator[Problem]:
    module_name, colon, attribute = target.rpartition(":")
    if not colon:
        module_name, _, attribute = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        yield Problem(path, f"{target!r} does not import: {error}")
        return
    if not hasattr(module, attribute):
        yield Problem(path, f"{module_name} has no {attribute!r}; {did_you_mean(attribute, _public_names(module))}")


def _public_names(module: Any) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
