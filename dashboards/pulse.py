"""The caches: what they hold, find, evict, and how tightly it is packed."""

from __future__ import annotations

from app import metrics
from dashboards.alerts import EVICT_AND_ALLOCATE_PER_S, HIT_RATIO, KV_MARKS, SPARSITY_RATIO
from dashboards.boards import Board, Row
from dashboards.panels import COUNT, DARK_RED, ORANGE, PER_S, QUERIES, RATIO, RED, Needs, Panel, Target

_USAGE = Row(
    "Usage",
    (
        Panel(
            "KV usage",
            "Blocks of running sequences over all blocks, of each path's least loaded and fullest replica. The lines "
            "are the default watermarks, which look at the least loaded one: alert, refuse long prompts, shorten cold "
            "answers. Cached blocks that nobody uses are free, so a full cache is no alarm; a high usage is.",
            RATIO,
            (
                Target(QUERIES.lowest(metrics.KV_USAGE, "engines"), "{{engines}} least loaded"),
                Target(QUERIES.highest(metrics.KV_USAGE, "engines"), "{{engines}} fullest"),
            ),
            marks=tuple(zip(KV_MARKS, (ORANGE, RED, DARK_RED), strict=True)),
            highest=1,
        ),
        Panel(
            "Cached and all blocks",
            "Blocks that a prefix hit can use, against all. Cached blocks climb to nearly all and stay there: that is "
            "right. A fall to zero is a restart or a cleared cache.",
            COUNT,
            (
                Target(QUERIES.total(metrics.CACHED_BLOCKS, "engines"), "{{engines}} cached"),
                Target(QUERIES.total(metrics.KV_BLOCKS, "engines"), "{{engines}} all"),
            ),
        ),
    ),
)

_HITS = Row(
    "Hits",
    (
        Panel(
            "Hit ratio",
            "Tokens found over tokens looked up. High for chats and IDE sessions that return, low for documents that "
            f"nobody asks about twice. Below {HIT_RATIO:.0%}, the line, returning sessions pay their prefill again.",
            RATIO,
            (
                Target(
                    QUERIES.ratio_of_rates(metrics.PREFIX_HIT_TOKENS, metrics.PREFIX_QUERY_TOKENS, "engines"),
                    "{{engines}}",
                ),
            ),
            marks=((0, ORANGE), (HIT_RATIO, "green")),
            highest=1,
        ),
        Panel(
            "Hit ratio, as the replicas report it",
            "Of the last minute; the mean and the worst replica. One replica far below the others was just started, "
            "or gets the sessions that no other holds.",
            RATIO,
            (
                Target(QUERIES.mean(metrics.PREFIX_HIT_RATIO, "engines"), "{{engines}} mean"),
                Target(QUERIES.lowest(metrics.PREFIX_HIT_RATIO, "engines"), "{{engines}} worst"),
            ),
            highest=1,
        ),
        Panel(
            "Looked up and found",
            "Tokens per second. The gap between the two is the prefill that the engines must compute.",
            PER_S,
            (
                Target(QUERIES.rate(metrics.PREFIX_QUERY_TOKENS, "engines"), "{{engines}} looked up"),
                Target(QUERIES.rate(metrics.PREFIX_HIT_TOKENS, "engines"), "{{engines}} found", Needs.EVENT),
            ),
        ),
        Panel(
            "Pre-warmed tokens",
            "Prompt tokens that new replicas computed before they took traffic, so that their first sessions hit.",
            PER_S,
            (Target(QUERIES.rate(metrics.PREWARMED_TOKENS, "engines"), "{{engines}}"),),
            needs=Needs.EVENT,
        ),
    ),
)

_CHURN = Row(
    "Churn",
    (
        Panel(
            "Stored and evicted blocks",
            "Blocks that entered and left the prefix cache. Both high and equal: the cache is too small for the "
            "sessions it serves, and each newcomer takes another's place.",
            PER_S,
            (
                Target(QUERIES.rate(metrics.STORED_BLOCKS, "engines"), "{{engines}} stored"),
                Target(QUERIES.rate(metrics.EVICTED_BLOCKS, "engines"), "{{engines}} evicted", Needs.EVENT),
            ),
        ),
        Panel(
            "Evict and allocate",
            "Steps per second that evicted cached blocks to store new ones in their place. Above "
            f"{EVICT_AND_ALLOCATE_PER_S:g}/s, the line, the cache thrashes.",
            PER_S,
            (Target(QUERIES.rate(metrics.EVICT_AND_ALLOCATE, "engines"), "{{engines}}"),),
            marks=((EVICT_AND_ALLOCATE_PER_S, RED),),
            needs=Needs.EVENT,
        ),
        Panel(
            "Preemptions",
            "Sequences that lost their blocks to others and start anew. Any steady rate means that more runs than "
            "fits: less at once, or more memory.",
            PER_S,
            (Target(QUERIES.rate(metrics.PREEMPTIONS, "engines"), "{{engines}}"),),
            needs=Needs.EVENT,
        ),
    ),
)

_PACKING = Row(
    "Packing",
    (
        Panel(
            "Block table sparsity",
            "Unused share of the entries of the live block tables. It is high when short sequences run where long "
            f"ones may; above {SPARSITY_RATIO:.0%}, the line, max_model_len is far above what is used.",
            RATIO,
            (Target(QUERIES.mean(metrics.BLOCK_TABLE_SPARSITY, "engines"), "{{engines}}"),),
            marks=((SPARSITY_RATIO, ORANGE),),
            highest=1,
            width=8,
        ),
        Panel(
            "Internal fragmentation",
            "Share of the slots of used blocks that hold no token: half a block per sequence. High with many very "
            "short sequences.",
            RATIO,
            (Target(QUERIES.mean(metrics.INTERNAL_FRAGMENTATION, "engines"), "{{engines}}"),),
            highest=1,
            width=8,
        ),
        Panel(
            "Block sharing",
            "Share of the entries of block tables that need no block of their own: memory that common prefixes save.",
            RATIO,
            (Target(QUERIES.mean(metrics.BLOCK_SHARING, "engines"), "{{engines}}"),),
            highest=1,
            width=8,
        ),
    ),
)

PULSE = Board(
    "kvpulse-cache-pulse",
    "KVPulse: cache pulse",
    "Whether the KV caches keep what will be asked for again.",
    (_USAGE, _HITS, _CHURN, _PACKING),
)
