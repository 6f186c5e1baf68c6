"""Serves a peer that has no server of its own: the OpenAI completions route in this process, the engine in another.

Runs inside the peer's environment. The engine process answers what `Inbox` holds and hands every token out as soon as
there is one; this process makes server-sent events of them. It says when an answer's encode began, in the field that
`exegpt bench` reads. Lengths are enforced: an answer has exactly max_tokens tokens. Binds to 127.0.0.1 alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

GATHER_S = (
    0.01  # what arrives together is answered together; clients send within a millisecond or two
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One query."""

    number: int
    prompt: list[int]
    max_tokens: int
    sent_s: float  # of CLOCK_MONOTONIC, which all processes share


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer; the last one says when the encode began."""

    number: int
    token: int
    begun_s: float | None = None


class Inbox:
    """The engine's side of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def wait(self, most: int) -> list[Ask]:
        """At least one query, at most `most`: those that wait, and those that come within GATHER_S."""
        asks = [self._pipe.recv()]
        while len(asks) < most and self._pipe.poll(GATHER_S):
            asks.append(self._pipe.recv())
        return asks

    def take(self) -> Ask:
        """The next query."""
        return self._pipe.recv()

    def give(self, pieces: list[Piece]) -> None:
        """Hands tokens to their clients."""
        self._pipe.send(pieces)

    def ready(self) -> None:
        """The engine can answer from now on."""
        self._pipe.send("ready")


Work = Callable[[Inbox, argparse.Namespace], None]


def serve(work: Work, options: argparse.ArgumentParser) -> None:
    """Serves until ended; `work` runs in the engine's process."""
    options.add_argument("folder", type=Path)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--most", type=int, default=128, help="queries in one batch")
    given = options.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    engine = context.Process(target=_engine, args=(work, theirs, given), daemon=True)
    engine.start()
    theirs.close()
    try:
        ours.recv()
    except EOFError:
        engine.join()
        raise SystemExit(1) from None  # the engine has said why
    front = _Front(ours, Tokenizer.from_file(str(given.folder / "tokenizer.json")))
    uvicorn.run(front.app(), host="127.0.0.1", port=given.port, log_level="warning")


def _engine(work: Work, pipe: Connection, given: argparse.Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with contextlib.suppress(EOFError):  # the front is gone
        work(Inbox(pipe), given)


class _Front:
    """Streams what the engine hands out."""

    def __init__(self, pipe: Connection, tokenizer: Tokenizer) -> None:
        self._pipe = pipe
        self._tokenizer = tokenizer
        self._answers: dict[int, asyncio.Queue[Piece]] = {}
        self._asked = 0

    def app(self) -> Starlette:
        routes = [
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/health", self._health),
        ]
        return Starlette(routes=routes)

    async def _health(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    async def _complete(self, request: Request) -> StreamingResponse:
        if not self._asked:
            asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._receive)
        body = await request.json()
        self._asked += 1
        ask = Ask(self._asked, body["prompt"], body["max_tokens"], time.monotonic())
        self._answers[ask.number] = asyncio.Queue()
        self._pipe.send(ask)
        return StreamingResponse(self._events(ask), media_type="text/event-stream")

    def _receive(self) -> None:
        while self._pipe.poll():
            try:
                pieces = self._pipe.recv()
            except EOFError:
                os._exit(1)  # the engine died: clients see their streams end
            for piece in pieces:
                if (queue := self._answers.get(piece.number)) is not None:
                    queue.put_nowait(piece)

    async def _events(self, ask: Ask) -> AsyncIterator[str]:
        queue = self._answers[ask.number]
        try:
            for index in range(ask.max_tokens):
                piece = await queue.get()
                text = self._tokenizer.decode([piece.token], skip_special_tokens=False)
                ended = index + 1 == ask.max_tokens
                yield _event(
                    choices=[
                        {"index": 0, "text": text, "finish_reason": "length" if ended else None}
                    ]
                )
            yield _event(choices=[], usage=_usage(ask, piece))
            yield "data: [DONE]\n\n"
        finally:
            del self._answers[ask.number]


def _usage(ask: Ask, last: Piece) -> dict:
    begun_s = ask.sent_s if last.begun_s is None else last.begun_s
    clock = {"queued_s": begun_s - ask.sent_s, "completion_s": time.monotonic() - begun_s}
    return {
        "prompt_tokens": len(ask.prompt),
        "completion_tokens": ask.max_tokens,
        "total_tokens": len(ask.prompt) + ask.max_tokens,
        "exegpt": clock,
    }


def _event(**fields: object) -> str:
    return f"data: {json.dumps({'object': 'text_completion', **fields})}\n\n"
