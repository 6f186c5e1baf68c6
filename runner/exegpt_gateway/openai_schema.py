"""OpenAI's request bodies: what is understood, what is refused by name, and what it comes to.

Everything wrong with a body is reported at once. A field that asks for what the engine does not do is
refused, unless its value asks for nothing (`n: 1`, `tools: []`); fields that don't change an answer
(`user`, `metadata`) are accepted and ignored; any other unknown field is an error that names the
nearest right one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.strict import StrictModel, parse

SOURCE = "request"
MAX_STOPS = 4  # OpenAI's

# Fields refused unless they hold one of these values, which ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "n": (1,),
    "presence_penalty": (0,),
}
UNSUPPORTED_COMPLETION: Mapping[str, tuple[Any, ...]] = {
    **UNSUPPORTED,
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}
UNSUPPORTED_CHAT: Mapping[str, tuple[Any, ...]] = {
    **UNSUPPORTED,
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),  # says nothing without tools
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
IGNORED = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})


def _text_or_ids(value: Any) -> str | list[int]:
    """A prompt in any of OpenAI's four forms, as one text or one list of token ids."""
    match value:
        case str():
            return value
        case [str(text)]:
            return text
        case [[*ids]] if _are_ids(ids):
            return ids
        case [*ids] if ids and _are_ids(ids):
            return ids
        case [str() | list(), _, *_]:
            raise ValueError("one prompt a request is supported; send the others separately")
        case _:
            raise ValueError("expected a string or a list of token ids")


def _are_ids(values: Sequence[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError("expected a non-empty string or a list of them")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings, given {len(stops)}")
    return tuple(stops)


class StreamOptions(StrictModel):
    """`stream_options` of a request."""

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against traffic analysis: accepted, not added


class SamplingRequest(StrictModel):
    """What both routes take. `None` stands for "not given", as in OpenAI's clients."""

    model_config = ConfigDict(strict=True)

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # extensions, named as in vLLM
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)  # 0 and -1: all
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: Annotated[tuple[int, ...], BeforeValidator(_tuple)] = ()

    @field_validator("min_tokens", "ignore_eos", "stop_token_ids", mode="before")
    @classmethod
    def _null_is_the_default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].default if value is None else value

    def conflicts(self) -> list[str]:
        """What is wrong between fields that are right by themselves."""
        if self.stream_options is not None and not self.stream:
            return ["stream_options: only with stream: true"]
        return []

    @property
    def limit_field(self) -> str:
        """Where the client limits the output tokens, if it does."""
        return "max_tokens"

    @property
    def token_limit(self) -> int | None:
        """The most output tokens the client asks for."""
        return self.max_tokens

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(SamplingRequest):
    """The body of /v1/completions."""

    prompt: Annotated[str | list[int], BeforeValidator(_text_or_ids)]


def _joined_parts(value: Any) -> Any:
    """Content as one text; parts that are not text are refused by their type."""
    if not isinstance(value, list):
        return value
    others = {str(part.get("type")) if isinstance(part, dict) else repr(part) for part in value}
    others.discard("text")
    if others:
        raise ValueError(
            f"content parts of type {', '.join(sorted(others))} are not supported, only text"
        )
    if not all(part.keys() == {"type", "text"} and isinstance(part["text"], str) for part in value):
        raise ValueError("a text part has `type` and `text`, a string, and nothing else")
    return "\n".join(part["text"] for part in value)


def _nothing(value: Any) -> None:
    if value not in (None, [], {}):
        raise ValueError("not supported; leave it out")


Nothing = Annotated[None, BeforeValidator(_nothing)]


class Message(StrictModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_parts)]
    name: str | None = None
    # empty in the answers that clients send back as history
    annotations: Nothing = None
    audio: Nothing = None
    function_call: Nothing = None
    refusal: Nothing = None
    tool_calls: Nothing = None


class ChatRequest(SamplingRequest):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    def conflicts(self) -> list[str]:
        found = super().conflicts()
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            found.append(
                f"max_tokens: {self.max_tokens} differs from max_completion_tokens: "
                f"{self.max_completion_tokens}; give one"
            )
        return found

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


R = TypeVar("R", bound=SamplingRequest)


def read_completion(body: bytes) -> CompletionRequest:
    """The request in `body`; raises `InvalidSpec` with every problem."""
    return _read(CompletionRequest, body, unsupported=UNSUPPORTED_COMPLETION)


def read_chat(body: bytes) -> ChatRequest:
    """The request in `body`; raises `InvalidSpec` with every problem."""
    return _read(ChatRequest, body, unsupported=UNSUPPORTED_CHAT)


def _read(model: type[R], body: bytes, *, unsupported: Mapping[str, tuple[Any, ...]]) -> R:
    data = _load(body)
    problems = [
        f"{name}: not supported (given: {json.dumps(data[name])[:60]}); leave it out"
        for name in sorted(data.keys() & unsupported.keys())
        if data[name] is not None and data[name] not in unsupported[name]
    ]
    set_aside = IGNORED | unsupported.keys()
    known = {name: value for name, value in data.items() if name not in set_aside}
    try:
        request = parse(model, known, source=SOURCE)
    except InvalidSpec as error:
        raise InvalidSpec(SOURCE, [*problems, *error.problems]) from None
    problems += request.conflicts()
    if problems:
        raise InvalidSpec(SOURCE, problems)
    return request


def _load(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # JSON can escape half a character; no tokenizer takes it
        raise InvalidSpec(SOURCE, ["body: has a lone surrogate; send whole characters"]) from None
    except RecursionError:
        raise InvalidSpec(SOURCE, ["body: nested too deeply"]) from None
    except ValueError as error:
        raise InvalidSpec(SOURCE, [f"body: not JSON: {error}"]) from None
    if not isinstance(data, dict):
        raise InvalidSpec(SOURCE, ["body: expected a JSON object"])
    return data
