"""A relay on the way of KV into one decoder, which passes messages on, or does to them what a fault would.

Probes always pass. A `Harm` is what happens to the messages of one transfer; it applies to as many transfers as the
test says, then all is well again.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from exegpt_gateway.worker_link import Place, WorkerLink
from exegpt_runner.kv_transfer.framing import METHOD, SERVICE
from exegpt_wire import GRPC_OPTIONS
from exegpt_wire import worker_pb2 as pb

Messages = AsyncIterator[bytes]
Harm = Callable[[Messages], Messages]
OWN_CHANNEL = (*GRPC_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


async def unharmed(messages: Messages) -> Messages:
    """As they came."""
    async for message in messages:
        yield message


def truncated(after: int, *, half: bool = False) -> Harm:
    """Ends in good order after so many messages, and perhaps half of the next."""

    async def cut(messages: Messages) -> Messages:
        num_left = after
        async for message in messages:
            if num_left:
                yield message
            elif half:
                yield message[: len(message) // 2]
            num_left -= 1
            if num_left < 0:
                return

    return cut


def flipped(index: int) -> Harm:
    """One bit of message `index` is another."""

    async def flip(messages: Messages) -> Messages:
        at = 0
        async for message in messages:
            if at == index:
                changed = bytearray(message)
                changed[len(changed) // 2] ^= 1
                message = bytes(changed)
            at += 1
            yield message

    return flip


def extended(messages: Messages) -> Messages:
    """Goes on after its end."""

    async def extend() -> Messages:
        async for message in messages:
            yield message
        yield b"more"

    return extend()


def headed(**fields: Any) -> Harm:
    """Says other things of itself in its header."""

    async def change(messages: Messages) -> Messages:
        header = pb.KVHeader.FromString(await anext(messages))
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(header, name)[:] = value * len(header.queries)
            else:
                setattr(header, name, value)
        yield header.SerializeToString()
        async for message in messages:
            yield message

    return change


@dataclass
class Gate:
    """Lets half of a layer through and holds the rest until it is opened."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    before_header: bool = False

    async def hold(self, messages: Messages) -> Messages:
        header = await anext(messages)
        if self.before_header:
            self.reached.set()
            await self.opened.wait()
        yield header
        layer = await anext(messages)
        yield layer[: len(layer) // 2]
        self.reached.set()
        await self.opened.wait()
        yield layer[len(layer) // 2 :]
        async for message in messages:
            yield message


def slowed(bytes_per_s: float, piece_bytes: int = 1024) -> Harm:
    """At so many bytes a second."""

    async def slow(messages: Messages) -> Messages:
        yield await anext(messages)  # the header and the trailer come in one piece
        held = await anext(messages)
        async for message in messages:
            for start in range(0, len(held), piece_bytes):
                piece = held[start : start + piece_bytes]
                await asyncio.sleep(len(piece) / bytes_per_s)
                yield piece
            held = message
        yield held

    return slow


@dataclass
class Relay:
    """Where encoders push what is for one decoder."""

    socket: Path
    target: str
    harm: Harm = unharmed
    num_harmed: int = 0  # transfers still to be harmed
    skip: int = 0  # transfers that pass before
    is_replaying: bool = False
    endings: list[tuple[grpc.StatusCode, str]] = field(default_factory=list)  # of harmed ones
    _server: aio.Server | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    async def start(self) -> None:
        self._server = aio.server(options=list(GRPC_OPTIONS))
        method: Any = grpc.stream_unary_rpc_method_handler(self._push)
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Push": method})
        self._server.add_generic_rpc_handlers((handler,))
        assert self._server.add_insecure_port(self.address)
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def _push(self, messages: Messages, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        header = await anext(messages)
        if not pb.KVHeader.FromString(header).queries:
            return await self._pass_on(_after(header, messages), context)
        if self.skip or not self.num_harmed:
            self.skip = max(0, self.skip - 1)
            return await self._pass_on(_after(header, messages), context)
        self.num_harmed -= 1
        if self.is_replaying:
            kept = [message async for message in _after(header, messages)]
            await self._pass_on(_all(kept), context)
            return await self._pass_on(_all(kept), context, is_harmed=True)
        harmed = self.harm(_after(header, messages))
        return await self._pass_on(harmed, context, is_harmed=True)

    async def _pass_on(
        self,
        messages: Messages,
        context: aio.ServicerContext[bytes, bytes],
        *,
        is_harmed: bool = False,
    ) -> bytes:
        metadata = tuple(
            (key, value)
            for key, value in context.invocation_metadata() or ()
            if key == "authorization"
        )
        with grpc.insecure_channel(self.target, options=list(OWN_CHANNEL)) as channel:
            code, said = await _push(channel, messages, metadata, context.time_remaining())
        if is_harmed:
            self.endings.append((code, said))
        if code is not grpc.StatusCode.OK:
            await context.abort(code, said)
        return b""


async def _push(
    channel: grpc.Channel,
    messages: Messages,
    metadata: Sequence[tuple[str, Any]],
    timeout_s: float | None,
) -> tuple[grpc.StatusCode, str]:
    """How a push of `messages` ends; not an aio call, which says `internal` where it was refused while it wrote."""
    loop = asyncio.get_running_loop()
    pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    ended = asyncio.Event()
    push: Any = channel.stream_unary(METHOD)
    call = push.future(iter(pieces.get, None), timeout=timeout_s, metadata=metadata)
    call.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))

    async def feed() -> None:
        async for message in messages:
            pieces.put(message)
        pieces.put(None)

    feeding = asyncio.ensure_future(feed())
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
        if not ended.is_set():
            feeding.result()  # raises what became of the sender
        await ending
        return call.code(), call.details() or ""
    finally:
        feeding.cancel()
        ending.cancel()
        call.cancel()
        pieces.put(None)


class RelayedLink(WorkerLink):
    """A decoder that is reached over a relay; control goes straight."""

    relay: Relay

    @property
    def place(self) -> Place:
        return replace(super().place, address=self.relay.address)


async def _after(first: bytes, rest: Messages) -> Messages:
    yield first
    async for message in rest:
        yield message


async def _all(messages: list[bytes]) -> Messages:
    for message in messages:
        yield message
