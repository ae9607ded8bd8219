"""What `scaling` may say: when a path whose `replicas` is a range gets more engines or fewer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.config.part import Part, PositiveInt, Seconds

Fraction = Annotated[float, Field(gt=0, le=1)]


class CollapseConfig(Part):
    """A cache that suddenly hits less makes the same requests cost more. More engines would hold even less of it."""

    hit_ratio_drop: Fraction = Field(default=0.15, description="below the usual, from which it is one")
    demand_rise: float = Field(
        default=0.2,
        gt=0,
        description="of requests per second over the usual, which adds replicas all the same",
    )
    hold_s: Seconds = Field(default=1800.0, description="a collapse that lasts longer is the new usual")


class ForecastConfig(Part):
    """What is expected to arrive by the time a new replica would be ready."""

    enabled: bool = True
    trend_s: Seconds = Field(default=300.0, description="time over which the trend of arrivals is taken, and damped")
    quantile: float = Field(
        default=0.9,
        ge=0.5,
        lt=1,
        description="share of the last half hour's forecasts whose upper bound was kept",
    )
    day_slots: PositiveInt = Field(default=96, description="parts of the day of which the usual demand is remembered")
    day_weight: Fraction = Field(default=0.3, description="of the latest day in what is usual")


class ScalingConfig(Part):
    """How the autoscaling policy decides. It acts only within `paths.*.replicas`, where that is a range."""

    dry_run: bool = Field(default=False, description="decide and report, change nothing")
    target_utilization: Fraction = Field(default=0.75, description="of a path's capacity in tokens per second")
    target_kv_usage_ratio: Fraction = Field(default=0.7, description="mean KV usage of a path's engines")
    preemptions_per_s: float = Field(default=0.2, gt=0, description="mean per replica, from which one is added")
    capacity_tokens_per_s: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        default="auto",
        description="of one replica, prompt tokens computed plus generated, until one has shown its own, which is "
        "believed from a quarter to four times of this; auto: unknown until one is full",
    )
    queue_drain_s: Seconds = Field(default=30.0, description="waiting work should be done within this")
    replica_start_s: Seconds = Field(default=90.0, description="of a new replica, until one has shown it")
    consolidation_window_s: Seconds = Field(
        default=600.0, description="a replica leaves after the rest could have carried the load for this long"
    )
    consolidation_margin: float = Field(
        default=0.1, ge=0, lt=1, description="and so much below the targets that made it come"
    )
    stale_after_s: Seconds = Field(default=15.0, description="older reports are not believed, and the size is held")
    smoothing_s: Seconds = Field(default=20.0, description="time over which demand is averaged")
    budget: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        default="auto",
        description="devices that all engines together may hold (1 is one machine on a CPU), each replica its `share`; "
        "auto: all CUDA devices, on a CPU no bound but `replicas.max`",
    )
    lend_shares: bool = Field(
        default=False, description="a path may grow into the part of the budget that the other leaves free"
    )
    collapse: CollapseConfig = CollapseConfig()
    forecast: ForecastConfig = ForecastConfig()

    @model_validator(mode="after")
    def _reports_outlive_their_interval(self) -> ScalingConfig:
        if self.stale_after_s < 5:
            raise ValueError(f"stale_after_s ({self.stale_after_s:g}) must be 5 or more: replicas report every 2 s")
        return self
