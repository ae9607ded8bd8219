"""A configuration that says only what a test is about."""

from __future__ import annotations

from typing import Any

from app.config.schema import AppConfig

TRAFFIC = {"mean_prompt_tokens": 100, "mean_output_tokens": 100, "target_concurrency": 4}


def config_of(**parts: Any) -> AppConfig:
    paths = {"hot": {"share": 0.3, "traffic": TRAFFIC}, "cold": {"share": 0.7, "traffic": TRAFFIC}}
    return AppConfig.model_validate({"paths": paths, **parts})
