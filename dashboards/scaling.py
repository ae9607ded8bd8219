"""How many replicas there are, how many are wanted, and what for."""

from __future__ import annotations

from app import metrics
from dashboards.boards import Board, Row
from dashboards.panels import COUNT, PER_S, QUERIES, TOKENS_PER_S, Needs, Panel, Target

_REPLICAS = Row(
    "Replicas",
    (
        Panel(
            "Wanted and running",
            "What the autoscaling policy wants (in a dry run: would want) and how many engines report. Wanted above "
            "running for minutes: a replica does not start, for want of resources or because it fails.",
            COUNT,
            (
                Target(QUERIES.highest(metrics.DESIRED_REPLICAS, "engines"), "{{engines}} wanted"),
                Target(QUERIES.reporting(metrics.KV_BLOCKS, "engines"), "{{engines}} running"),
            ),
        ),
        Panel(
            "Decisions by reason",
            "Changes that the policy asked for, and holds: bounds, budget, reports that are missing, a cache that "
            "collapses. A steady alternation up and down is a target too close to the load.",
            PER_S,
            (Target(QUERIES.rate(metrics.SCALING_DECISIONS, "engines", "reason"), "{{engines}}: {{reason}}"),),
            needs=Needs.EVENT,
        ),
    ),
)

_DEMAND = Row(
    "Demand",
    (
        Panel(
            "Arriving and expected tokens",
            "Prompt and answer tokens that arrive, and the upper bound of what is expected by the time a new replica "
            "would be ready. The forecast runs ahead of a rise; far above it for long, it is too careful.",
            TOKENS_PER_S,
            (
                Target(QUERIES.highest(metrics.DEMAND_TOKENS, "engines"), "{{engines}} arriving"),
                # It begins when enough forecasts have met what came, after some minutes.
                Target(QUERIES.highest(metrics.FORECAST_TOKENS, "engines"), "{{engines}} expected", needs=Needs.EVENT),
            ),
        ),
        Panel(
            "Computed tokens",
            "Prompt tokens prefilled and tokens generated: what the engines get done. Flat while demand rises, they "
            "are at their limit.",
            TOKENS_PER_S,
            (
                Target(QUERIES.rate(metrics.PROMPT_TOKENS, "engines"), "{{engines}} prompts"),
                Target(QUERIES.rate(metrics.GENERATED_TOKENS, "engines"), "{{engines}} answers"),
            ),
        ),
    ),
)

SCALING = Board(
    "kvpulse-scaling",
    "KVPulse: scaling",
    "Demand, forecast and replicas. The policy runs in the Serve controller.",
    (_REPLICAS, _DEMAND),
)
