"""What a test must know of the server before it starts: the model's name, its context, and how it cuts our texts."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loadtest.content import TokensPerCharacter, code_lines, diff_lines, one_token_words, prose_lines, text_of
from loadtest.streaming import Target

ASSUMED_CONTEXT_TOKENS = 2048
SAMPLE_TOKENS = 400


class ProbeError(Exception):
    """The server cannot be tested. The message says what was asked, what came, and what to do."""


@dataclass(frozen=True)
class ServedModel:
    """What /v1/models says. `context_tokens` is None where the server does not tell `max_model_len`."""

    name: str
    context_tokens: int | None


def served_model(target: Target, name: str | None = None) -> ServedModel:
    """The model called `name`, or the first that is served. Raises ProbeError."""
    listed = {model["id"]: model for model in _call(target, "/v1/models")["data"]}
    name = name or next(iter(listed), "")
    if name not in listed:
        raise ProbeError(f"model {name!r} is not served by {target.url}: choose one of {', '.join(listed) or 'none'}")
    return ServedModel(name, listed[name].get("max_model_len"))


def prompt_tokens(target: Target, model: str, prompt: str) -> int:
    """How many tokens the server makes of a prompt; costs one prefill."""
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return int(_call(target, "/v1/completions", body)["usage"]["prompt_tokens"])


def measure_tokenizer(target: Target, model: str) -> TokensPerCharacter:
    """Tokens per character of each kind of text, from one short prompt each."""

    def ratio_of(make_lines: Callable[[str], Iterator[str]]) -> float:
        text = text_of(make_lines, "probe", SAMPLE_TOKENS, 0.25)
        return prompt_tokens(target, model, text) / len(text)

    return TokensPerCharacter(code=ratio_of(code_lines), prose=ratio_of(prose_lines), diff=ratio_of(diff_lines))


def tokens_per_word(target: Target, model: str) -> float:
    """1.0 where our single-token words are that in the server's vocabulary too."""
    few, many = (prompt_tokens(target, model, one_token_words("probe", words)) for words in (100, 300))
    return (many - few) / 200


def wait_until_answering(
    target: Target, model: str | None, timeout_s: float, alive: Callable[[], bool], ready_path: str | None = None
) -> ServedModel:
    """Wait for a real completion: some servers list their models long before an engine is ready. Raises ProbeError.

    Args:
        ready_path: a GET of it must succeed before, where a completion says nothing of the other engines.
    """
    deadline_s = time.monotonic() + timeout_s
    last = "no attempt"
    while time.monotonic() < deadline_s:
        if not alive():
            raise ProbeError(f"the server of {target.url} ended before it answered; its log says why")
        try:
            if ready_path is not None:
                _call(target, ready_path)
            served = served_model(target, model)
            prompt_tokens(target, served.name, "ready")
            return served
        except ProbeError as error:
            last = str(error)
        time.sleep(0.5)
    raise ProbeError(f"{target.url} did not answer within {timeout_s:g} s; last: {last}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A test talks to the address it was given, to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def _call(target: Target, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"content-type": "application/json"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    url = target.url.rstrip("/") + path
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - Target admits http and https alone
    try:
        with _opener.open(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read(300).decode("utf-8", "replace")
        raise ProbeError(f"{url} answered {error.code}: {text}. Is it an OpenAI API that wants --api-key?") from error
    except (OSError, ValueError) as error:
        raise ProbeError(f"{url}: {error}. Start the server, or name another with --host.") from error
