"""What `admission` may say: when requests wait, move to other engines, are cut short, or are refused."""

from __future__ import annotations

from pydantic import Field, model_validator

from app.config.part import Part, PositiveInt, Seconds, Share
from app.requests import RequestPath


class Marks(Part):
    """Where one signal enters each level of pressure. It leaves a level `leave_below` under that level's mark."""

    alert: float = Field(gt=0)
    refuse_long: float = Field(gt=0)
    compress: float = Field(gt=0)
    leave_below: float = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Marks:
        if not self.alert < self.refuse_long < self.compress:
            raise ValueError(
                f"alert ({self.alert:g}), refuse_long ({self.refuse_long:g}) and compress ({self.compress:g}) must rise"
            )
        if self.leave_below >= self.alert:
            raise ValueError(f"leave_below ({self.leave_below:g}) must be under alert ({self.alert:g})")
        return self

    @property
    def accept_long(self) -> float:
        """At or below this, long prompts are accepted again."""
        return self.refuse_long - self.leave_below


class WatermarksConfig(Part):
    """The three signals of pressure, and what each level does."""

    kv_usage_ratio: Marks = Field(
        default=Marks(alert=0.85, refuse_long=0.90, compress=0.95, leave_below=0.05),
        description="of the least loaded replica, with what has just been sent to it",
    )
    queued_prefill_s: Marks = Field(
        default=Marks(alert=15.0, refuse_long=30.0, compress=60.0, leave_below=5.0),
        description="time the least loaded replica needs for the prompts it has accepted",
    )
    preemptions_per_s: Marks = Field(
        default=Marks(alert=0.5, refuse_long=2.0, compress=5.0, leave_below=0.4), description="mean per replica"
    )
    long_prompt_tokens: PositiveInt = Field(
        default=2048, description="longer prompts are refused first; never hot ones"
    )
    compressed_output_tokens: PositiveInt = Field(
        default=256, description="`max_tokens` of new cold work at `compress`"
    )
    shed_after_s: Seconds = Field(default=5.0, description="`compress` for this long refuses the lowest priority too")
    hold_unknown_s: Seconds = Field(
        default=10.0, description="without a fresh report the level stays this long, then nothing is refused on it"
    )

    @model_validator(mode="after")
    def _a_ratio(self) -> WatermarksConfig:
        if self.kv_usage_ratio.compress > 1:
            raise ValueError(f"kv_usage_ratio.compress ({self.kv_usage_ratio.compress:g}) is above 1, the whole cache")
        return self


class QueueBounds(Part):
    """How much of one path may wait in an ingress replica, and for how long."""

    max_requests: PositiveInt = 256
    max_tokens: PositiveInt = Field(default=524_288, description="prompt tokens still to compute")
    deadline_s: Seconds | None = Field(default=None, description="as `queues.deadline_s`, which holds without it")


class HotQueueBounds(QueueBounds):
    """Whoever asks for a short answer has no use for it after a long wait."""

    max_requests: PositiveInt = 512
    deadline_s: Seconds | None = 10.0
    first_token_s: Seconds = Field(
        default=10.0, description="a request whose first token others' prompts would delay beyond this is refused"
    )


class ColdQueueBounds(QueueBounds):
    """Few long prompts are many tokens."""

    max_tokens: PositiveInt = 2_097_152


class QueuesConfig(Part):
    """Waiting in the ingress, for engines whose slots are taken."""

    hot: HotQueueBounds = HotQueueBounds()
    warm: QueueBounds = QueueBounds()
    cold: ColdQueueBounds = ColdQueueBounds()
    deadline_s: Seconds = Field(default=60.0, description="longest wait of a request that names no deadline")
    ageing_s: Seconds = Field(default=10.0, description="after this wait a request passes new ones of the next path up")
    crowded_at: float = Field(default=8.0, gt=0, description="waiting per replica, from which engines are crowded")
    crowded_until: float = Field(default=4.0, ge=0, description="waiting per replica, from which they no longer are")
    crowded_after_s: Seconds = Field(default=1.0, description="crowded for this long, traffic moves away")

    @model_validator(mode="after")
    def _hysteresis(self) -> QueuesConfig:
        if self.crowded_until >= self.crowded_at:
            raise ValueError(f"crowded_until ({self.crowded_until:g}) must be under crowded_at ({self.crowded_at:g})")
        return self

    def bounds(self, path: RequestPath) -> QueueBounds:
        return {RequestPath.HOT: self.hot, RequestPath.WARM: self.warm, RequestPath.COLD: self.cold}[path]

    def longest_wait_s(self, path: RequestPath) -> float:
        """Of a request that names no deadline."""
        return self.bounds(path).deadline_s or self.deadline_s


class BorrowingConfig(Part):
    """The share of the lender's slots that another path's requests may hold, and only while the lender has room."""

    hot_on_cold: Share = 0.25
    warm_on_cold: Share = 0.5
    cold_on_hot: Share = Field(default=0.0, description="0: long work stays off the hot engines")
    failover: Share = Field(default=0.5, description="of either, while the path's own engines fail")

    def share(self, path: RequestPath) -> float:
        shares = {RequestPath.HOT: self.hot_on_cold, RequestPath.WARM: self.warm_on_cold}
        return shares.get(path, self.cold_on_hot)


class BreakerConfig(Part):
    """When engines count as failed, and when a running request is aborted to save the others."""

    failures: PositiveInt = Field(default=5, description="engine failures in a row that open the circuit")
    open_s: Seconds = Field(default=5.0, description="then a single request probes the engines")
    exhausted_kv_ratio: float = Field(default=0.98, gt=0, le=1)
    abort_after_s: Seconds = Field(default=15.0, description="exhaustion for this long aborts a request")
    abort_every_s: Seconds = Field(default=5.0, description="and another one, while it lasts")


class HeavyHittersConfig(Part):
    """Which prompt prefixes are frequent enough to make a request warm."""

    capacity: PositiveInt = Field(default=4096, description="prefixes watched at once")
    half_life_s: Seconds = 300.0
    min_requests: float = Field(default=20.0, gt=0, description="decayed count")
    min_share: Share = Field(default=0.01, description="of all requests")


class SessionsConfig(Part):
    """How long a session label keeps its requests on one path."""

    ttl_s: Seconds = Field(default=900.0, description="since its last request")
    max_per_client: PositiveInt = 10_000


class AdmissionConfig(Part):
    """Who may start, who waits, who is refused."""

    watermarks: WatermarksConfig = WatermarksConfig()
    queues: QueuesConfig = QueuesConfig()
    borrowing: BorrowingConfig = BorrowingConfig()
    breaker: BreakerConfig = BreakerConfig()
    heavy_hitters: HeavyHittersConfig = HeavyHittersConfig()
    sessions: SessionsConfig = SessionsConfig()
