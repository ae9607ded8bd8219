"""What the composition root asks Serve for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray.serve._private.build_app import build_app as serve_build_app

from deployments.application import build_app
from tests.fakes import TINY_LLAMA_CONFIG
from tests.unit.deployments.configs import config_of

ROUTER_THREAD = "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"
USER_THREAD = "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"


def environments(model: Path) -> dict[str, dict[str, str]]:
    """Of the replicas of each deployment."""
    config = config_of(hardware={"kind": "cpu", "cores": 4, "kv_cache_gib": 1}, model={"source": str(model)})
    built = serve_build_app(build_app(config), name="kvpulse", default_runtime_env={})
    return {
        deployment.name: deployment.ray_actor_options.get("runtime_env", {}).get("env_vars", {})
        for deployment in built.deployments
    }


def test_the_replicas_that_tokens_pass_have_one_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA_CONFIG))
    for name in (ROUTER_THREAD, USER_THREAD, "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.delenv(name, raising=False)
    found = environments(tmp_path)
    for name in ("Ingress", "HotEngine", "ColdEngine"):
        assert (found[name][ROUTER_THREAD], found[name][USER_THREAD]) == ("0", "0"), name
    assert found["HotEngine"]["OMP_NUM_THREADS"] == "4"
    monkeypatch.setenv(USER_THREAD, "1")
    assert {environment.get(USER_THREAD) for environment in environments(tmp_path).values()} == {"1", None}
