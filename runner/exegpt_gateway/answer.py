"""From what was asked to its answer: submit, detokenise, cut at stop strings, word it as OpenAI does.

Both routes share this path; each brings a `Wording`. The query is cancelled however the answer ends,
so a client that goes away, or a stop string, frees its slot. A chunk costs one JSON dump.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from exegpt_gateway.ask import Ask
from exegpt_gateway.errors_http import busy, error_body, refuse
from exegpt_gateway.query import Draining, QueryStream, QueueFull, TokenEvent
from exegpt_gateway.served import ServedModel
from exegpt_gateway.sse import DONE, EventStream, event, until_gone
from exegpt_gateway.stops import StopScanner
from exegpt_gateway.tokenizer import Detokenizer
from exegpt_planner.errors import ExeGPTError

if TYPE_CHECKING:
    from exegpt_gateway.conductor import Conductor

DRAIN_RETRY_S = 10.0  # about what a replacement needs to take over

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How one route words its answers: the parts of a choice that differ between routes."""

    id_prefix: str
    whole_kind: str
    chunk_kind: str
    whole: Callable[[str], Part]
    opening: Part | None  # sent with the first token
    piece: Callable[[str], Part]
    closing: Part


class AnswerText:
    """The text of one answer as its tokens come in, up to its first stop string."""

    def __init__(self, ask: Ask, served: ServedModel) -> None:
        after = ask.prompt if ask.continues_text else ()
        self._detokenizer = Detokenizer(served.tokenizer, after=after)
        self._scanner = StopScanner(ask.stops)
        self._min_tokens = ask.sampling.min_tokens
        self.num_tokens = 0
        self.finish: str | None = None

    def push(self, token: TokenEvent) -> str:
        """The text that is certain with `token`; sets `finish` when it is the answer's last."""
        self.num_tokens += 1
        # an end token is no text, even where the tokenizer does not call it special
        text = "" if token.finish == "stop" else self._detokenizer.push(token.token)
        if token.finish:
            text += self._detokenizer.flush()
        if self.num_tokens > self._min_tokens:  # stop strings don't end an answer before
            text, is_stopped = self._scanner.push(text)
            if is_stopped:
                self.finish = "stop"
                return text
        if token.finish:
            self.finish = token.finish
            text += self._scanner.flush()
        return text


async def answer(
    http: Request, ask: Ask, wording: Wording, *, conductor: Conductor, served: ServedModel
) -> Response:
    """The whole answer, or its event stream."""
    stream = submit(conductor, ask)
    head = {
        "id": f"{wording.id_prefix}-{secrets.token_hex(12)}",
        "object": wording.chunk_kind if ask.is_stream else wording.whole_kind,
        "created": int(time.time()),
        "model": served.name,
    }
    text = AnswerText(ask, served)
    if ask.is_stream:
        return EventStream(_chunks(stream, ask, text, wording, head), close=stream.cancel)
    try:
        body = await until_gone(http.receive, _whole(stream, ask, text, wording))
    finally:
        stream.cancel()
    return JSONResponse({**head, **body})


def submit(conductor: Conductor, ask: Ask) -> QueryStream:
    """The query's stream; raises `Refused` while none is admitted."""
    try:
        return conductor.submit(ask.prompt, ask.sampling)
    except QueueFull as error:
        raise busy(str(error), code="queue_full", retry_after_s=error.retry_after_s) from None
    except Draining as error:
        raise busy(str(error), code="draining", retry_after_s=DRAIN_RETRY_S) from None


async def _pieces(stream: QueryStream, text: AnswerText) -> AsyncGenerator[str]:
    async for token in stream:
        yield text.push(token)
        if text.finish is not None:
            if token.finish is None:  # a stop string came, of which the worker knows nothing
                stream.complete()
            return


async def _whole(
    stream: QueryStream, ask: Ask, text: AnswerText, wording: Wording
) -> dict[str, Any]:
    async with aclosing(_pieces(stream, text)) as pieces:
        full = "".join([piece async for piece in pieces])
    return {
        "choices": [_choice(wording.whole(full), text.finish)],
        "usage": _usage(stream, ask, text),
    }


async def _chunks(
    stream: QueryStream, ask: Ask, text: AnswerText, wording: Wording, head: dict[str, Any]
) -> AsyncGenerator[bytes]:
    """The answer as server-sent events, OpenAI's way."""
    if ask.wants_usage:
        head = {**head, "usage": None}  # on every chunk but the last, says OpenAI's reference

    def chunk(part: Part, finish: str | None = None) -> bytes:
        return event({**head, "choices": [_choice(part, finish)]})

    is_first = True
    try:
        async with aclosing(_pieces(stream, text)) as pieces:
            async for piece in pieces:
                if is_first and wording.opening is not None:
                    yield chunk(wording.opening)
                is_first = False
                if piece:
                    yield chunk(wording.piece(piece))
    except ExeGPTError as error:  # the status line is long gone: say it in the stream
        refused = refuse(error)
        yield event(error_body(refused.status, str(refused), code=refused.code))
        return
    yield chunk(wording.closing, text.finish)
    if ask.wants_usage:
        yield event({**head, "choices": [], "usage": _usage(stream, ask, text)})
    yield DONE


def _choice(part: Part, finish: str | None) -> dict[str, Any]:
    return {"index": 0, **part, "logprobs": None, "finish_reason": finish}


def _usage(stream: QueryStream, ask: Ask, text: AnswerText) -> dict[str, Any]:
    """Token counts, and the bound's clock: when the encode started, which no client can see."""
    times = stream.times
    assert times.encode_started_s is not None, "tokens came before their encode"
    end_s = time.monotonic() if times.finished_s is None else times.finished_s
    return {
        "prompt_tokens": len(ask.prompt),
        "completion_tokens": text.num_tokens,
        "total_tokens": len(ask.prompt) + text.num_tokens,
        "exegpt": {
            "queued_s": times.encode_started_s - times.arrival_s,
            "completion_s": end_s - times.encode_started_s,
        },
    }
