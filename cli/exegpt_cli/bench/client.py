"""One streamed completion of an OpenAI endpoint, timed as its client sees it.

Standard fields only, unless the server is known to take vLLM's `min_tokens` and `ignore_eos`, which enforce lengths.
Failures of one query are recorded, not raised: a load goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx_sse import SSEError, aconnect_sse

from exegpt_cli.bench.queries import Query

IDLE_TIMEOUT_S = 300.0  # between two chunks; a deep backlog makes the first one late


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The endpoint under load."""

    url: str  # with its /v1
    model: str
    extensions: bool  # takes min_tokens and ignore_eos


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back for one query. Times are of the client's clock."""

    query: Query
    sent_s: float
    chunks_s: list[float] = field(default_factory=list)  # those that hold text
    finished_s: float | None = None  # the chunk that gives the reason to end
    completion_tokens: int | None = None
    server_queued_s: float | None = None  # exegpt only: arrival to the start of the encode
    server_completion_s: float | None = None  # exegpt only: start of the encode to the last token
    error: str | None = None
    retry_after_s: float | None = None  # the server is full

    @property
    def ok(self) -> bool:
        """Whether the answer came to its end."""
        return self.error is None and self.finished_s is not None

    @property
    def arrivals_s(self) -> list[float]:
        """When tokens arrived; an answer without any text arrived when it finished."""
        if self.chunks_s or self.finished_s is None:
            return self.chunks_s
        return [self.finished_s]

    @property
    def first_token_s(self) -> float:
        """From sending to the first text; of an answer that is ok."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def completion_s(self) -> float:
        """From the start of the encode where the server says it, else from sending, to the last token."""
        if self.server_completion_s is not None:
            return self.server_completion_s
        assert self.finished_s is not None, self.query.index
        return self.finished_s - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Between one text and the next, which is a token unless the server holds text back."""
        return [b - a for a, b in zip(self.chunks_s, self.chunks_s[1:], strict=False)]


def http_client() -> httpx.AsyncClient:
    """A client that holds any number of streams open."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(IDLE_TIMEOUT_S, connect=10.0)
    return httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)


def _body(target: Target, query: Query) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": target.model,
        "prompt": list(query.prompt),
        "max_tokens": query.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.extensions:
        body |= {"min_tokens": query.output_tokens, "ignore_eos": True}
    return body


async def complete(
    http: httpx.AsyncClient, target: Target, query: Query, now: Callable[[], float]
) -> Answer:
    """The answer to `query`, with its times; an error is in the answer."""
    answer = Answer(query=query, sent_s=now())
    try:
        url = f"{target.url}/completions"
        async with aconnect_sse(http, "POST", url, json=_body(target, query)) as events:
            response = events.response
            if response.status_code != httpx.codes.OK:
                await response.aread()
                answer.error = f"HTTP {response.status_code}: {response.text[:200]}"
                answer.retry_after_s = _retry_after(response)
                return answer
            async for event in events.aiter_sse():
                if event.data == "[DONE]":
                    break
                _record(answer, json.loads(event.data), now())
    except (httpx.HTTPError, SSEError, json.JSONDecodeError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if answer.error is None and answer.finished_s is None:
        answer.error = "the stream ended before its answer did"
    return answer


def _retry_after(response: httpx.Response) -> float | None:
    if response.status_code not in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        return None
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else 1.0


def _record(answer: Answer, event: dict[str, Any], at_s: float) -> None:
    if "error" in event:
        answer.error = str(event["error"])[:200]
        return
    choices = event.get("choices") or ()
    if any(choice.get("text") for choice in choices):
        answer.chunks_s.append(at_s)
    if any(choice.get("finish_reason") for choice in choices):
        answer.finished_s = at_s
    usage = event.get("usage")
    if usage:
        answer.completion_tokens = usage.get("completion_tokens")
        own = usage.get("exegpt") or {}
        answer.server_queued_s = own.get("queued_s")
        answer.server_completion_s = own.get("completion_s")
