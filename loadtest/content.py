"""Texts of a wanted length in tokens, without a tokenizer: code, prose, diffs, and words of one token each.

A text is a seeded, endless sequence of lines; a longer text of the same seed starts with the shorter one, so what grows
keeps its prefix. Lengths come from tokens per character, which `loadtest.probe` measures on the server's own model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    "account batch buffer cache chunk client config counter cursor entry event field frame header index job key "
    "lease limit message metric node order page payload peer policy prefix price query queue record region "
    "replica request result route sample schema score segment session shard slot state stream tenant ticket "
    "token user value window"
)
VERBS = _words(
    "apply build check clear close collect count decode drain encode expire fetch filter find flush group hold "
    "join load lock mark match merge open parse pick poll pop push read refresh release remove reset resolve "
    "route scan send sort split store sum trim update validate wait write"
)
ADJECTIVES = _words(
    "active clean cold empty fresh full hot idle late local next old open ready remote stale total valid"
)

# Common English words: with a space before it, each is one token in the byte-pair vocabularies of current models.
SINGLE_TOKEN_WORDS = _words(
    "the of and to in is was for that on as with by at from his were are which this be had not have one has "
    "their first after its new who they two her she been other when time during there into more over would some "
    "only world most between about city year where through then state years can three used part many will made "
    "known such these people area number work second war school later town called until life early use several "
    "before group while since high same public house music well system member even under found water long place "
    "former home local small large family main day company name line book game team end order power set case "
    "land best type form back does children women court law party man government history body president club "
    "building business general road days season field"
)


@dataclass(frozen=True)
class TokensPerCharacter:
    """How the model's tokenizer sees our texts. The defaults are SmolLM2's."""

    code: float = 0.28
    prose: float = 0.22
    diff: float = 0.32


def one_token_words(seed: str, words: int) -> str:
    """`words` words, each with a space before it: `words` tokens wherever the text stands."""
    return " " + " ".join(random.Random(seed).choices(SINGLE_TOKEN_WORDS, k=words))  # noqa: S311 - load, not secrets


def code_lines(seed: str) -> Iterator[str]:
    """A Python module: imports, a class, method after method."""
    rng = random.Random(seed)  # noqa: S311 - varies load, guards nothing
    subject = rng.choice(NOUNS)
    yield from ("from __future__ import annotations", "", "import time", "from dataclasses import dataclass, field", "")
    yield from ("", f"class {subject.title()}{rng.choice(NOUNS).title()}:")
    yield f'    """Keeps every {rng.choice(ADJECTIVES)} {subject} of one {rng.choice(NOUNS)}."""'
    while True:
        yield from _method(rng, subject)


def _method(rng: random.Random, subject: str) -> Iterator[str]:
    verb, noun, other, adjective = rng.choice(VERBS), rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(ADJECTIVES)
    yield ""
    yield f"    def {verb}_{noun}(self, {other}: str, limit: int = {rng.randrange(2, 500)}) -> list[str]:"
    yield f'        """{verb.title()} the {adjective} {noun} of a {other}; at most `limit` of them."""'
    yield f"        {noun}s = self._{subject}s.get({other}, [])"
    yield f"        if len({noun}s) > limit:"
    yield f'            raise ValueError(f"{adjective} {noun}s: {{len({noun}s)}} is above {{limit}}")'
    for _ in range(rng.randrange(1, 4)):
        step, part = rng.choice(VERBS), rng.choice(NOUNS)
        yield f"        for {part} in sorted({noun}s, key=lambda item: item.{rng.choice(NOUNS)}):"
        yield f"            self._{part}_{rng.choice(NOUNS)}[{other}] = {step}({part}, {rng.randrange(1, 64)})"
    yield f"        return [{noun}.name for {noun} in {noun}s if {noun}.{adjective}]"


def prose_lines(seed: str) -> Iterator[str]:
    """Numbered paragraphs of an operations report, one a line."""
    rng = random.Random(seed)  # noqa: S311 - varies load, guards nothing
    for number in count(1):
        sentences = " ".join(_sentence(rng) for _ in range(rng.randrange(3, 7)))
        yield f"{number}. {sentences}"


def _sentence(rng: random.Random) -> str:
    a, b, c = rng.sample(NOUNS, 3)
    verb, adjective = rng.choice(VERBS), rng.choice(ADJECTIVES)
    return rng.choice(
        (
            f"The {adjective} {a} had to {verb} every {b} before the {c} was complete.",
            f"In the second week the team measured the {a} again and found {rng.randrange(2, 90)} percent less {b}.",
            f"Nobody could {verb} the {a} while the {b} of the other site was {adjective}.",
            f"It follows that a {adjective} {a} costs more than a {b}, unless the {c} is shared.",
            f"The report of the {a} group says how to {verb} a {b} and when to leave the {c} alone.",
        )
    )


def diff_lines(seed: str) -> Iterator[str]:
    """A unified diff, hunk after hunk, over generated code."""
    rng = random.Random(seed)  # noqa: S311 - varies load, guards nothing
    code = code_lines(f"{seed}/code")
    for line_number in count(10, 40):
        path = f"src/{rng.choice(NOUNS)}/{rng.choice(NOUNS)}_{rng.choice(NOUNS)}.py"
        yield f"diff --git a/{path} b/{path}"
        yield f"@@ -{line_number},9 +{line_number},11 @@"
        for _ in range(9):
            line = next(code)
            changed = line.replace("limit", "budget").replace("self.", "self._state.")
            if changed == line:
                yield rng.choice("   +") + line
            else:
                yield from (f"-{line}", f"+{changed}")


def take_tokens(lines: Iterator[str], tokens: int, tokens_per_character: float) -> list[str]:
    """The first lines that together hold about `tokens`; the last one is shortened to fit."""
    taken: list[str] = []
    characters_left = round(tokens / tokens_per_character)
    for line in lines:
        if characters_left <= len(line) + 1:
            taken.append(line[: max(0, characters_left - 1)])
            break
        taken.append(line)
        characters_left -= len(line) + 1
    return taken


def text_of(make_lines: Callable[[str], Iterator[str]], seed: str, tokens: int, tokens_per_character: float) -> str:
    return "\n".join(take_tokens(make_lines(seed), tokens, tokens_per_character))
