from __future__ import annotations

import asyncio
import signal
import socket

import httpx
import openai
import pytest
from fastapi import FastAPI

from exegpt_gateway.query import Draining, TokenEvent
from exegpt_gateway.served import ServedModel
from exegpt_gateway.server import serve
from exegpt_planner.errors import Unavailable
from gateway.http.front_door import open_door


async def test_draining_refuses_new_queries_and_finishes_running_streams(
    served: ServedModel,
) -> None:
    async with open_door(served) as door:
        stream = await door.openai.completions.create(model="tiny", prompt="The", stream=True)
        running = door.conductor.streams[0]
        running.push(TokenEvent(50))
        first = await anext(stream)
        door.conductor.refusal = Draining()
        door.stop.set()
        with pytest.raises(openai.InternalServerError, match="draining"):
            await door.openai.completions.create(model="tiny", prompt="The")
        running.push(TokenEvent(51))
        running.push(TokenEvent(2, "stop"))
        rest = [chunk.choices[0].text async for chunk in stream]
        assert first.choices[0].text + "".join(rest) == served.tokenizer.decode([50, 51])
        await door.server
        with pytest.raises(httpx.ConnectError):
            await door.http.get("/healthz")


async def test_what_outlasts_the_drain_is_cut_and_cancelled(served: ServedModel) -> None:
    async with open_door(served, drain_s=0) as door:
        stream = await door.openai.completions.create(model="tiny", prompt="The", stream=True)
        door.stop.set()
        with pytest.raises(openai.APIConnectionError):
            await anext(stream)
        await door.server
        assert door.conductor.cancelled == {0}


async def test_cancelling_the_server_frees_its_port(served: ServedModel) -> None:
    async with open_door(served) as door:
        door.server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await door.server
        socket.create_server((door.host, door.port)).close()


async def test_signals_stay_the_callers(served: ServedModel) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with open_door(served):
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"cannot listen on 127.0.0.1 port {port}: Address already in use. Stop what"
        with pytest.raises(Unavailable, match=expected):
            await start("127.0.0.1", port)


async def test_a_host_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"no host at all port 0: .*Choose an address of"):
        await start("no host at all", 0)


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"192\.0\.2\.1 .*Choose an address of this machine"):
        await start("192.0.2.1", 0)


async def start(host: str, port: int) -> None:
    await serve(
        FastAPI(), host, port, on_started=lambda *_: None, stop=asyncio.Event(), drain_s=lambda: 1
    )
