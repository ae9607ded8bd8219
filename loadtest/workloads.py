"""The four traffic classes: how long their requests are, what they say, how a session goes on.

A session is a function of (seed, class, name, turn) alone. What the assistant "said" in earlier turns is generated too,
so a schedule is the same whatever the server answers, and two servers get the same bytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from loadtest.content import TokensPerCharacter, code_lines, diff_lines, prose_lines, take_tokens, text_of
from loadtest.records import Objective, PlannedRequest, TrafficClass

CHAT_ENDPOINT = "/v1/chat/completions"
COMPLETION_ENDPOINT = "/v1/completions"
MIN_TOKENS = 4
DEFAULT_TOKENIZER = TokensPerCharacter()


@dataclass(frozen=True)
class LengthDistribution:
    """Log-normal lengths in tokens.

    Args:
        mean: of the distribution itself, not of its logarithm.
        spread: standard deviation over mean: low 0.25, medium 0.5, very high 1.0.
    """

    mean: float
    spread: float

    def draw(self, rng: random.Random) -> int:
        variance = math.log(1 + self.spread**2)
        return max(MIN_TOKENS, round(rng.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))))


@dataclass(frozen=True)
class ClassProfile:
    """One traffic class as configured.

    Args:
        weight: share of the requests, relative to the other classes.
        turns: requests of one session before it ends and a new one takes its place.
    """

    prompt: LengthDistribution
    output: LengthDistribution
    objective: Objective
    weight: float
    turns: int


# Means and spreads are the articles' (docs/articles.md). An IDE asks far more often than anyone reads a document.
DEFAULT_PROFILES: Mapping[TrafficClass, ClassProfile] = {
    TrafficClass.IDE: ClassProfile(
        LengthDistribution(892, 0.5), LengthDistribution(127, 0.5), Objective(ttft_s=1.0), weight=0.7, turns=10
    ),
    TrafficClass.CHAT: ClassProfile(
        LengthDistribution(128, 0.25), LengthDistribution(256, 0.25), Objective(ttft_s=2.0), weight=0.2, turns=5
    ),
    TrafficClass.REVIEW: ClassProfile(
        LengthDistribution(3152, 1.0), LengthDistribution(3021, 1.0), Objective(ttft_s=20.0), weight=0.05, turns=4
    ),
    TrafficClass.SUMMARY: ClassProfile(
        LengthDistribution(4217, 1.0), LengthDistribution(1893, 1.0), Objective(ttft_s=20.0), weight=0.05, turns=3
    ),
}


@dataclass(frozen=True)
class WorkloadConfig:
    """Everything that the content of the requests depends on.

    Args:
        prompt_scale: multiplies drawn prompt lengths, on top of what the context asks for.
        output_scale: the same for answers.
        exact_outputs: ask for answers of exactly the drawn length (vLLM's `ignore_eos`), so that two servers do equal
            work.
    """

    model: str
    context_tokens: int
    seed: int = 0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    exact_outputs: bool = True
    tokens_per_character: TokensPerCharacter = DEFAULT_TOKENIZER
    profiles: Mapping[TrafficClass, ClassProfile] = field(default_factory=lambda: DEFAULT_PROFILES)

    @property
    def room_tokens(self) -> int:
        """Context less the chat template and the error of the length estimate."""
        return round(self.context_tokens * 0.97) - 64

    def scale_of(self, traffic_class: TrafficClass) -> float:
        """1, or less where an average request of the class would take more than half of the context."""
        profile = self.profiles[traffic_class]
        return min(1.0, self.context_tokens / 2 / (profile.prompt.mean + profile.output.mean))


@dataclass(frozen=True)
class Lengths:
    """Of one request, in tokens; `cut` was drawn but has no room in the context."""

    prompt: int
    output: int
    cut: int = 0


@dataclass(frozen=True)
class Session:
    """One user's task: a file being edited, a run of questions, a pull request under review, a document."""

    workload: WorkloadConfig
    traffic_class: TrafficClass
    name: str

    @property
    def _seed(self) -> str:
        return f"{self.workload.seed}/{self.traffic_class}/{self.name}"

    def lengths(self, turn: int) -> Lengths:
        """The longest prompt of the session takes three quarters of the context at most, an answer what is left."""
        profile, scale = self.workload.profiles[self.traffic_class], self.workload.scale_of(self.traffic_class)
        growth = _GROWTH[self.traffic_class]
        drawn = profile.prompt.draw(random.Random(f"{self._seed}/prompt"))  # noqa: S311 - load, not secrets
        wanted = drawn * scale * self.workload.prompt_scale
        largest = min(wanted, self.workload.room_tokens * 0.75 / growth(profile.turns - 1, profile.turns))
        prompt = max(MIN_TOKENS, round(largest * growth(turn, profile.turns)))
        wanted_output = profile.output.draw(random.Random(f"{self._seed}/output/{turn}"))  # noqa: S311 - varies load, guards nothing
        wanted_output = max(MIN_TOKENS, round(wanted_output * scale * self.workload.output_scale))
        output = min(wanted_output, self.workload.room_tokens - prompt)
        return Lengths(
            prompt, output, cut=round((wanted - largest) * growth(turn, profile.turns)) + wanted_output - output
        )

    def request(self, turn: int, at_s: float = 0.0, output_tokens: int | None = None) -> PlannedRequest:
        """The request of one turn; `output_tokens` replaces the drawn length of the answer."""
        lengths = self.lengths(turn)
        output_tokens = output_tokens or lengths.output
        endpoint, content = _CONTENT[self.traffic_class](self, turn, lengths.prompt)
        return PlannedRequest(
            key=f"{self.traffic_class}/{self.name}/{turn}",
            traffic_class=self.traffic_class,
            endpoint=endpoint,
            body=encode_body(
                self.workload.model, content, output_tokens or lengths.output, self.workload.exact_outputs
            ),
            at_s=at_s,
            first_touch=turn == 0,
            cut_tokens=lengths.cut,
        )


def encode_body(model: str, content: Mapping[str, Any], output_tokens: int, exact_outputs: bool) -> bytes:
    """A streamed OpenAI request that reports its usage."""
    body = {"model": model, **content, "max_tokens": output_tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if exact_outputs:
        body["ignore_eos"] = True
    return msgspec.json.encode(body)


# Size of a prompt over a session's turns, relative to the session's drawn length; each averages 1 over the turns.
def _ide_growth(turn: int, turns: int) -> float:
    return (1 + 0.02 * turn) / (1 + 0.01 * (turns - 1))


def _review_growth(turn: int, turns: int) -> float:
    return 2 * (turn + 1) / (turns + 1)


def _no_growth(turn: int, turns: int) -> float:
    return 1.0


_GROWTH: Mapping[TrafficClass, Callable[[int, int], float]] = {
    TrafficClass.IDE: _ide_growth,
    TrafficClass.CHAT: _no_growth,
    TrafficClass.REVIEW: _review_growth,
    TrafficClass.SUMMARY: _no_growth,
}

_Content = tuple[str, dict[str, Any]]


NOTES = ("checked", "see the ticket", "slow when empty", "kept for old clients", "sorted by name")


def _ide_content(session: Session, turn: int, tokens: int) -> _Content:
    """The file above the cursor. It grows at its end; one edit in four also changes a line in its last third."""
    ratio = session.workload.tokens_per_character.code
    lines = take_tokens(code_lines(session._seed), tokens, ratio)
    oldest = len(take_tokens(code_lines(session._seed), session.lengths(0).prompt, ratio)) - 1  # it is complete
    for edit in range(1, turn + 1):
        rng = random.Random(f"{session._seed}/edit/{edit}")  # noqa: S311 - varies load, guards nothing
        if oldest >= 12 and rng.random() < 0.25:
            lines[rng.randrange(oldest * 2 // 3, oldest)] += f"  # {rng.choice(NOTES)}"
    return COMPLETION_ENDPOINT, {"prompt": "\n".join(lines)}


CHAT_SYSTEM = (
    "You are the assistant of an engineering team. Answer in plain words, in at most three paragraphs, say what you do "
    "not know, and never invent an interface."
)
REVIEW_SYSTEM = (
    "You review pull requests. For each hunk say what may break, which test is missing, and how you would write it."
)
SUMMARY_SYSTEM = "You summarise reports for readers who were not there. Keep every figure and name its paragraph."
QUESTIONS = (
    "Summarise the report above.",
    "List every figure in the report above with the number of its paragraph.",
    "What does the report above leave open? Answer in a list.",
)


def _chat_content(session: Session, turn: int, tokens: int) -> _Content:
    ratio = session.workload.tokens_per_character.prose
    question = text_of(prose_lines, f"{session._seed}/{turn}", tokens - round(len(CHAT_SYSTEM) * ratio), ratio)
    return _chat(CHAT_SYSTEM, [f"Is this right, and why? {question}"])


def _review_content(session: Session, turn: int, tokens: int) -> _Content:
    """A diff, then per further turn an answer and a follow-up diff: what was said stays, so the prefix does too."""
    ratios = session.workload.tokens_per_character
    per_turn = session.lengths(0).prompt  # the same in every turn: history is never rewritten
    messages: list[str] = []
    for past in range(turn + 1):
        seed = f"{session._seed}/{past}"
        if past:
            messages.append(text_of(prose_lines, seed, per_turn // 2, ratios.prose))
        diff_tokens = per_turn - per_turn // 2 if past else per_turn
        messages.append(f"Review this change.\n{text_of(diff_lines, seed, diff_tokens, ratios.diff)}")
    return _chat(REVIEW_SYSTEM, messages)


def _summary_content(session: Session, turn: int, tokens: int) -> _Content:
    document = text_of(prose_lines, session._seed, tokens, session.workload.tokens_per_character.prose)
    return _chat(SUMMARY_SYSTEM, [f"{document}\n\n{QUESTIONS[turn % len(QUESTIONS)]}"])


def _chat(system: str, turns: list[str]) -> _Content:
    """`turns` alternate between user and assistant and start and end with the user."""
    spoken = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(turns)]
    return CHAT_ENDPOINT, {"messages": [{"role": "system", "content": system}, *spoken]}


_CONTENT: Mapping[TrafficClass, Callable[[Session, int, int], _Content]] = {
    TrafficClass.IDE: _ide_content,
    TrafficClass.CHAT: _chat_content,
    TrafficClass.REVIEW: _review_content,
    TrafficClass.SUMMARY: _summary_content,
}


def with_weights(
    profiles: Mapping[TrafficClass, ClassProfile], weights: Mapping[TrafficClass, float]
) -> dict[TrafficClass, ClassProfile]:
    """The profiles with these weights; classes that are not named get none."""
    return {name: replace(profile, weight=weights.get(name, 0.0)) for name, profile in profiles.items()}
