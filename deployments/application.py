"""The one composition root: an AppConfig becomes a Serve application.

No postponed annotations here: Serve validates `args` by the class that annotates `build_app`, not by its name.
"""

import logging
import os
from pathlib import Path
from typing import Any

import yaml
from ray import serve
from ray.serve import Application

from app.config.defaults import ResolvedPath
from app.config.keys import KeyRing
from app.config.schema import AppConfig, ModelConfig, PathConfig
from app.errors import ConfigError
from app.requests import RequestPath
from deployments import model_store
from deployments.autoscaling import replica_options
from deployments.effective import EffectiveConfig, effective_config
from deployments.engine import EngineReplica, EngineSpec
from deployments.engine_options import engine_arguments
from deployments.ingress import Ingress
from deployments.ingress_spec import EnginesSpec, IngressSpec
from deployments.prewarm import BOARD_DEPLOYMENT
from deployments.pulse_board import PulseBoard, board_spec

logger = logging.getLogger("ray.serve")

DEPLOYMENT_NAMES = {RequestPath.HOT: "HotEngine", RequestPath.COLD: "ColdEngine"}
# Serve's own threads for the router and for what is not Serve's cost a change of threads for each token. Told to the
# replicas alone, unlike the rest of Serve's environment (deployments/__init__.py): a program without a loop needs them.
_OWN_THREADS = ("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP")
MLA_BLOCK_SIZE = 64  # of most MLA kernels, which leave no choice


def build_app(config: AppConfig) -> Application:
    """What `import_path` in serve_config.yaml names. Prepares the model if that has not been done.

    Raises:
        ConfigError: in one line per fault, with the remedy.
    """
    model_path = model_store.resolve(config.model.source)
    effective = effective_config(config, model_path)
    for advice in effective.advice:
        logger.warning("%s: %s %s", advice.name, advice.why, advice.remedy)
    arguments = {path: engine_arguments(effective.paths[path], config.model, model_path) for path in DEPLOYMENT_NAMES}
    engines = {path: _engine_deployment(path, effective, arguments[path]) for path in DEPLOYMENT_NAMES}
    specs = {path: _engines_spec(effective.paths[path]) for path in DEPLOYMENT_NAMES}
    longest = max(DEPLOYMENT_NAMES, key=lambda path: specs[path].context_tokens)
    spec = IngressSpec(
        config=config,
        engine_arguments=arguments[longest],
        frontend_arguments=frontend_arguments(config.model),
        engines=specs,
        key_ring=_key_ring(config),
    )
    ingress = serve.deployment(
        name="Ingress",
        max_ongoing_requests=config.ingress.max_ongoing_requests,
        graceful_shutdown_timeout_s=config.limits.drain_timeout_s,
        health_check_period_s=1,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": 0.1, "runtime_env": {"env_vars": _one_loop()}},
        **replica_options(effective, config.ingress.replicas, reports=True),
    )(Ingress)
    handles = engines[RequestPath.HOT], engines[RequestPath.COLD]
    return ingress.bind(spec, *handles, _board_deployment(config).bind(board_spec(config), *handles))


def _board_deployment(config: AppConfig) -> Any:
    return serve.deployment(
        name=BOARD_DEPLOYMENT,
        num_replicas=1,
        max_ongoing_requests=1024,
        health_check_period_s=1,
        health_check_timeout_s=30,
        logging_config={"enable_access_log": False},  # each ingress calls it every second
        ray_actor_options={"num_cpus": 0},
    )(PulseBoard)


def _engines_spec(path: ResolvedPath) -> EnginesSpec:
    return EnginesSpec(
        context_tokens=int(path.value("max_model_len")),
        block_size=int(path.value("block_size") or MLA_BLOCK_SIZE),
        slots_per_replica=path.max_ongoing_requests,
        heeds_priority=path.value("scheduling_policy") == "priority",
        chunk_tokens=int(path.value("long_prefill_token_threshold") or path.value("max_num_batched_tokens")),
    )


def frontend_arguments(model: ModelConfig) -> dict[str, Any]:
    """Options of vLLM's OpenAI layer, the same in every engine and in the ingress's renderer."""
    arguments: dict[str, Any] = {"enable_prompt_tokens_details": True, "chat_template": model.chat_template}
    if model.tool_call_parser is not None:
        arguments |= {"enable_auto_tool_choice": True, "tool_call_parser": model.tool_call_parser}
    return arguments


def _one_loop() -> dict[str, str]:
    """The environment of a replica whose requests stay in one event loop, unless the operator wants it otherwise."""
    return {name: os.environ.get(name, "0") for name in _OWN_THREADS}


def _engine_deployment(path: RequestPath, effective: EffectiveConfig, arguments: dict[str, Any]) -> Application:
    config: PathConfig = getattr(effective.config.paths, path)
    resources = effective.resources[path]
    actor_options = {**resources.ray_actor_options, "runtime_env": {"env_vars": _one_loop() | resources.environment}}
    options: dict[str, Any] = {
        "name": DEPLOYMENT_NAMES[path],
        "max_ongoing_requests": effective.paths[path].max_ongoing_requests,
        "graceful_shutdown_timeout_s": effective.config.limits.drain_timeout_s,
        # A dead engine process is noticed within seconds; a busy one is given time.
        "health_check_period_s": 1,
        "health_check_timeout_s": 30,
        "logging_config": {"enable_access_log": False},  # a companion call is no access; the ingress logs the request
        "ray_actor_options": actor_options,
        **replica_options(effective, config.replicas),
    }
    if resources.placement_group_bundles is not None:
        options["placement_group_bundles"] = resources.placement_group_bundles
        options["placement_group_strategy"] = resources.placement_group_strategy
    spec = EngineSpec(
        path=path,
        engine_arguments=arguments,
        frontend_arguments=frontend_arguments(effective.config.model),
        telemetry=effective.config.telemetry,
        niceness=effective.paths[path].niceness,
        prewarm=effective.config.prewarm,
    )
    return serve.deployment(**options)(EngineReplica).bind(spec)


def _key_ring(config: AppConfig) -> KeyRing | None:
    if config.auth.key_file is None:
        return None
    path = Path(config.auth.key_file).expanduser()
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"auth.key_file: {path} cannot be read ({error.strerror}); create it or set null") from None
    except yaml.YAMLError:
        raise ConfigError(f"auth.key_file: {path} is not valid YAML") from None
    return KeyRing.from_document(document, isolate=config.auth.isolation == "per_key")
