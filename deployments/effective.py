"""The configuration as it will run: every `auto` resolved on this machine, judged, and turned into Ray resources."""

from __future__ import annotations

import os
from dataclasses import dataclass

from app.config.advice import Advice, Severity, advise
from app.config.defaults import Hardware, ModelFacts, ResolvedPath, resolve_path
from app.config.schema import AppConfig
from app.errors import ConfigError
from deployments import model_facts
from deployments.engine_options import engine_arguments, refuse_unknown
from deployments.hardware import detect
from deployments.resources import PathResources, path_resources


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """What runs. `paths` and `resources` are keyed by `hot` and `cold`; `advice` holds no errors."""

    config: AppConfig
    model_path: str
    hardware: Hardware
    model: ModelFacts
    paths: dict[str, ResolvedPath]
    resources: dict[str, PathResources]
    advice: tuple[Advice, ...]


def effective_config(config: AppConfig, model_path: str, loopback: bool = True) -> EffectiveConfig:
    """Resolve and judge a configuration.

    Args:
        model_path: a local folder or a Hugging Face id (`model_store.resolve`).
        loopback: the public HTTP port listens on this machine only. Only a reader of the whole file knows; the
            application's own arguments do not say.

    Raises:
        ConfigError: every reason not to start, one per line.
    """
    refuse_unknown(config)
    hardware = detect(config.hardware_wish)
    model = model_facts.read(model_path, config.model.trust_remote_code)
    wished = {"hot": config.paths.hot, "cold": config.paths.cold}
    paths = {name: resolve_path(name, path, hardware, model) for name, path in wished.items()}
    advice = advise(config, hardware, model, paths, os.environ, loopback)
    errors = [f"{found.why} {found.remedy} [{found.name}]" for found in advice if found.severity is Severity.ERROR]
    if errors:
        raise ConfigError("\n".join(errors))
    resources = {
        name: path_resources(path, engine_arguments(path, config.model, model_path), hardware)
        for name, path in paths.items()
    }
    return EffectiveConfig(config, model_path, hardware, model, paths, resources, advice)
