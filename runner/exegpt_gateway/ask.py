"""What a request asks of the served model: the prompt's tokens, how to sample, when to end.

Refuses what does not fit: token ids outside the vocabulary, and lengths beyond the context, naming both
numbers. A limit that the client gives is never shortened; only the default takes what room there is.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from exegpt_gateway.openai_schema import SOURCE, SamplingRequest
from exegpt_gateway.query import SamplingParams
from exegpt_gateway.served import ServedModel
from exegpt_planner.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, checked against the model: what to submit and how to answer."""

    prompt: list[int]
    sampling: SamplingParams
    stops: tuple[str, ...]
    is_stream: bool
    wants_usage: bool
    continues_text: bool  # the answer goes on with the prompt's own text


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A route's reading of its prompt."""

    field: str  # where the request has it
    tokens: list[int]
    continues_text: bool
    default_tokens: int  # output tokens without a limit in the request, room permitting


def fit(request: SamplingRequest, prompt: Prompt, served: ServedModel) -> Ask:
    """The request as asked of `served`; raises `InvalidSpec` with all that does not fit."""
    room = served.context - len(prompt.tokens)
    limit = request.token_limit
    max_tokens = min(prompt.default_tokens, room) if limit is None else limit
    problems = [
        *_unknown_tokens(prompt.field, prompt.tokens, served),
        *_unknown_tokens("stop_token_ids", request.stop_token_ids, served),
        *_misfits(request, prompt, served, room),
    ]
    if 1 <= max_tokens < request.min_tokens:
        problems.append(f"min_tokens: {request.min_tokens} exceeds the limit of {max_tokens}")
    if problems:
        raise InvalidSpec(SOURCE, problems)
    return Ask(
        prompt=prompt.tokens,
        sampling=_sampling(request, max_tokens, served),
        stops=request.stop,
        is_stream=bool(request.stream),
        wants_usage=request.wants_usage,
        continues_text=prompt.continues_text,
    )


def _unknown_tokens(field: str, tokens: Sequence[int], served: ServedModel) -> list[str]:
    unknown = next((token for token in tokens if not 0 <= token < served.vocab), None)
    if unknown is None:
        return []
    return [f"{field}: token {unknown} is outside the vocabulary of {served.vocab} tokens"]


def _misfits(request: SamplingRequest, prompt: Prompt, served: ServedModel, room: int) -> list[str]:
    size, limit = len(prompt.tokens), request.token_limit
    if not size:
        return [f"{prompt.field}: has no tokens; send at least one"]
    if room < 1:
        return [
            f"{prompt.field}: {size} tokens leave no room in the context of {served.context}; "
            "shorten it"
        ]
    if limit is not None and limit > room:
        name = request.limit_field
        return [
            f"{name}: prompt ({size} tokens) and {name} ({limit}) exceed the context of "
            f"{served.context}; ask for at most {room}"
        ]
    return []


def _sampling(request: SamplingRequest, max_tokens: int, served: ServedModel) -> SamplingParams:
    own_ends = () if request.ignore_eos else served.end_tokens
    return SamplingParams(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        # a negative seed is as good as any: two's complement
        seed=secrets.randbits(64) if request.seed is None else request.seed % 2**64,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        ignore_eos=False,  # said by the end tokens: stop_token_ids end a query all the same
        end_tokens=(*own_ends, *request.stop_token_ids),
    )
