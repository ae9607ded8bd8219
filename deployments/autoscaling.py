"""CacheAwareScalingPolicy: Serve's side of `app.decisions.scaling`.

Serve's controller imports this module: nothing in it may load an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from app.config.schema import AppConfig, ReplicaRange
from deployments import scaling_book
from deployments.scaling_book import ScalingBook, ScalingSettings

if TYPE_CHECKING:
    from deployments.effective import EffectiveConfig

logger = logging.getLogger("ray.serve")

POLICY = "deployments.autoscaling:CacheAwareScalingPolicy"
REPORT_EVERY_S = 2.0
LOOK_BACK_S = 10.0  # of which Serve keeps what replicas report


class CacheAwareScalingPolicy:
    """The policy of each engine deployment, and of the ingress, whose number of replicas it leaves alone: it is there
    for what the ingress reports.

    Serve calls it ten times a second in its controller. It does no I/O and never raises: on an error the number of
    replicas stays.

    Args:
        settings: of `policy_settings`; without, the defaults.
        book_of: finds the application's book.
    """

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        book_of: Callable[[str], ScalingBook] = scaling_book.book_of,
    ) -> None:
        self._settings = TypeAdapter(ScalingSettings).validate_python(settings or {})
        self._generation = next(scaling_book.generations)
        self._book_of = book_of
        self._failing = False

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        try:
            book = self._book_of(context.app_name or "")
            book.adopt(self._settings, self._generation)
            desired = book.desired(context)
            self._failing = False
        except Exception:
            if not self._failing:
                logger.exception("The autoscaling policy failed; %s keeps its replicas", context.deployment_name)
            self._failing = True
            desired = context.target_num_replicas
        return desired, {}


def replica_options(effective: EffectiveConfig, replicas: int | ReplicaRange, reports: bool = False) -> dict[str, Any]:
    """Options of a deployment that decide how many replicas it has.

    Args:
        reports: its replicas tell the policy something though their number is fixed.
    """
    if isinstance(replicas, int) and not (reports and effective.config.scales):
        return {"num_replicas": replicas}
    least, most = (replicas, replicas) if isinstance(replicas, int) else (replicas.min, replicas.max)
    return {"autoscaling_config": autoscaling_config(policy_settings(effective), least, most)}


def autoscaling_config(settings: dict[str, Any], least: int, most: int) -> AutoscalingConfig:
    """Serve's, with this policy and without delays beside the policy's own."""
    policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]  # as Ray has it
        policy_function=POLICY, policy_kwargs={"settings": settings}
    )
    return AutoscalingConfig(
        min_replicas=least,
        max_replicas=most,
        metrics_interval_s=REPORT_EVERY_S,
        look_back_period_s=LOOK_BACK_S,
        upscale_delay_s=0,
        downscale_delay_s=0,
        policy=policy,
    )


def policy_settings(effective: EffectiveConfig) -> dict[str, Any]:
    """`ScalingSettings` as JSON."""
    config = effective.config
    paths = {path: getattr(config.paths, path) for path in scaling_book.ENGINES.values()}
    settings = ScalingSettings(
        rules=config.scaling,
        full_at={path: wish.traffic.target_concurrency for path, wish in paths.items()},
        replica_devices={path: effective.paths[path].share * effective.paths[path].devices for path in paths},
        devices=_devices(config, effective),
        fixed_replicas={path: wish.replicas for path, wish in paths.items() if isinstance(wish.replicas, int)},
    )
    dumped: dict[str, Any] = TypeAdapter(ScalingSettings).dump_python(settings, mode="json")
    return dumped


def _devices(config: AppConfig, effective: EffectiveConfig) -> float | None:
    if config.scaling.budget != "auto":
        return config.scaling.budget
    return float(effective.hardware.device_count) if effective.hardware.kind == "cuda" else None
