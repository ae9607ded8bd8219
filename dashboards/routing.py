"""Where requests go, and whether the router's picture of the caches is true."""

from __future__ import annotations

from app import metrics
from dashboards.boards import Board, Row
from dashboards.panels import COUNT, QUERIES, RATIO, RED, REQUESTS_PER_S, TOKENS_PER_S, Display, Needs, Panel, Target

_CHOICE = Row(
    "Choice",
    (
        Panel(
            "Routing decisions",
            "Leases by why their replica was chosen, stacked. prefix_hit is the cache at work. Much fallback: no "
            "replica of known load has room. Much stale_probe: the feed of the engines is interrupted.",
            REQUESTS_PER_S,
            (Target(QUERIES.rate(metrics.ROUTING_DECISIONS, "engines", "reason"), "{{engines}}: {{reason}}"),),
            display=Display.STACKED,
        ),
        Panel(
            "Prompt tokens sent",
            "To engines, and the part of it that the chosen replica was known to hold.",
            TOKENS_PER_S,
            (
                Target(QUERIES.rate(metrics.ROUTED_PROMPT_TOKENS, "engines"), "{{engines}} sent"),
                Target(QUERIES.rate(metrics.PREDICTED_HIT_TOKENS, "engines"), "{{engines}} known", Needs.EVENT),
            ),
        ),
    ),
)

_TRUTH = Row(
    "Is the picture true",
    (
        Panel(
            "Predicted and real hits",
            "Share of prompt tokens that the router expected in the cache, and that the engine found. The lines run "
            "together. Real far below predicted: entries are evicted before the request arrives, or the index is "
            "stale. Real above: requests of one prefix arrive together.",
            RATIO,
            (
                Target(
                    QUERIES.ratio_of_rates(metrics.PREDICTED_HIT_TOKENS, metrics.ROUTED_PROMPT_TOKENS, "engines"),
                    "{{engines}} predicted",
                ),
                Target(
                    QUERIES.ratio_of_rates(metrics.PREFIX_HIT_TOKENS, metrics.PREFIX_QUERY_TOKENS, "engines"),
                    "{{engines}} real",
                ),
            ),
            highest=1,
        ),
        Panel(
            "Stale replicas",
            "Replicas whose pulse an ingress has not heard in time, in the worst ingress. They get traffic only when "
            "the others are full. It should be 0.",
            COUNT,
            (Target(QUERIES.highest(metrics.STALE_REPLICAS, "engines"), "{{engines}}"),),
            marks=((1, RED),),
            width=6,
        ),
        Panel(
            "Circuit",
            "1 while an ingress holds a path's engines to fail; its requests go to the other path's engines as far as "
            "those lend slots.",
            COUNT,
            (Target(QUERIES.highest(metrics.CIRCUIT_OPEN, "engines"), "{{engines}}"),),
            marks=((1, RED),),
            highest=1,
            width=6,
        ),
    ),
)

ROUTING = Board(
    "kvpulse-routing",
    "KVPulse: routing",
    "Which replica gets which request, and why.",
    (_CHOICE, _TRUTH),
)
