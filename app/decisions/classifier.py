"""Which path a request takes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.config.schema import RoutingConfig
from app.requests import RequestFeatures, RequestPath


@dataclass(frozen=True, slots=True)
class Classification:
    """A path with the reason that response headers, metrics and logs carry unchanged."""

    path: RequestPath
    reason: str


def classify(
    features: RequestFeatures, rules: RoutingConfig, context_tokens: Mapping[RequestPath, int]
) -> Classification:
    """Hot = a short expected answer AND a bounded uncached prompt; everything else is cold.

    Args:
        features: the rendered request, in tokens.
        rules: thresholds.
        context_tokens: the longest prompt plus answer that each path's engines take. The caller has already refused
            what fits no path.
    """
    wanted = _wanted(features, rules)
    other = RequestPath.COLD if wanted.path is RequestPath.HOT else RequestPath.HOT
    if _needed_tokens(features) > context_tokens[wanted.path] and features.forced_path is None:
        return Classification(other, "context_of_path")
    return wanted


def _wanted(features: RequestFeatures, rules: RoutingConfig) -> Classification:
    if features.forced_path is not None:
        return Classification(features.forced_path, "forced")
    expected = features.max_output_tokens
    if expected is None:
        expected = rules.assumed_output_tokens
    if expected > rules.hot_max_output_tokens:
        return Classification(RequestPath.COLD, "long_output")
    if features.uncached_tokens > rules.hot_max_uncached_tokens:
        return Classification(RequestPath.COLD, "long_prompt")
    return Classification(RequestPath.HOT, "short_prompt_and_output")


def _needed_tokens(features: RequestFeatures) -> int:
    return features.prompt_tokens + max(1, features.max_output_tokens or 1)
