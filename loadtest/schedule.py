"""Who asks when: sessions in slots, drawn by an open loop or owned by the users of a closed one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from loadtest.records import PlannedRequest, TrafficClass
from loadtest.workloads import Session, WorkloadConfig

WARMUP_OUTPUT_TOKENS = 1


@dataclass
class Slot:
    """A seat for sessions of one class: when one has had all its turns, a new one takes its place."""

    workload: WorkloadConfig
    traffic_class: TrafficClass
    name: str
    session_number: int = 0
    turn: int = 0

    @property
    def session(self) -> Session:
        return Session(self.workload, self.traffic_class, f"{self.name}.{self.session_number}")

    def warmup(self) -> PlannedRequest:
        """Prefill the slot's first prompt; the schedule goes on with the turn after it."""
        request = self.session.request(self.turn, output_tokens=WARMUP_OUTPUT_TOKENS)
        self._advance()
        return request

    def next_request(self, at_s: float = 0.0) -> PlannedRequest:
        request = self.session.request(self.turn, at_s)
        self._advance()
        return request

    def _advance(self) -> None:
        self.turn += 1
        if self.turn >= self.workload.profiles[self.traffic_class].turns:
            self.session_number, self.turn = self.session_number + 1, 0


@dataclass
class SlotPool:
    """The slots of every class that has a weight.

    Args:
        slots_per_class: how many sessions of a class are open at a time.
    """

    workload: WorkloadConfig
    slots_per_class: Mapping[TrafficClass, int]
    prefix: str = "slot"
    slots: dict[TrafficClass, list[Slot]] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = {
            name: [Slot(self.workload, name, f"{self.prefix}{number}") for number in range(self.slots_per_class[name])]
            for name, profile in self.workload.profiles.items()
            if profile.weight > 0
        }

    def warmup(self) -> list[PlannedRequest]:
        return [slot.warmup() for slots in self.slots.values() for slot in slots]

    def draw(self, rng: random.Random, at_s: float = 0.0) -> PlannedRequest:
        """The next request of a random slot, the class by weight."""
        names = list(self.slots)
        weights = [self.workload.profiles[name].weight for name in names]
        (name,) = rng.choices(names, weights)
        return rng.choice(self.slots[name]).next_request(at_s)


def open_loop(pool: SlotPool, arrivals_s: Iterable[float], rng: random.Random) -> list[PlannedRequest]:
    """One request per arrival. Sessions do not wait for their answers: arrivals never depend on the server."""
    return [pool.draw(rng, at_s) for at_s in arrivals_s]


def closed_loop_user(pool: SlotPool, rng: random.Random) -> Iterator[PlannedRequest]:
    """What one user asks, without end; the user sends each when the answer before has ended."""
    while True:
        yield pool.draw(rng)
