"""A small OpenAI-like server on 127.0.0.1 for the load generator: real uvicorn, one thread, no model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse


@dataclass
class FakeServer:
    """What it was asked, and how it behaves."""

    token_s: float = 0.002
    own_clock: bool = False  # report exegpt's usage extension
    refuse_first: int = 0  # requests answered with 503
    broken: bool = False  # every request gets a 500
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/completions")
        async def completions(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            if self.broken:
                return JSONResponse({"error": {"message": "out of order"}}, status_code=500)
            if len(self.bodies) <= self.refuse_first:
                return JSONResponse({}, status_code=503, headers={"Retry-After": "0"})
            return StreamingResponse(self._stream(body), media_type="text/event-stream")

        return app

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            num = body["max_tokens"]
            for index in range(num):
                await asyncio.sleep(self.token_s)
                finish = "length" if index == num - 1 else None
                yield _event({"choices": [{"index": 0, "text": "x", "finish_reason": finish}]})
            usage: dict[str, Any] = {
                "prompt_tokens": len(body["prompt"]),
                "completion_tokens": num,
            }
            if self.own_clock:
                usage["exegpt"] = {"queued_s": 1.0, "completion_s": num / 100}
            yield _event({"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        finally:
            self.in_flight -= 1


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    """`fake` on a free port, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    config = uvicorn.Config(fake.app(), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.005)  # uvicorn offers no event
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
