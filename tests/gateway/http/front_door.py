"""A front door on a real port, over a conductor whose tokens the test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httpx
import openai
from prometheus_client import CollectorRegistry

from exegpt_gateway.app import build_app
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import Finish, QueryStream, QueryTimes, SamplingParams, TokenEvent
from exegpt_gateway.served import ServedModel
from exegpt_gateway.server import serve

if TYPE_CHECKING:
    from exegpt_gateway.conductor import Conductor

QUEUED_S = 0.25
COMPLETION_S = 1.5


class FakeConductor:
    """Streams a script for every query at once, or leaves it open for the test to push."""

    def __init__(self, *, context: int = 256) -> None:
        self.context = context
        self.reset()

    def reset(self) -> None:
        self.ready = True
        self.is_draining = False
        self.script: Sequence[int] = ()
        self.finish: Finish | None = "length"  # None: the stream stays open
        self.refusal: Exception | None = None
        self.submitted: list[tuple[list[int], SamplingParams]] = []
        self.streams: list[QueryStream] = []
        self.cancelled: set[int] = set()
        self.cancel_came = asyncio.Event()
        self.submit_came = asyncio.Event()

    def submit(self, prompt: Sequence[int], sampling: SamplingParams) -> QueryStream:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append((list(prompt), sampling))
        now_s = time.monotonic()
        times = QueryTimes(
            arrival_s=now_s,
            encode_started_s=now_s + QUEUED_S,
            finished_s=now_s + QUEUED_S + COMPLETION_S,
        )
        stream = QueryStream(len(self.streams), times, self._cancel)
        self.streams.append(stream)
        for index, token in enumerate(self.script):
            is_last = index == len(self.script) - 1
            stream.push(TokenEvent(token, self.finish if is_last else None))
        self.submit_came.set()
        return stream

    def _cancel(self, query: int) -> None:
        self.cancelled.add(query)
        self.cancel_came.set()


@dataclass
class Door:
    """What a test talks to."""

    conductor: FakeConductor  # unless the test brought its own
    served: ServedModel
    host: str
    port: int
    stop: asyncio.Event
    server: asyncio.Task[None]
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    def script(self, text: str, finish: Finish | None = "length") -> list[int]:
        """Every query answers `text`, tokenised as the model would."""
        tokens = self.served.tokenizer.encode(text, add_special_tokens=False)
        self.conductor.script, self.conductor.finish = tokens, finish
        return tokens


@asynccontextmanager
async def open_door(
    served: ServedModel,
    conductor: Conductor | None = None,
    *,
    metrics: Metrics | None = None,
    drain_s: float = 5,
) -> AsyncIterator[Door]:
    fake = FakeConductor()
    metrics = metrics or Metrics(CollectorRegistry())
    app = build_app(conductor or cast("Conductor", fake), served, metrics)
    started: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    server = asyncio.create_task(
        serve(
            app,
            "127.0.0.1",
            0,
            on_started=lambda host, port: started.set_result((host, port)),
            stop=stop,
            drain_s=lambda: drain_s,
        )
    )
    host, port = await started
    url = f"http://{host}:{port}"
    try:
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url) as http,
        ):
            yield Door(fake, served, host, port, stop, server, client, http)
    finally:
        stop.set()
        await asyncio.wait((server,))  # a test may have ended it already
