"""A resolved path -> keyword arguments of vLLM's AsyncEngineArgs."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.config.defaults import ResolvedPath
from app.config.nearest import did_you_mean
from app.config.schema import AppConfig, EngineConfig, ModelConfig
from app.errors import ConfigError

# By its qualified name: vLLM rewrites "uni" to the multi-process executor on a CPU, which costs a process per engine.
_UNIPROC_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_CPU_WORKER = "deployments.cpu_worker.StepThreadsWorker"
# Engine arguments that the application sets from another part of the configuration.
_SET_ELSEWHERE = {
    "model": "model.source",
    "served_model_name": "model.name",
    "trust_remote_code": "model.trust_remote_code",
    "reasoning_parser": "model.reasoning_parser",
}
# What the replica needs for itself.
_RESERVED = {"kv_events_config": "the pulse feed reads the engine's KV events"}


def engine_arguments(path: ResolvedPath, model: ModelConfig, model_path: str) -> dict[str, Any]:
    """Return the keyword arguments for AsyncEngineArgs; what is left to vLLM is absent.

    Args:
        model_path: a local folder or a Hugging Face id.
    """
    arguments = {option.name: option.value for option in path.options if option.value is not None}
    arguments |= {"model": model_path, "served_model_name": [model.name], "trust_remote_code": model.trust_remote_code}
    if model.reasoning_parser is not None:
        arguments["reasoning_parser"] = model.reasoning_parser
    if not arguments.get("kv_offloading_size"):
        arguments.pop("kv_offloading_size", None)  # vLLM takes 0 for an offload buffer of no bytes
    if path.kind == "cpu":
        arguments.setdefault("distributed_executor_backend", _UNIPROC_EXECUTOR)
        arguments.setdefault("worker_cls", _CPU_WORKER)
    elif path.devices > 1:
        arguments.setdefault("distributed_executor_backend", "ray")
    return arguments


def refuse_unknown(config: AppConfig) -> None:
    """Refuse engine options that AsyncEngineArgs does not have.

    Raises:
        ConfigError: names every such option with the nearest valid one.
    """
    paths = {"hot": config.paths.hot, "cold": config.paths.cold}
    problems = [f"paths.{name}.engine.{fault}" for name, path in paths.items() for fault in unknown(path.engine.other)]
    if problems:
        raise ConfigError("\n".join(problems))


def unknown(options: Iterable[str]) -> list[str]:
    """One sentence per name that is no engine argument of vLLM, or that is set elsewhere."""
    names = [name for name in options if name not in EngineConfig.model_fields]
    if not names:
        return []  # the usual case: vLLM's source is not read at all
    known = _engine_argument_names() - set(_SET_ELSEWHERE)
    problems = []
    for name in names:
        if name in _SET_ELSEWHERE:
            problems.append(f"{name}: set {_SET_ELSEWHERE[name]} instead")
        elif name in _RESERVED:
            problems.append(f"{name}: not yours to set: {_RESERVED[name]}")
        elif name not in known:
            problems.append(f"{name}: vLLM has no such engine argument; {did_you_mean(name, known)}")
    return problems


def _engine_argument_names() -> set[str]:
    """Fields of AsyncEngineArgs, read from vLLM's source: importing the class takes 10 s."""
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        raise ConfigError("vLLM is not installed; install kvpulse[cpu] or kvpulse[gpu]")
    names: set[str] = set()
    for statement in ast.parse((Path(vllm.origin).parent / "engine" / "arg_utils.py").read_text()).body:
        if isinstance(statement, ast.ClassDef) and statement.name in ("EngineArgs", "AsyncEngineArgs"):
            fields = [line.target for line in statement.body if isinstance(line, ast.AnnAssign)]
            names |= {target.id for target in fields if isinstance(target, ast.Name) and target.id[0] != "_"}
    return names
