"""What the telemetry part of the configuration refuses, and what it promises without a word."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.config.telemetry import TelemetryConfig
from app.requests import RequestPath


@pytest.mark.parametrize(
    "given",
    [
        {"otlp_endpoint": "collector:4317"},
        {"trace_sample_ratio": 1.5},
        {"block_table_period_s": 0},
        {"ttft_objective_s": {"hot": 0}},
        {"prometheus_port": 9090},
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TelemetryConfig.model_validate(given)


def test_every_path_has_an_objective_and_warm_lies_between() -> None:
    objectives = TelemetryConfig().ttft_objective_s
    assert objectives.of(RequestPath.HOT) < objectives.of(RequestPath.WARM) < objectives.of(RequestPath.COLD)


def test_by_default_things_are_measured_and_sent_nowhere() -> None:
    assert TelemetryConfig().enabled and TelemetryConfig().otlp_endpoint is None
