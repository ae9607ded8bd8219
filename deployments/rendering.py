"""Render and tokenise a request once, in the ingress, with vLLM's own renderer and no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.datastructures import State

from app.errors import InvalidRequestError, NotFoundError
from app.requests import Prompt, RequestFeatures, RequestPath
from deployments.engine_errors import api_error


@dataclass(frozen=True, slots=True)
class OpenAIRoute:
    """One generating route of the OpenAI API, and where its fields are."""

    url: str
    prompt_field: str
    limit_fields: tuple[str, ...]
    default_limit: int | None = None


CHAT = OpenAIRoute("/v1/chat/completions", "messages", ("max_completion_tokens", "max_tokens"))
COMPLETIONS = OpenAIRoute("/v1/completions", "prompt", ("max_tokens",), default_limit=16)
RESPONSES = OpenAIRoute("/v1/responses", "input", ("max_output_tokens",))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request ready for an engine.

    Args:
        features: what decisions are made on.
        prompt: the longest one.
        body: the client's body with the prompt's token ids in it, for the engine's OpenAI app.
    """

    features: RequestFeatures
    prompt: Prompt
    body: dict[str, Any]

    def engine_body(self, route: OpenAIRoute, priority: int | None, output_cap_tokens: int | None) -> dict[str, Any]:
        """The body with what has been decided about it.

        Args:
            priority: vLLM's; None where the engine heeds none. One that the client may set, and has, stands.
            output_cap_tokens: the longest answer that the engine may give; None leaves it to the client.
        """
        body = self.body
        if priority is not None and body.get("priority") is None:
            body = {**body, "priority": priority}
        if output_cap_tokens is not None:
            given = [name for name in route.limit_fields if body.get(name) is not None]
            body = {**body, (given or route.limit_fields)[0]: output_cap_tokens}
            if (body.get("min_tokens") or 0) > output_cap_tokens:
                body["min_tokens"] = output_cap_tokens
        return body


class Renderer:
    """vLLM's chat templates, tokenizer and request checks for one model."""

    def __init__(self, state: State, max_context_tokens: int) -> None:
        self._state = state
        self._max_context_tokens = max_context_tokens
        self.served_names: frozenset[str] = frozenset(
            model.name for model in state.openai_serving_models.base_model_paths
        )

    @classmethod
    async def load(cls, engine_arguments: dict[str, Any], frontend_arguments: dict[str, Any]) -> Renderer:
        """Takes some seconds: vLLM's imports and the tokenizer. `engine_arguments` are those of the longest context."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.render.app_state import init_render_app_state

        from deployments.engine import openai_arguments

        engine_args = AsyncEngineArgs(**engine_arguments)
        vllm_config = engine_args.create_engine_config()
        state = State()
        await init_render_app_state(vllm_config, state, openai_arguments(engine_args, frontend_arguments))
        return cls(state, vllm_config.model_config.max_model_len)

    async def models(self) -> dict[str, Any]:
        """The body of `/v1/models`."""
        listing: BaseModel = await self._state.openai_serving_models.show_available_models()
        return listing.model_dump()

    async def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest

        kind = TokenizeChatRequest if "messages" in body else TokenizeCompletionRequest
        request = _validated(kind, body)
        return await self._answered(self._state.serving_tokenization.create_tokenize, request)

    async def detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest

        request = _validated(DetokenizeRequest, body)
        return await self._answered(self._state.serving_tokenization.create_detokenize, request)

    async def _answered(self, method: Any, request: Any) -> dict[str, Any]:
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        try:
            answer = await method(request, None)
        except (ValueError, TypeError) as error:
            raise InvalidRequestError(str(error)) from error
        if isinstance(answer, ErrorResponse):
            raise api_error(answer.error.code, answer.model_dump())
        body: dict[str, Any] = answer.model_dump()
        return body

    async def render(self, route: OpenAIRoute, body: dict[str, Any], forced_path: RequestPath | None) -> Rendered:
        """Check and tokenise `body`, whose `model` has already been replaced by a served name.

        Raises:
            InvalidRequestError: a malformed field, or a prompt or token limit beyond the context. Nothing has been
                sent to an engine by then.
        """
        limit_field, limit = _output_limit(route, body)
        self._check_limit(limit_field, limit)
        inputs = await self._engine_inputs(route, body)
        prompts = [list(engine_input["prompt_token_ids"]) for engine_input in inputs]
        if not prompts or not all(prompts):
            raise InvalidRequestError(f"`{route.prompt_field}` is empty", param=route.prompt_field)
        longest = max(prompts, key=len)
        self._check_context(route, len(longest), limit_field, limit)
        features = RequestFeatures(
            prompt_tokens=len(longest),
            max_output_tokens=limit,
            sequences=len(prompts) * int(body.get("n") or 1),
            forced_path=forced_path,
        )
        only_tokens = all(engine_input["type"] == "token" for engine_input in inputs)
        prompt = Prompt(len(longest), longest if only_tokens else (), body.get("cache_salt"))
        return Rendered(features, prompt, _with_token_ids(route, body, prompts))

    async def _engine_inputs(self, route: OpenAIRoute, body: dict[str, Any]) -> list[Any]:
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.exceptions import VLLMValidationError

        try:
            rendered = await self._render_with_vllm(route, body)
        except VLLMValidationError as error:
            param = route.prompt_field if error.parameter == "input_tokens" else error.parameter
            code = "context_length_exceeded" if error.parameter == "input_tokens" else None
            raise InvalidRequestError(str(error), param=param, code=code) from None
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise InvalidRequestError(str(error), param=route.prompt_field) from None
        except NotImplementedError as error:  # how vLLM refuses what it does not serve
            raise InvalidRequestError(str(error)) from None
        except Exception as error:
            if any(kind.__name__ == "TemplateError" for kind in type(error).__mro__):
                raise InvalidRequestError(
                    f"the chat template refuses these messages: {error}", param="messages"
                ) from None
            raise
        if isinstance(rendered, ErrorResponse):
            raise api_error(rendered.error.code, rendered.model_dump())
        return list(rendered)

    async def _render_with_vllm(self, route: OpenAIRoute, body: dict[str, Any]) -> Any:
        """A list of engine inputs, or vLLM's ErrorResponse."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        renderer = self._state.online_renderer
        if route == COMPLETIONS:
            return await renderer.render_completion(_validated(CompletionRequest, body))
        if route == CHAT:
            if "messages" in body and not (isinstance(body["messages"], list) and body["messages"]):
                raise InvalidRequestError("`messages` must be a list of at least one message", param="messages")
            result = await renderer.render_chat(_validated(ChatCompletionRequest, body))
            return result if isinstance(result, ErrorResponse) else result[1]
        if body.get("previous_response_id") is not None:
            raise InvalidRequestError(
                "`previous_response_id` is not served: answers are not stored. Send the whole conversation in `input`.",
                param="previous_response_id",
            )
        result = await renderer.render_responses(
            _validated(ResponsesRequest, body), tool_server=self._state.tool_server
        )
        return result if isinstance(result, ErrorResponse) else [result.engine_input]

    def _check_limit(self, limit_field: str, limit: int | None) -> None:
        if limit is not None and limit > self._max_context_tokens:
            raise InvalidRequestError(
                f"{limit_field}={limit} is above this model's maximum context length of {self._max_context_tokens} "
                f"tokens. Reduce it.",
                param=limit_field,
                code="context_length_exceeded",
            )

    def _check_context(self, route: OpenAIRoute, prompt_tokens: int, limit_field: str, limit: int | None) -> None:
        context = self._max_context_tokens
        if prompt_tokens >= context:
            raise InvalidRequestError(
                f"This model's maximum context length is {context} tokens; your {route.prompt_field} has "
                f"{prompt_tokens} tokens, which leaves no room for an answer. Shorten it.",
                param=route.prompt_field,
                code="context_length_exceeded",
            )
        if limit is not None and prompt_tokens + limit > context:
            raise InvalidRequestError(
                f"This model's maximum context length is {context} tokens; you asked for {prompt_tokens + limit} "
                f"({prompt_tokens} in the {route.prompt_field}, {limit} by {limit_field}). Reduce either.",
                param=limit_field,
                code="context_length_exceeded",
            )


