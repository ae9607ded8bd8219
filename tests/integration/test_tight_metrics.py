"""What a real Prometheus and a real collector get of a running stack is what happened in it."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from app import metrics
from app.metrics import Kind, Metric
from app.state.scaling_inputs import EngineStats, IngressStats
from tests.integration.client import COMPLETIONS, Ask, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.configs import KEYS, MODEL, TIGHT_BLOCKS
from tests.integration.prometheus import BINARY, Prometheus
from tests.integration.routing import BLOCK_TOKENS, body, token_ids
from tests.integration.stack import Stack
from tests.otlp_collector import OtlpCollector, plain

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no Prometheus: make test-tools")

HEADERS = {"authorization": f"Bearer {KEYS['owner']}"}
ENGINES = ("hot", "cold")
EARLIER: dict[str, list[tuple[int, int]]] = {"hot": [], "cold": []}  # what the tests before have asked
OUTSIDE = {*metrics.DEVICE_METRICS, *metrics.SCALING_METRICS}  # need a GPU, come from the controller


INGRESS = set(metrics.ALL[: metrics.ALL.index(metrics.ITL)])  # its metrics stand first


@pytest.fixture(scope="module")
def prometheus(tight: Stack) -> Iterator[Prometheus]:
    running = Prometheus(tight.scrape_targets)
    yield running
    running.close()


@pytest.fixture
def owner(tight: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tight.url, timeout=120, headers=HEADERS) as client:
        yield client


def selector(metric: Metric, part: str = "", **labels: str) -> str:
    given = ",".join(f'{name}="{value}"' for name, value in {"application": "kvpulse", **labels}.items())
    return f"{metric.ray_name}{part}{{{given}}}"


def of(prometheus: Prometheus, metric: Metric, **labels: str) -> float:
    return prometheus.value(f"sum({selector(metric, **labels)})") or 0.0


def forced(request: dict[str, Any], engines: str) -> dict[str, Any]:
    return request | {"model": f"{MODEL}:{engines}"}


def answer(client: httpx.Client, request: dict[str, Any], **headers: str) -> httpx.Response:
    response = client.post(COMPLETIONS, json=request, headers=headers)
    assert response.status_code == 200, response.text
    return response


def asked_of(client: httpx.Client, engines: str, prompt: list[int]) -> tuple[int, int]:
    """Prompt tokens, and how many of them the engine says that it had."""
    usage = answer(client, forced(body(prompt), engines)).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def vllm_count(cluster: Cluster, engines: str, name: str) -> float:
    """What vLLM itself counts, on the metrics route of the engine's private server."""
    (replica,) = cluster.call(engines, "record_replica_metadata")
    headers = {"authorization": f"Bearer {replica['token']}"}
    text = httpx.get(f"http://{replica['address']}/metrics", headers=headers).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{"))


def settled(prometheus: Prometheus, metric: Metric, wanted: float, **labels: str) -> None:
    eventually(
        lambda: of(prometheus, metric, **labels) == wanted,
        f"{selector(metric, **labels)} = {wanted:g}",
        60,
        lambda: of(prometheus, metric, **labels),
    )


async def crowd(stack: Stack, prompts: list[list[int]], max_tokens: int) -> list[Any]:
    async with open_session() as session:
        asks = [
            Ask(session, stack.url + COMPLETIONS, forced(body(prompt, max_tokens, stream=True), "hot"), HEADERS)
            for prompt in prompts
        ]
        return list(await asyncio.gather(*(asked.task for asked in asks)))


def test_hits_are_what_the_answers_say(prometheus: Prometheus, owner: httpx.Client) -> None:
    """Prompts that share more and less, one after the other: no sequence is preempted and looked up again."""
    before = {
        (metric, engines): of(prometheus, metric, engines=engines)
        for metric in (metrics.PREFIX_QUERY_TOKENS, metrics.PREFIX_HIT_TOKENS, metrics.PROMPT_TOKENS)
        for engines in ENGINES
    }
    rng = random.Random(31)
    for engines in ENGINES:
        base, asked, cached = token_ids(rng, 400), 0, 0
        for kept in (0, 400, 130, 64, 31):
            prompt = base[:kept] + token_ids(rng, 420 - kept)
            EARLIER[engines].append(asked_of(owner, engines, prompt))
            asked += EARLIER[engines][-1][0]
            cached += EARLIER[engines][-1][1]
        assert cached >= 64
        for metric, amount in (
            (metrics.PREFIX_QUERY_TOKENS, asked),
            (metrics.PREFIX_HIT_TOKENS, cached),
            (metrics.PROMPT_TOKENS, asked),
        ):
            settled(prometheus, metric, before[metric, engines] + amount, engines=engines)


def test_the_hit_ratio_is_that_of_the_last_minute(prometheus: Prometheus, owner: httpx.Client) -> None:
    """Its window begins with some answer; it must be the ratio of all from that one on."""
    prompt = token_ids(random.Random(32), 320)
    answers = [asked_of(owner, "cold", prompt) for _ in range(4)]
    told = [*EARLIER["cold"], *answers]
    ratios = [
        sum(hit for _, hit in told[n:]) / sum(asked for asked, _ in told[n:]) for n in range(len(EARLIER["cold"]) + 1)
    ]

    def ratio() -> bool:
        value = prometheus.value(selector(metrics.PREFIX_HIT_RATIO, engines="cold"))
        return any(value == pytest.approx(wanted) for wanted in ratios)

    eventually(ratio, f"a hit ratio among {ratios}", 30)


def test_usage_is_what_one_frozen_sequence_holds(
    prometheus: Prometheus, tight: Stack, tight_cluster: Cluster, owner: httpx.Client
) -> None:
    (engine,) = tight_cluster.engine_processes("hot")
    usage, running = (selector(metric, engines="hot") for metric in (metrics.KV_USAGE, metrics.RUNNING_REQUESTS))

    async def hold() -> None:
        async with open_session() as session:
            request = forced(body(token_ids(random.Random(33), 900), 600, stream=True), "hot")
            asked = Ask(session, tight.url + COMPLETIONS, request, HEADERS)
            await asked.began.wait()
            engine.send_signal(signal.SIGSTOP)
            try:
                await asyncio.to_thread(eventually, lambda: prometheus.value(running) == 1, "one sequence runs", 30)
                least = -(-900 // BLOCK_TOKENS) / (TIGHT_BLOCKS - 1)
                most = -(-1500 // BLOCK_TOKENS) / (TIGHT_BLOCKS - 1)
                told = await asyncio.to_thread(prometheus.value, usage)
                assert told is not None and least <= told <= most
                blocks = told * (TIGHT_BLOCKS - 1)
                assert blocks == pytest.approx(round(blocks), abs=1e-6), "a whole number of blocks"
            finally:
                engine.send_signal(signal.SIGCONT)
            await asked.task

    asyncio.run(hold())
    settled(prometheus, metrics.KV_USAGE, 0.0, engines="hot")
    assert prometheus.value(selector(metrics.KV_BLOCKS, engines="hot")) == TIGHT_BLOCKS


def test_preemptions_and_evictions_are_counted(
    prometheus: Prometheus, tight: Stack, tight_cluster: Cluster, owner: httpx.Client
) -> None:
    """Three sequences that together need more than the cache has. vLLM counts preemptions too, apart from us."""
    rng = random.Random(34)
    before = vllm_count(tight_cluster, "hot", "vllm:num_preemptions_total")
    settled(prometheus, metrics.PREEMPTIONS, before, engines="hot")
    evicted = of(prometheus, metrics.EVICTED_BLOCKS, engines="hot")
    replies = asyncio.run(crowd(tight, [token_ids(rng, 500) for _ in range(3)], 300))
    assert all(reply.complete for reply in replies)
    after = vllm_count(tight_cluster, "hot", "vllm:num_preemptions_total")
    assert after > before, "a run without preemptions proves nothing"
    settled(prometheus, metrics.PREEMPTIONS, after, engines="hot")
    for name, metric in (
        ("vllm:prefix_cache_queries_total", metrics.PREFIX_QUERY_TOKENS),
        ("vllm:prefix_cache_hits_total", metrics.PREFIX_HIT_TOKENS),
        ("vllm:generation_tokens_total", metrics.GENERATED_TOKENS),
    ):
        settled(prometheus, metric, vllm_count(tight_cluster, "hot", name), engines="hot")
    held = 3 * (800 // BLOCK_TOKENS)
    assert of(prometheus, metrics.EVICTED_BLOCKS, engines="hot") - evicted >= held - TIGHT_BLOCKS


def test_a_reset_of_the_cache_is_no_eviction(
    prometheus: Prometheus, tight_cluster: Cluster, owner: httpx.Client
) -> None:
    answer(owner, forced(body(token_ids(random.Random(35), 320)), "cold"))
    tight_cluster.wait_until_idle()
    eventually(lambda: of(prometheus, metrics.CACHED_BLOCKS, engines="cold") >= 10, "cached blocks", 30)
    before = of(prometheus, metrics.EVICTED_BLOCKS, engines="cold")
    assert all(tight_cluster.call("cold", "reset_prefix_cache"))
    answer(owner, forced(body(token_ids(random.Random(36), 40)), "cold"))  # brings the engine's own event of it
    eventually(lambda: of(prometheus, metrics.CACHED_BLOCKS, engines="cold") <= 1, "an empty cache", 30)
    assert of(prometheus, metrics.EVICTED_BLOCKS, engines="cold") == before


def test_a_trace_goes_from_the_client_through_the_ingress_to_the_engine(
    owner: httpx.Client, collector: OtlpCollector
) -> None:
    trace_id, client_span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    prompt = token_ids(random.Random(37), 100)
    reply = answer(owner, forced(body(prompt), "cold"), traceparent=f"00-{trace_id}-{client_span}-01")

    def spans() -> dict[str, Any]:
        found = [span for span in collector.spans() if span.trace_id.hex() == trace_id]
        return {span.name: span for span in found} if len(found) >= 2 else {}

    told = eventually(spans, "both spans", 30)
    ingress, engine = told[f"text_completion {MODEL}"], told["llm_request"]
    assert ingress.parent_span_id.hex() == client_span
    assert engine.parent_span_id == ingress.span_id
    attributes = plain(ingress.attributes)
    assert attributes["kvpulse.path"] == attributes["kvpulse.engines"] == "cold"
    assert attributes["kvpulse.outcome"] == "answered"
    assert attributes["kvpulse.replica"] == reply.headers["x-kvpulse-replica"]
    assert attributes["kvpulse.routing"] == reply.headers["x-kvpulse-routing"]
    assert plain(engine.attributes)["gen_ai.usage.prompt_tokens"] == 100
    everything = str([*told.values()])
    assert not any(f" {token}" in everything for token in map(str, prompt) if len(token) == 5), "no prompt in a span"


def test_who_is_not_sampled_leaves_no_span(owner: httpx.Client, collector: OtlpCollector) -> None:
    """The ratio of this stack is 0, so only clients that ask for it are traced."""
    trace_id = "1af7651916cd43dd8448eb211c80319c"
    answer(owner, forced(body([7] * 50), "cold"), traceparent=f"00-{trace_id}-b7ad6b7169203331-00")
    before = len(collector.spans())
    answer(owner, forced(body([7] * 50), "cold"))
    asked = "2af7651916cd43dd8448eb211c80319c"
    answer(owner, forced(body([7] * 50), "cold"), traceparent=f"00-{asked}-b7ad6b7169203331-01")
    eventually(lambda: {s.trace_id.hex() for s in collector.spans()} >= {asked}, "the one that asked", 30)
    assert {span.trace_id.hex() for span in collector.spans()[before:]} == {asked}


def test_a_collector_gets_the_same_from_every_replica(collector: OtlpCollector, owner: httpx.Client) -> None:
    everyone = {"kvpulse-ingress", "kvpulse-hot-engine", "kvpulse-cold-engine"}
    eventually(lambda: collector.services() >= everyone, "all three services", 30)
    for metric in set(metrics.ALL) - OUTSIDE:
        eventually(lambda metric=metric: collector.named(metric.instrument_name), metric.instrument_name, 30)


def test_every_metric_has_had_data(prometheus: Prometheus, tight: Stack, owner: httpx.Client) -> None:
    """Whatever the tests before have asked for, and some more that streams."""
    rng = random.Random(38)
    asyncio.run(crowd(tight, [token_ids(rng, 300) for _ in range(2)], 600))
    for metric in metrics.ALL:
        if metric in OUTSIDE:
            continue
        for part in ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",):
            seen = f"last_over_time({selector(metric, part)}[10m])"
            series = eventually(lambda seen=seen: prometheus.query(seen), seen, 30)
            for each in series:
                assert set(metric.labels) <= set(each["metric"]), metric.name
                assert {"application", "deployment", "replica"} <= set(each["metric"]), metric.name
        assert {each["metric"]["deployment"] for each in series} <= (
            {"Ingress"} if metric in INGRESS else {"HotEngine", "ColdEngine"}
        )
    for histogram in (metrics.ITL, metrics.TTFT, metrics.PREFILL_TIME, metrics.REQUEST_DURATION):
        buckets = f"rate({selector(histogram, '_bucket')}[10m])"
        assert (prometheus.value(f"histogram_quantile(0.5, sum by (le) ({buckets}))") or 0) > 0


def test_replicas_tell_the_policy_plain_numbers(tight_cluster: Cluster, owner: httpx.Client) -> None:
    def told(deployment: str) -> dict[str, float]:
        (stats,) = tight_cluster.broadcast(deployment, "record_autoscaling_stats")
        return dict(stats)

    answer(owner, forced(body(token_ids(random.Random(39), 100)), "hot"))
    eventually(lambda: told("HotEngine")["kv_usage_ratio"] == 0, "an idle engine", 30)
    for deployment, kind in (("HotEngine", EngineStats), ("ColdEngine", EngineStats), ("Ingress", IngressStats)):
        stats = told(deployment)
        assert all(type(value) in (int, float) for value in stats.values())
        msgspec.convert(stats, kind)
    assert 0 < told("HotEngine")["busy_ratio"] <= 1
    assert told("Ingress")["hot_offered_requests_per_s"] > 0
