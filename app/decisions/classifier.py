"""Which path a request takes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.config.schema import RoutingConfig
from app.requests import DEFAULT_PRIORITY, PRIORITY_BAND, RequestFeatures, RequestPath
from app.state.sessions import Session

_LATER_BY_TOKENS = {RequestPath.HOT: 256, RequestPath.WARM: 512, RequestPath.COLD: 512}
_MOST_LATER = 9  # keys whose priorities are ten apart never meet


@dataclass(frozen=True, slots=True)
class Classification:
    """A path with the reason that response headers, metrics and logs carry unchanged, and vLLM's priority."""

    path: RequestPath
    reason: str
    priority: int = DEFAULT_PRIORITY


def classify(
    features: RequestFeatures,
    rules: RoutingConfig,
    context_tokens: Mapping[RequestPath, int],
    session: Session | None = None,
) -> Classification:
    """Hot = a short expected answer AND a bounded uncached prompt; warm = a frequent prefix; everything else is cold.

    Args:
        features: the rendered request, in tokens.
        rules: thresholds.
        context_tokens: the longest prompt plus answer that the HOT and COLD engines take. The caller has already
            refused what fits neither.
        session: what the client's session label was given before, or None.
    """
    if features.forced_path is not None:
        return _classified(features.forced_path, "forced", features)
    wanted = _wanted(features, rules, session)
    if features.least_context_tokens > context_tokens[wanted.path.engines]:
        return _classified(wanted.path.other_engines, "context_of_path", features)
    return wanted


def engine_priority(found: Classification, features: RequestFeatures) -> int:
    """Of requests that are equal otherwise, engines take first what they have least to compute of. Whoever
    overtakes delays the others by little, for the same reason, and finds its prefix still in the cache.

    Returns:
        vLLM's priority, inside the band of the path.
    """
    later = min(_MOST_LATER, features.uncached_tokens // _LATER_BY_TOKENS[found.path])
    return min(found.priority + later, found.path.priority(PRIORITY_BAND - 1))


def _wanted(features: RequestFeatures, rules: RoutingConfig, session: Session | None) -> Classification:
    short_output = features.expected_output_tokens(rules.assumed_output_tokens) <= rules.hot_max_output_tokens
    short_prompt = features.uncached_tokens <= rules.hot_max_uncached_tokens
    if session is not None and _within(session.path, short_prompt, short_output):
        return Classification(session.path, "session", session.priority)
    if short_prompt and short_output:
        return _classified(RequestPath.HOT, "short_prompt_and_output", features)
    if _shares_enough(features, rules):
        return _classified(RequestPath.WARM, "heavy_prefix", features)
    return _classified(RequestPath.COLD, "long_prompt" if short_output else "long_output", features)


def _within(path: RequestPath, short_prompt: bool, short_output: bool) -> bool:
    """A label is no permission: a session leaves hot with the first request that hot would refuse."""
    return path is RequestPath.COLD or (short_prompt and (short_output or path is RequestPath.WARM))


def _shares_enough(features: RequestFeatures, rules: RoutingConfig) -> bool:
    """Beyond its frequent prefix a warm prompt is no longer than a hot one: it runs on the hot engines."""
    beyond = features.prompt_tokens - max(features.heavy_prefix_tokens, features.cached_tokens)
    return features.heavy_prefix_tokens >= rules.warm_min_prefix_tokens and beyond <= rules.hot_max_uncached_tokens


def _classified(path: RequestPath, reason: str, features: RequestFeatures) -> Classification:
    return Classification(path, reason, path.priority(features.key_priority))
