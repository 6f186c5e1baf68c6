"""Answers to a client that may go away at any moment, whole or as server-sent events.

Starlette's own streaming response leaves a generator suspended when the client goes away inside a
send, and sse-starlette ends streams when the server is told to exit, which is when ours are to finish.
Here the work is one task beside the wait for the disconnect, and whichever ends first ends the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment: clients ignore it, proxies see a live connection
KEEP_ALIVE_S = 15.0  # proxies commonly give up after 60 s of silence


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def event(data: Any) -> bytes:
    """`data` as one server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; cancels it and raises `ClientGone` when the client disconnects first."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, gone):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class EventStream(Response):
    """Sends what `chunks` yields as it comes, with comments through long silences."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes], *, close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._close = close  # always called, however the stream ends
        self._is_silent = True

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(ClientGone):
                await until_gone(receive, self._send(send))
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        beat = asyncio.create_task(self._beat(send))
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self._is_silent = False
                    await send(_body(chunk))
        finally:
            beat.cancel()
        await send(_body(b"", is_last=True))

    async def _beat(self, send: Send) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._is_silent:
                await send(_body(KEEP_ALIVE))
            self._is_silent = True


def _body(data: bytes, *, is_last: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": not is_last}


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
