"""What `/v1/explain` tells of a request that would be let in, and of one that would not."""

from __future__ import annotations

import msgspec

from app.decisions.routing import RoutingDecision, RoutingReason
from deployments.explanation import explanation
from tests.gates import CLIENT, COLD, HOT, Door, client_with, triaged


async def test_it_tells_path_admission_engines_and_choice() -> None:
    door = Door(slots=7)
    door.admit(HOT)
    asked = triaged(HOT)
    choice = RoutingDecision("r0", RoutingReason.TIE, 0, 12.34)
    told = explanation(asked, door.gate.explain(asked, CLIENT, None), [], choice)
    assert (told["path"], told["priority"]) == ("hot", 50)
    assert told["admission"] == {
        "action": "start",
        "reason": "home",
        "engines": "hot",
        "level": "normal",
        "output_cap_tokens": None,
        "retry_after_s": None,
        "prefill_s": 0.0,
    }
    assert (told["engines"]["hot"]["slots"], told["engines"]["hot"]["used_slots"]) == (7, 1)
    assert told["choice"] == {"replica": "r0", "reason": "tie", "matched_tokens": 0, "cost_tokens": 12.3}
    msgspec.json.encode(told)  # it is JSON all through


async def test_it_tells_what_would_be_refused_why_and_what_has_been() -> None:
    door = Door()
    door.report(COLD, kv_usage_ratio=0.93)
    door.gate.tick()
    asked = triaged(COLD, prompt=5000)
    told = explanation(asked, door.gate.explain(asked, CLIENT, None), [], None)
    assert (told["admission"]["action"], told["admission"]["reason"]) == ("refuse", "kv_cache_high")
    assert told["engines"]["cold"]["signal"] == "kv_usage_ratio"
    assert told["refusals"] == []
    door.gate.refusals[COLD, told["admission"]["reason"]] += 1
    told = explanation(asked, door.gate.explain(asked, CLIENT, None), [], None)
    assert told["refusals"] == [{"path": "cold", "reason": "kv_cache_high", "count": 1}]


async def test_it_tells_what_was_predicted_and_from_what() -> None:
    door = Door()
    first = door.admit(HOT, prompt=1000)
    door.clock.advance(2.0)
    first.first_token()
    door.report(HOT, queued_prefill_tokens=600)
    door.gate.tick()
    asked = triaged(HOT, prompt=400)
    told = explanation(asked, door.gate.explain(asked, CLIENT, None), [], None)
    hot = told["engines"]["hot"]
    assert (hot["queued_prefill_tokens"], hot["prefill_tokens_per_s"]) == (600, 500)
    assert told["admission"]["prefill_s"] == 2.0


async def test_a_spent_quota_refuses_before_the_engines_do() -> None:
    door = Door()
    client = client_with(requests_per_minute=1)
    door.admit(HOT, client=client)
    asked = triaged(HOT)
    told = explanation(asked, door.gate.explain(asked, client, None), [], None)["admission"]
    assert (told["action"], told["reason"], told["retry_after_s"]) == ("refuse", "requests_per_minute", 60.0)