def resolve_model(body: dict[str, Any], served: frozenset[str], may_force: bool) -> tuple[str, RequestPath | None]:
    """The served model's name, and the path that a `name:hot` or `name:cold` suffix forces.

    Raises:
        InvalidRequestError: `model` is missing or no string.
        NotFoundError: not a served model, or a suffix that this client may not use.
    """
    wanted = body.get("model")
    if not isinstance(wanted, str) or not wanted:
        raise InvalidRequestError("`model` must be a string that names a served model", param="model")
    if wanted in served:
        return wanted, None
    name, _, suffix = wanted.rpartition(":")
    if may_force and name in served and suffix in (RequestPath.HOT, RequestPath.COLD):
        return name, RequestPath(suffix)
    raise NotFoundError(
        f"The model `{wanted}` does not exist. Served: {', '.join(sorted(served))}.",
        param="model",
        code="model_not_found",
    )


def _validated(kind: Any, body: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise InvalidRequestError(message, param=str(first["loc"][0]) if first["loc"] else None) from None
    except Exception as error:  # vLLM's validators raise errors of their own from inside pydantic
        parameter = getattr(error, "parameter", None)
        raise InvalidRequestError(str(error), param=parameter) from None


def _output_limit(route: OpenAIRoute, body: dict[str, Any]) -> tuple[str, int | None]:
    for name in route.limit_fields:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 0:
            raise InvalidRequestError(f"`{name}` must be a whole number of tokens, got {value!r}", param=name)
        return name, value
    return route.limit_fields[0], route.default_limit


def _with_token_ids(route: OpenAIRoute, body: dict[str, Any], prompts: list[list[int]]) -> dict[str, Any]:
    """vLLM's layer takes ids in place of text, except where it must know the text itself (`echo`, `suffix`)."""
    if route == COMPLETIONS:
        if body.get("echo") or body.get("suffix") is not None or body.get("prompt_embeds") is not None:
            return body
        return {**body, "prompt": prompts}
    transfer = {**(body.get("kv_transfer_params") or {}), "prompt_token_ids": prompts[0]}
    return {**body, "kv_transfer_params": transfer}
