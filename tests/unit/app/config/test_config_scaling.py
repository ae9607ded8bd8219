"""What `scaling` may say, and where it works against admission."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.config.scaling import ScalingConfig
from tests.unit.app.config.test_config_advice import advice


def names(scaling: dict[str, Any], replicas: Any = None) -> set[str]:
    return set(advice(scaling=scaling, hot_path={"replicas": replicas or {"min": 1, "max": 4}}))


def test_the_defaults_scale_before_admission_refuses() -> None:
    assert "refuses_before_scaling" not in names({})


@pytest.mark.parametrize("scaling", [{"target_kv_usage_ratio": 0.9}, {"preemptions_per_s": 2.0}])
def test_refusing_before_scaling_is_warned_about(scaling: dict[str, float]) -> None:
    assert "refuses_before_scaling" in names(scaling)
    assert "refuses_before_scaling" not in names(scaling, replicas=2)


def test_a_budget_below_the_fewest_replicas_is_warned_about() -> None:
    assert "budget_below_minimum" in names({"budget": 0.5})
    assert "budget_below_minimum" not in names({"budget": 2.0})


def test_reports_must_outlive_the_interval_at_which_they_come() -> None:
    with pytest.raises(ValidationError, match="every 2 s"):
        ScalingConfig(stale_after_s=2)
