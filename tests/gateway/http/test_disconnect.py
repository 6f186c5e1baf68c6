from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from exegpt_gateway import sse
from exegpt_gateway.query import TokenEvent
from gateway.http.front_door import Door

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def send(door: Door, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = json.dumps({"model": "tiny", "prompt": "The", "stream": stream}).encode()
    reader, writer = await asyncio.open_connection(door.host, door.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def test_leaving_while_streaming_frees_the_slot(door: Door) -> None:
    door.script("The dog", finish=None)
    reader, writer = await send(door, stream=True)
    await reader.readuntil(b"data: ")
    assert not door.conductor.cancelled
    await leave(writer)
    await door.conductor.cancel_came.wait()
    assert door.conductor.cancelled == {0}


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_waiting_frees_the_slot(door: Door, stream: bool) -> None:
    door.conductor.script = ()
    _, writer = await send(door, stream=stream)
    await door.conductor.submit_came.wait()
    await leave(writer)
    await door.conductor.cancel_came.wait()
    assert door.conductor.cancelled == {0}


async def test_leaving_inside_the_body_submits_nothing(door: Door) -> None:
    _, writer = await asyncio.open_connection(door.host, door.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
    await leave(writer)
    assert (await door.http.get("/healthz")).status_code == 200
    assert not door.conductor.submitted


async def test_a_reset_connection_frees_the_slot(door: Door) -> None:
    door.script("The dog", finish=None)
    reader, writer = await send(door, stream=True)
    await reader.readuntil(b"data: ")
    writer.transport.abort()
    await door.conductor.cancel_came.wait()
    assert door.conductor.cancelled == {0}


async def test_leaving_while_a_send_is_stuck_closes_the_stream() -> None:
    happened: list[str] = []
    is_stuck = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes]:
        try:
            yield b"never read"
        finally:
            happened.append("generator closed")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_stuck.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        await is_stuck.wait()
        return {"type": "http.disconnect"}

    stream = sse.EventStream(chunks(), close=lambda: happened.append("query cancelled"))
    await stream({"type": "http"}, receive, send)
    assert happened == ["generator closed", "query cancelled"]


async def test_long_silences_are_bridged_by_comments(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)
    door.conductor.script = ()
    reader, writer = await send(door, stream=True)
    await reader.readuntil(sse.KEEP_ALIVE)
    door.conductor.streams[0].push(TokenEvent(2, "stop"))
    await reader.readuntil(sse.DONE)
    await leave(writer)


async def test_no_task_outlives_clients_that_leave(door: Door) -> None:
    door.script("The dog", finish=None)
    before = len(asyncio.all_tasks())
    for count in range(1, 31):
        reader, writer = await send(door, stream=count % 2 == 0)
        if count % 2 == 0:
            await reader.readuntil(b"data: ")
        else:
            await door.conductor.submit_came.wait()
        door.conductor.submit_came.clear()
        await leave(writer)
        while len(door.conductor.cancelled) < count:
            door.conductor.cancel_came.clear()
            await door.conductor.cancel_came.wait()
    while len(asyncio.all_tasks()) > before:
        await asyncio.sleep(0)
