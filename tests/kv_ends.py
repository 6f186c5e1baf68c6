"""Both ends of a KV transfer in one process, and a hop between them that changes what passes, for tests."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch
from torch import Tensor

from exegpt_runner.kv_transfer.arrived import Limits, Receiving
from exegpt_runner.kv_transfer.framing import METHOD, SERVICE
from exegpt_runner.kv_transfer.receiver import Landing, kv_handler
from exegpt_runner.kv_transfer.sender import Outgoing, Sender, Sending
from exegpt_wire import GRPC_OPTIONS
from exegpt_wire import worker_pb2 as pb
from exegpt_wire.token import TokenInterceptor
from kv_peer import TOKEN

TIMEOUT_S = 30.0
INCARNATION, EPOCH = 0x7001, 3
TOKENS = (5, 1, 30)  # of three queries

Change = Callable[[Iterator[bytes]], Iterator[bytes]]


def receiving(**changes: Any) -> Receiving:
    """A worker of four layers, two KV heads of four numbers."""
    usual = Receiving(
        incarnation=INCARNATION,
        epoch=EPOCH,
        model_fingerprint="model",
        weights_digest="weights",
        dtype=torch.float32,
        num_kv_heads=2,
        head_dim=4,
        first_layer=0,
        num_layers=4,
        capacity_bytes=1 << 24,
    )
    return dataclasses.replace(usual, **changes)


def sending(**changes: Any) -> Sending:
    """The same worker as a sender."""
    usual = Sending(
        model_fingerprint="model",
        weights_digest="weights",
        dtype=torch.float32,
        num_kv_heads=2,
        head_dim=4,
        first_layer=0,
        num_layers=4,
    )
    return dataclasses.replace(usual, **changes)


def layers_of(kind: Sending, tokens: Sequence[int] = TOKENS, seed: int = 0) -> dict[int, Tensor]:
    """Random KV by layer."""
    generator = torch.Generator().manual_seed(seed)
    size = (2, kind.num_kv_heads, sum(tokens), kind.head_dim)
    indices = range(kind.first_layer, kind.first_layer + kind.num_layers)
    return {index: torch.randn(size, generator=generator).to(kind.dtype) for index in indices}


class WatchedLanding(Landing):
    """Says when streams begin and end and when transfers are whole, so that tests need not poll."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._stream_began = threading.Semaphore(0)
        self._stream_ended = threading.Semaphore(0)
        self._became_whole = threading.Semaphore(0)
        super().__init__(limits, on_news=self._became_whole.release)

    def receive(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> None:
        self._stream_began.release()
        try:
            super().receive(messages, context)
        finally:
            self._stream_ended.release()

    def await_stream(self) -> None:
        assert self._stream_began.acquire(timeout=TIMEOUT_S)

    def await_room_taken(self) -> None:
        """Waits until a header has been read and its transfer has room."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held_bytes, TIMEOUT_S)

    def await_end(self) -> None:
        """Waits for the end of one more stream, however it goes."""
        assert self._stream_ended.acquire(timeout=TIMEOUT_S)

    def await_whole(self) -> None:
        assert self._became_whole.acquire(timeout=TIMEOUT_S)


@contextmanager
def served(
    address: str, handler: grpc.GenericRpcHandler, token: str | None = TOKEN
) -> Iterator[None]:
    server = grpc.server(
        ThreadPoolExecutor(max_workers=8),
        interceptors=[TokenInterceptor(token)],
        options=list(GRPC_OPTIONS),
    )
    server.add_generic_rpc_handlers([handler])
    server.add_insecure_port(address)
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@contextmanager
def landed(
    folder: Path, what: Receiving | None = None, limits: Limits | None = None
) -> Iterator[tuple[WatchedLanding, str]]:
    """A landing and the address at which it takes KV."""
    landing = WatchedLanding(limits)
    landing.serve(what or receiving())
    address = f"unix://{folder / 'kv.sock'}"
    with served(address, kv_handler(landing)):
        yield landing, address


@contextmanager
def relay(folder: Path, target: str, change: Change) -> Iterator[str]:
    """The address of a hop that sends on to `target` what `change` makes of a push."""
    address = f"unix://{folder / 'relay.sock'}"
    with grpc.insecure_channel(target, options=list(GRPC_OPTIONS)) as channel:
        forward: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(METHOD)

        def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            metadata = tuple(
                each for each in context.invocation_metadata() if each[0] == "authorization"
            )
            try:
                forward(change(messages), timeout=context.time_remaining(), metadata=metadata)
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)  # noqa: PT017 (what gRPC raises is one; the types do not say so)
                context.abort(error.code(), error.details() or "")
            return b""

        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(push)
        with served(address, grpc.method_handlers_generic_handler(SERVICE, {"Push": method})):
            yield address


class Pushing:
    """A sender, and how its pushes end."""

    def __init__(self, address: str, token: str | None = TOKEN) -> None:
        self._address = address
        self._ended = threading.Semaphore(0)
        self.sender = Sender(token, on_news=self._ended.release)

    def open(
        self,
        transfer: int,
        kind: Sending | None = None,
        tokens: Sequence[int] = TOKENS,
        **fields: Any,
    ) -> Outgoing:
        """Begins a push; `fields` of the hand-over differ from what the landing expects."""
        usual = pb.HandOver(
            transfer=transfer,
            address=self._address,
            incarnation=INCARNATION,
            epoch=EPOCH,
            deadline_s=TIMEOUT_S,
            queries=fields.pop("queries", range(100, 100 + len(tokens))),
        )
        usual.MergeFrom(pb.HandOver(**fields))
        return self.sender.open(usual, kind or sending(), tokens)

    def push(
        self,
        transfer: int,
        kind: Sending | None = None,
        tokens: Sequence[int] = TOKENS,
        **fields: Any,
    ) -> pb.Handed:
        """Pushes `layers_of(kind, tokens)`; how it ended."""
        outgoing = self.open(transfer, kind, tokens, **fields)
        for index, layer in layers_of(kind or sending(), tokens).items():
            outgoing.layer(index, layer)
        outgoing.finish()
        return self.handed()

    def handed(self) -> pb.Handed:
        """The end of the one push that is under way."""
        assert self._ended.acquire(timeout=TIMEOUT_S)
        (handed,) = self.sender.handed()
        return handed


@contextmanager
def pushing(address: str, token: str | None = TOKEN) -> Iterator[Pushing]:
    ends = Pushing(address, token)
    try:
        yield ends
    finally:
        ends.sender.close()
