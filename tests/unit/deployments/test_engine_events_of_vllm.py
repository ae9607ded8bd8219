"""vLLM's own cache manager and event publisher: the ledger predicts the hit that vLLM then finds."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zmq
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from app.state.block_ledger import BlockLedger
from app.state.chain_hashes import text_extra
from deployments.engine_events import EngineEventStream, EventEndpoints
from tests.fake_engine_cache import HASHER
from tests.fake_event_publisher import event_endpoints, patient

BLOCK = HASHER.block_size
BLOCKS = 32


class Engine:
    """What of an engine decides on its cache: vLLM's KVCacheManager and publisher, with a ledger that follows them."""

    def __init__(self, endpoints: EventEndpoints) -> None:
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self._manager = KVCacheManager(config, 1024, BLOCK, BLOCK, enable_kv_cache_events=True)
        self._publisher = ZmqEventPublisher(0, endpoints.events, endpoints.replay)
        self._ids = itertools.count()
        self.ledger = BlockLedger(HASHER, BLOCKS)
        self.context: zmq.Context[Any] = zmq.Context()
        self.stream = EngineEventStream(self.context, endpoints, time.monotonic)
        self.endpoints = endpoints
        self._unread = 0
        self._await_stream()

    def _await_stream(self) -> None:
        """Steps without events until one arrives; what was lost before it is replayed."""
        for _ in patient():
            self._publish([])
            if self._read():
                self.step()
                return

    def _publish(self, events: list[Any]) -> None:
        self._publisher.publish(KVEventBatch(ts=time.time(), events=events))
        self._unread += 1

    def _read(self) -> int:
        batches = list(self.stream.read())
        for batch in batches:
            assert batch is not None
            self.ledger.apply(batch)
        self._unread -= len(batches)
        return len(batches)

    def request(self, tokens: list[int], **inputs: Any) -> Request:
        parameters = SamplingParams(max_tokens=1)
        parameters.update_from_generation_config({}, eos_token_id=100)
        return Request(str(next(self._ids)), tokens, parameters, None, block_hasher=self._hasher, **inputs)

    def cached_tokens(self, request: Request) -> int:
        return int(self._manager.get_computed_blocks(request)[1])

    def start(self, request: Request) -> None:
        blocks, cached, *_ = self._manager.get_computed_blocks(request)
        self._manager.allocate_slots(request, request.num_tokens - cached, cached, blocks)

    def end(self, request: Request) -> None:
        self._manager.free(request)

    def reset(self) -> None:
        assert self._manager.reset_prefix_cache()

    def step(self) -> None:
        """Publish, and have the ledger follow."""
        if events := self._manager.take_events():
            self._publish(events)
        for _ in patient():
            self._read()
            if not self._unread:
                return

    def predicted_tokens(self, tokens: list[int], extra: tuple[Any, ...]) -> int:
        chains = HASHER.prompt(tokens[:-1], extra)  # the last token is always computed
        return BLOCK * len(list(itertools.takewhile(self.ledger.holds, chains)))

    def close(self) -> None:
        self._publisher.shutdown()
        self.stream.close()
        self.context.term()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with event_endpoints() as endpoints:
        engine = Engine(endpoints)
        yield engine
        engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_predicted_hit_is_the_hit(engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    hits = 0
    for _ in range(150):
        running = []
        for _ in range(rng.randint(1, 3)):  # in one step, so equal prompts are computed more than once
            tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 6)) for _ in range(BLOCK)]
            salt, adapter = rng.choice([None, "a", "b"]), rng.choice([None, None, "a"])
            lora = LoRARequest(adapter, 1, "/adapters/a") if adapter else None
            request = engine.request(tokens, cache_salt=salt, lora_request=lora)
            predicted = engine.predicted_tokens(tokens, text_extra(salt, adapter))
            assert predicted == engine.cached_tokens(request)
            hits += predicted > 0
            running.append(request)
        for request in running:
            engine.start(request)
        if rng.random() < 0.5:
            engine.step()
        for request in running:
            engine.end(request)
        if rng.random() < 0.03:
            engine.reset()
        engine.step()
    counts = engine.ledger.counts
    assert hits > 10 and counts.removed > 10 and counts.cleared > 0
    assert counts.orphans == counts.unindexed == counts.overflows == 0


def test_images_under_equal_tokens_are_told_apart(engine: Engine) -> None:
    tokens = [7] * (3 * BLOCK)
    for image in ("cat", "dog"):
        feature = MultiModalFeatureSpec(
            data=None, modality="image", identifier=image, mm_position=PlaceholderRange(offset=BLOCK, length=BLOCK)
        )
        request = engine.request(tokens, mm_features=[feature])
        engine.start(request)
        engine.step()
        engine.end(request)
    assert len(set(engine.ledger.held())) == 1 + 2 + 2  # the text before them is shared
    assert engine.predicted_tokens(tokens, ()) == BLOCK


def test_what_vllm_replays_is_understood(engine: Engine) -> None:
    first = engine.request([1] * (2 * BLOCK))
    engine.start(first)
    engine.step()
    late = EngineEventStream(engine.context, engine.endpoints, time.monotonic)
    second = engine.request([2] * (2 * BLOCK))
    ledger = BlockLedger(HASHER, BLOCKS)
    for attempt, _ in enumerate(patient()):
        if attempt == 50:  # subscribed by now
            engine.start(second)
            engine.step()
        for batch in late.read():
            assert batch is not None
            ledger.apply(batch)
        if len(set(ledger.held())) == 4:
            break
    late.close()
    assert set(ledger.held()) == set(engine.ledger.held())
