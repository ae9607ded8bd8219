"""Prompt tokens are queued until the cache holds them."""

from __future__ import annotations

from app.state.block_ledger import BlockLedger
from app.state.chain_hashes import text_extra
from app.state.prefill_progress import PrefillProgress, Prompt
from app.state.pulse import CacheChange
from tests.fake_engine_cache import HASHER, FakeEngineCache

PROMPT = list(range(10))  # two full blocks of four and a rest


class Engine:
    def __init__(self) -> None:
        self.cache = FakeEngineCache()
        self.ledger = BlockLedger(HASHER, 1000)
        self.progress = PrefillProgress(self.ledger)

    def compute(self, tokens: list[int], salt: str | None = None) -> None:
        self.cache.compute(tokens, salt)
        self.ledger.apply(self.cache.take_batch())


def test_a_cached_prefix_is_not_queued() -> None:
    engine = Engine()
    engine.compute(PROMPT[:4])
    assert engine.progress.remaining_tokens({"r": Prompt(PROMPT), "s": Prompt([9] * 10)}) == 6 + 10


def test_a_prefill_in_chunks_shows_its_progress() -> None:
    engine = Engine()
    remaining = []
    for computed in (0, 4, 8, 10):
        engine.compute(PROMPT[:computed])
        remaining.append(engine.progress.remaining_tokens({"r": Prompt(PROMPT)}))
    assert remaining == [10, 6, 2, 2]


def test_the_last_token_is_always_computed() -> None:
    engine = Engine()
    engine.compute(PROMPT[:8])
    assert engine.progress.remaining_tokens({"r": Prompt(PROMPT[:8])}) == 1


def test_a_prefix_under_another_salt_has_to_be_computed() -> None:
    engine = Engine()
    engine.compute(PROMPT, salt="theirs")
    ours = {"r": Prompt(PROMPT, text_extra("ours"))}
    theirs = {"s": Prompt(PROMPT, text_extra("theirs"))}
    assert engine.progress.remaining_tokens(ours | theirs) == 10 + 2


def test_a_request_that_is_gone_leaves_nothing() -> None:
    engine = Engine()
    engine.progress.remaining_tokens({"r": Prompt(PROMPT)})
    assert engine.progress.remaining_tokens({}) == 0


def test_what_an_accepted_prompt_will_store_is_told_before_it_is_computed_and_withdrawn_if_it_never_is() -> None:
    engine = Engine()
    engine.progress.remaining_tokens({"r": Prompt(PROMPT), "s": Prompt(PROMPT[:4])})
    assert engine.ledger.take_change() == CacheChange(stored=tuple(HASHER.prompt(PROMPT)))
    engine.progress.remaining_tokens({"s": Prompt(PROMPT[:4])})
    assert engine.ledger.take_change() == CacheChange(removed=tuple(HASHER.prompt(PROMPT)[1:]))
    engine.progress.remaining_tokens({})
    assert engine.ledger.take_change() == CacheChange(removed=tuple(HASHER.prompt(PROMPT)[:1]))


def test_a_prompt_that_was_computed_as_expected_changes_nothing_any_more() -> None:
    engine = Engine()
    engine.progress.remaining_tokens({"r": Prompt(PROMPT)})
    engine.ledger.take_change()
    engine.compute(PROMPT)
    engine.progress.remaining_tokens({})
    assert not engine.ledger.changed
    assert set(engine.ledger.held()) == set(HASHER.prompt(PROMPT))


def test_an_engine_that_caches_no_prefixes_is_expected_to_hold_none() -> None:
    ledger = BlockLedger(HASHER, 1000, caches_prefixes=False)
    progress = PrefillProgress(ledger)
    assert [progress.remaining_tokens({"r": Prompt(PROMPT)}), progress.remaining_tokens({})] == [10, 0]
    assert not ledger.changed and not set(ledger.held())


def test_expecting_does_not_count_as_computed() -> None:
    engine = Engine()
    waiting = {"r": Prompt(PROMPT), "s": Prompt(PROMPT)}
    assert [engine.progress.remaining_tokens(waiting) for _ in range(2)] == [20, 20]
