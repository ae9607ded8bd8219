"""What `telemetry` may say: where measurements go, how often, and what counts as answered in time."""

from __future__ import annotations

from pydantic import Field

from app.config.part import Part, Seconds, Share
from app.requests import RequestPath


class ObjectivesConfig(Part):
    """Seconds from a request's arrival to the first byte of its answer, for `kvpulse_requests_within_objective`."""

    hot: Seconds = 1.0
    warm: Seconds = 2.0
    cold: Seconds = 20.0

    def of(self, path: RequestPath) -> float:
        return {RequestPath.HOT: self.hot, RequestPath.WARM: self.warm, RequestPath.COLD: self.cold}[path]


class TelemetryConfig(Part):
    """What every replica measures of itself."""

    enabled: bool = Field(default=True, description="false: no metrics and no traces; routing and scaling go on")
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="base URL of an OTLP collector that takes protobuf over HTTP; null: OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_period_s: Seconds = 10.0
    ray_period_s: Seconds = Field(
        default=5.0, description="how often Ray's metrics ports get new values; Ray itself passes them on every 10 s"
    )
    trace_sample_ratio: Share = Field(
        default=0.01, description="of the requests whose client has not decided; traces need a collector"
    )
    ttft_objective_s: ObjectivesConfig = ObjectivesConfig()
    block_table_period_s: Seconds = Field(default=5.0, description="how often an engine's block tables are measured")
    device_period_s: Seconds = Field(default=5.0, description="how often a GPU is asked for its state")
