"""The configurations that the integration tests run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

MODEL = "smollm2-135m-instruct"
_SHIPPED = Path(__file__).parents[2] / "serve_config.yaml"

KEYS = {"owner": "sk-owner-7f3e9a51", "guest": "sk-guest-c04d2b86", "rival": "sk-rival-5a18e7d3"}
ENGINE_OPTIONS = {"kv_cache_memory_bytes": 256 * 1024**2}
MAX_BODY_BYTES = 256 * 1024
TIGHT_SLOTS = 4
TIGHT_QUEUE = 16
TIGHT_CONTEXT = 1536
TIGHT_BLOCKS = 64  # of 16 KiB: 32 tokens, 2 layers, keys and values, 2 heads of 32 bfloat16


def shipped() -> dict[str, Any]:
    """serve_config.yaml as it lies in the repository."""
    document: dict[str, Any] = yaml.safe_load(_SHIPPED.read_text())
    return document


def plumbing(tiny_model: str) -> dict[str, Any]:
    """Two hot replicas and a cold one of a tiny random model, without keys."""
    document = copy.deepcopy(shipped())
    arguments = document["applications"][0]["args"]
    arguments["model"] = {"name": MODEL, "source": tiny_model}
    arguments["paths"]["hot"]["replicas"] = 2
    for path in arguments["paths"].values():
        path["engine"] = {"kv_cache_memory_bytes": 64 * 1024**2}
    arguments["limits"] = {"max_body_bytes": MAX_BODY_BYTES, "drain_timeout_s": 240}
    arguments["routing"]["allow_forced_path"] = True
    return document


def answers(folder: Path) -> dict[str, Any]:
    """One hot and one cold replica of the embedded model; every key has its own cache."""
    key_file = folder / "keys.yaml"
    entries = [{"name": name, "key": key, "allow": ["path"] if name == "owner" else []} for name, key in KEYS.items()]
    key_file.write_text(yaml.safe_dump(entries))
    document = copy.deepcopy(shipped())
    arguments = document["applications"][0]["args"]
    arguments["auth"] = {"key_file": str(key_file), "isolation": "per_key"}
    for path in arguments["paths"].values():
        path["engine"] = dict(ENGINE_OPTIONS)
    return document


def two_nodes(tiny_model: str) -> dict[str, Any]:
    """Two ingress and two hot replicas, which Serve spreads; cold engines with larger blocks than the hot ones."""
    document = plumbing(tiny_model)
    arguments = document["applications"][0]["args"]
    arguments["ingress"] = {"replicas": 2}
    arguments["paths"]["cold"]["engine"]["block_size"] = 64
    return document


def latent_attention(mla_model: str) -> dict[str, Any]:
    """Two hot replicas and a cold one of a tiny random model with multi-head latent attention."""
    return plumbing(mla_model)


def tight(tiny_model: str, folder: Path, collector_url: str) -> dict[str, Any]:
    """One hot and one cold replica of a tiny random model, each with few slots; keys with quotas; a hot cache that
    holds one long context and little more; everything that is measured goes to a collector.
    """
    key_file = folder / "quota_keys.yaml"
    entries: list[dict[str, Any]] = [
        {"name": "owner", "key": KEYS["owner"], "allow": ["path"]},
        {"name": "guest", "key": KEYS["guest"], "tokens_per_minute": 6000, "concurrent_requests": 2},
    ]
    key_file.write_text(yaml.safe_dump(entries))
    document = plumbing(tiny_model)
    arguments = document["applications"][0]["args"]
    arguments["auth"] = {"key_file": str(key_file)}
    for path in arguments["paths"].values():
        path["replicas"] = {"min": 1, "max": 1}  # so that the scaling policy runs, and reports
        path["max_ongoing_requests"] = TIGHT_SLOTS
    arguments["paths"]["hot"]["engine"] = {"kv_cache_memory_bytes": 1024**2, "max_model_len": TIGHT_CONTEXT}
    arguments["telemetry"] = {
        "otlp_endpoint": collector_url,
        "otlp_period_s": 1,
        "ray_period_s": 1,
        "trace_sample_ratio": 0,
        "block_table_period_s": 0.5,
    }
    bounds = {"max_requests": TIGHT_QUEUE, "max_tokens": 100_000, "deadline_s": 20}
    arguments["admission"] = {"queues": {"hot": bounds, "warm": bounds, "cold": bounds}}
    return document


def scaled(tiny_model: str) -> dict[str, Any]:
    """One hot replica, or two when a crowd comes; the second leaves soon after the crowd."""
    document = plumbing(tiny_model)
    arguments = document["applications"][0]["args"]
    arguments["paths"]["hot"]["replicas"] = {"min": 1, "max": 2}
    arguments["scaling"] = {
        "capacity_tokens_per_s": 300,
        "smoothing_s": 3,
        "consolidation_window_s": 15,
        "replica_start_s": 30,
        "forecast": {"enabled": False},
    }
    return document
