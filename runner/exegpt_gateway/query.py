"""A query as its client sees it: what it asked for, the stream of its tokens, and its times.

Refuses by class: a full queue and a draining server are `Unavailable` (come back later), a prompt that can never fit is
`InvalidSpec`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from exegpt_planner.errors import ExeGPTError, InvalidSpec, Unavailable

Finish = Literal["stop", "length"]


class QueueFull(Unavailable):
    """The waiting queue is full; `retry_after_s` is when half of it should have been admitted."""

    def __init__(self, num_waiting: int, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(
            f"{num_waiting} queries are waiting already. Retry in {retry_after_s:.0f} s."
        )


class Draining(Unavailable):
    """The server is shutting down: running streams finish, new queries go elsewhere."""

    def __init__(self) -> None:
        super().__init__("the server is draining and takes no new queries. Send it elsewhere.")


class PromptTooLong(InvalidSpec):
    """The prompt and the output asked for can never fit the context or the KV arena."""

    def __init__(self, problem: str) -> None:
        super().__init__("query", [problem])


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How output tokens are drawn and when the query ends (Sampling in worker.proto)."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 0  # drawn by the caller when its client gives none
    max_tokens: int | None = None  # None: as many as fit
    min_tokens: int = 0
    ignore_eos: bool = False
    end_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One output token; `finish` on the last says why it is the last."""

    token: int
    finish: Finish | None = None


@dataclass(slots=True, kw_only=True)
class QueryTimes:
    """Seconds on the gateway's monotonic clock; None until it happens."""

    arrival_s: float
    encode_started_s: float | None = None  # when the worker first began it: the bound's clock
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(slots=True, eq=False)
class QueryStream:
    """The output tokens of one query, as they come."""

    query: int
    times: QueryTimes
    _cancel: Callable[[int], None]
    _events: asyncio.Queue[TokenEvent | ExeGPTError] = field(default_factory=asyncio.Queue)
    _is_over: bool = False  # for the reader: nothing more comes
    is_complete: bool = False  # its reader has all it wants

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        if self._is_over:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, ExeGPTError):
            self._is_over = True
            raise event
        self._is_over = event.finish is not None
        return event

    def complete(self) -> None:
        """Ends the query as answered, because its text is: a stop string came."""
        self.is_complete = True
        self.cancel()

    def cancel(self) -> None:
        """Gives the query up: its slot is freed at the worker's next iteration. Any number of times."""
        self._is_over = True
        self._cancel(self.query)

    def push(self, event: TokenEvent | ExeGPTError) -> None:
        """Hands the reader a token, or the error that ends the stream (the conductor's side)."""
        self._events.put_nowait(event)


def output_limit(prompt: Sequence[int], sampling: SamplingParams, context: int) -> int:
    """The most output tokens of a query in a context of so many tokens; raises `PromptTooLong` where it never fits."""
    left = context - len(prompt)
    if not prompt:
        raise PromptTooLong("the prompt is empty. Give at least one token.")
    if left < 1:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens, and {context} fit with the output. Shorten it."
        )
    if sampling.max_tokens is not None and sampling.max_tokens > left:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, but "
            f"only {context} fit together. Ask for at most {left}."
        )
    return left if sampling.max_tokens is None else sampling.max_tokens
