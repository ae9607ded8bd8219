"""Ray Serve LLM as its documentation builds it, on CPUs, with its prefix router or its default one.

`python -m loadtest.baselines.ray_serve_llm --model FOLDER --name NAME --router prefix` serves until SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click

ROUTERS = ("default", "prefix")
PREFIX_ROUTER = "ray.serve.llm.request_router:PrefixCacheAffinityRouter"

# Without `nobind` vLLM pins every engine to the same core; each engine runs one thread, as KVPulse's do.
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


def deployment_config(router: str, engines: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "autoscaling_config": {"min_replicas": engines, "max_replicas": engines},
        "ray_actor_options": {"num_cpus": 0},
    }
    if router == "prefix":
        from ray.serve.config import RequestRouterConfig

        config["request_router_config"] = RequestRouterConfig(request_router_class=PREFIX_ROUTER)  # type: ignore[arg-type]  # a stand-in, or a type that pydantic accepts
    return config


def build(model: str, name: str, router: str, engines: int, engine_options: dict[str, Any]) -> Any:
    """The application of `ray.serve.llm.build_openai_app`."""
    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": name, "model_source": model},
        accelerator_config={"kind": "cpu"},  # type: ignore[arg-type]  # a stand-in, or a type that pydantic accepts
        placement_group_config={"bundles": [{"CPU": 0.5}]},
        deployment_config=deployment_config(router, engines),
        engine_kwargs={"enforce_eager": True, "enable_prompt_tokens_details": True, **engine_options},
        runtime_env={"env_vars": ENGINE_ENVIRONMENT},
    )
    ingress = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}}
    return build_openai_app({"llm_configs": [config], "ingress_deployment_config": ingress})


@click.command(help=__doc__)
@click.option("--model", required=True, help="Folder or Hugging Face id.")
@click.option("--name", required=True, help="The name clients use.")
@click.option("--router", type=click.Choice(ROUTERS), default="prefix", show_default=True)
@click.option("--engines", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--port", type=int, default=9130, show_default=True, help="On loopback.")
@click.option("--max-model-len", type=int, default=4096, show_default=True)
@click.option("--block-size", type=int, default=32, show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
def main(model: str, name: str, router: str, engines: int, port: int, **engine_options: Any) -> None:
    import ray
    from ray import serve

    if Path(model).is_dir():
        model = str(Path(model).resolve())  # its replicas run elsewhere
    ray.init(address="local", include_dashboard=False)  # its own cluster, whatever else runs here
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(model, name, router, engines, engine_options), name="ray-serve-llm", route_prefix="/")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    serve.shutdown()  # type: ignore[no-untyped-call]  # its library leaves it untyped


if __name__ == "__main__":
    main()
