"""Where KV from other workers lands: kept until it is taken or forgotten, never more than fits.

    bytes of transfers that are coming or wait to be taken <= Receiving.capacity_bytes

A transfer's room, all of this worker's layers, is reserved before its first byte is read, and in the order of arrival:
so halves of two transfers never wait for each other, and a large one is not overtaken for ever. A stream that waits
for room is not read; HTTP/2 flow control then holds its sender back. One damaged push spoils its transfer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from torch import Tensor

from exegpt_planner.errors import InvalidSpec
from exegpt_runner.kv_transfer.arrived import Arrived, Limits, Receiving
from exegpt_runner.kv_transfer.checks import (
    Refused,
    cancelled,
    check_content,
    check_kind,
    no_room,
    not_for_us,
    replayed,
)
from exegpt_runner.kv_transfer.framing import SERVICE
from exegpt_runner.kv_transfer.ids import Ended
from exegpt_runner.kv_transfer.stream import Stream
from exegpt_wire import worker_pb2 as pb


@dataclass(eq=False, slots=True, kw_only=True)
class _Transfer:
    """A transfer of which something is here or coming; guarded by the landing's lock."""

    id: int
    queries: tuple[int, ...]
    tokens: tuple[int, ...]
    receiving: Receiving
    layers: dict[int, Tensor] = field(default_factory=dict)
    coming: dict[grpc.ServicerContext, range] = field(default_factory=dict)
    is_over: bool = False  # taken, forgotten or spoiled

    @property
    def reserved_bytes(self) -> int:
        return self.receiving.transfer_bytes(sum(self.tokens))

    @property
    def is_whole(self) -> bool:
        return len(self.layers) == self.receiving.num_layers

    def has(self, layer: int) -> bool:
        return layer in self.layers or any(layer in layers for layers in self.coming.values())


class Landing:
    """The KV that has come to this worker; every method may be called from any thread."""

    def __init__(
        self, limits: Limits | None = None, *, on_news: Callable[[], None] = lambda: None
    ) -> None:
        """`on_news` is called, from some thread, when a transfer is whole."""
        self._limits = limits or Limits()
        self._on_news = on_news
        self._changed = threading.Condition()  # guards all below
        self._receiving: Receiving | None = None
        self._transfers: dict[int, _Transfer] = {}
        self._ended = Ended(self._limits.ended_ids)
        self._news: list[int] = []
        self._waiting: list[tuple[int, grpc.ServicerContext]] = []  # for room, first come first
        self._held_bytes = 0  # what is over counts until its streams have let go
        self._num_streams = 0

    @property
    def held_bytes(self) -> int:
        """Bytes reserved for what is here and what is coming."""
        return self._held_bytes

    def serve(self, receiving: Receiving) -> None:
        """Admits what `receiving` says. If that is new, all there is goes and streams under way fail."""
        with self._changed:
            if receiving != self._receiving:
                self._clear()
                self._receiving = receiving

    def close(self) -> None:
        """Drops everything and refuses what comes until the next `serve`."""
        with self._changed:
            self._clear()

    def take(self, transfer: int) -> Arrived:
        """All of `transfer`, which leaves the landing."""
        with self._changed:
            found = self._transfers.get(transfer)
            if found is None or not found.is_whole:
                how = "is not here" if found is None else "has not come in full"
                problem = f"transfer {transfer} {how}; join only what was reported as arrived"
                raise InvalidSpec("Join", [problem])
            self._end([transfer])
            return Arrived(
                transfer=transfer, queries=found.queries, tokens=found.tokens, layers=found.layers
            )

    def forget(self, transfers: Sequence[int]) -> None:
        """Drops `transfers`, also those on their way and those to come."""
        with self._changed:
            self._end(transfers)

    def arrived(self) -> list[int]:
        """Transfers that became whole since the last call and are still here."""
        with self._changed:
            news, self._news = self._news, []
            return [transfer for transfer in news if transfer in self._transfers]

    def receive(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> None:
        """Takes in one push; raises `Refused`, or `grpc.RpcError` when the sender or its deadline has gone."""
        with self._counted():
            if _seconds_left(context) > threading.TIMEOUT_MAX:
                raise not_for_us("the push has no deadline; give it one")
            stream = Stream(messages, self._limits.header_bytes)
            receiving = self._check(stream.header)
            if not stream.header.queries:
                stream.probe(stream.header.probe_bytes)
                stream.end()
                return
            with self._admitted(stream.header, context) as transfer:
                tokens = sum(transfer.tokens)
                layers = stream.layers(stream.header.num_layers, receiving.layer_bytes(tokens))
                stream.end()
                shape = (2, receiving.num_kv_heads, tokens, receiving.head_dim)
                shaped = [layer.view(receiving.dtype).view(shape) for layer in layers]
                self._land(transfer, context, shaped)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Room among the streams: they take the server's threads, of which others need some."""
        with self._changed:
            if self._num_streams >= self._limits.streams:
                raise no_room(
                    f"{self._num_streams} streams are open, and no more are taken at once"
                )
            self._num_streams += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_streams -= 1

    def _check(self, header: pb.KVHeader) -> Receiving:
        """What this worker receives, if that is what comes."""
        with self._changed:
            receiving = self._receiving
            if receiving is None:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "this worker serves no conductor now")
            check_kind(header, receiving)
            if header.queries:
                check_content(header, receiving, self._limits)
                self._check_new(header)
            return receiving

    def _check_new(self, header: pb.KVHeader) -> None:
        transfer = self._transfers.get(header.transfer)
        if transfer is None:
            if header.transfer in self._ended:
                raise replayed(f"transfer {header.transfer} has been taken or forgotten")
            return
        if (transfer.queries, transfer.tokens) != (tuple(header.queries), tuple(header.tokens)):
            raise not_for_us(
                f"transfer {header.transfer} brings other queries or lengths elsewhere"
            )
        again = [layer for layer in _layers(header) if transfer.has(layer)]
        if again:
            raise replayed(f"layers {again} of transfer {header.transfer} have come or are coming")

    @contextmanager
    def _admitted(self, header: pb.KVHeader, context: grpc.ServicerContext) -> Iterator[_Transfer]:
        """The transfer this push is a part of, once there is room; spoiled unless the part lands."""
        if not context.add_callback(self._wake):
            raise cancelled("the sender has gone")
        with self._changed:
            transfer = self._enter(header, context)
        try:
            yield transfer
        finally:
            with self._changed:
                if transfer.coming.pop(context, None) is None:
                    pass  # it has landed
                elif transfer.is_over:
                    self._release(transfer)
                else:
                    self._drop(transfer)

    def _enter(self, header: pb.KVHeader, context: grpc.ServicerContext) -> _Transfer:
        place = (header.transfer, context)
        self._waiting.append(place)
        try:
            while (transfer := self._find_or_open(header)) is None:
                self._wait(context)
                if header.transfer in self._ended:
                    raise cancelled(f"transfer {header.transfer} was forgotten while it waited")
            transfer.coming[context] = _layers(header)
            return transfer
        finally:
            self._waiting.remove(place)
            self._changed.notify_all()

    def _find_or_open(self, header: pb.KVHeader) -> _Transfer | None:
        """None: there is no room yet, or it is another's turn."""
        receiving = self._check(
            header
        )  # again: while this push waited, everything may have changed
        if header.transfer in self._transfers:
            return self._transfers[header.transfer]
        transfer = _Transfer(
            id=header.transfer,
            queries=tuple(header.queries),
            tokens=tuple(header.tokens),
            receiving=receiving,
        )
        held_bytes = self._held_bytes + transfer.reserved_bytes
        if self._waiting[0][0] != header.transfer or held_bytes > receiving.capacity_bytes:
            return None
        self._held_bytes = held_bytes
        self._transfers[header.transfer] = transfer
        return transfer

    def _wait(self, context: grpc.ServicerContext) -> None:
        remaining_s = _seconds_left(context)
        if not context.is_active():
            raise cancelled("the sender has gone")
        if remaining_s <= 0:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "there was no room in time")
        self._changed.wait(remaining_s)

    def _wake(self) -> None:
        """A stream has ended: if it waited, it goes on to see that."""
        with self._changed:
            self._changed.notify_all()

    def _land(
        self, transfer: _Transfer, context: grpc.ServicerContext, layers: Sequence[Tensor]
    ) -> None:
        """Takes in what came unharmed."""
        with self._changed:
            if transfer.is_over:
                raise cancelled(f"transfer {transfer.id} was forgotten while it came")
            transfer.layers.update(zip(transfer.coming.pop(context), layers, strict=True))
            is_whole = transfer.is_whole
            if is_whole:
                self._news.append(transfer.id)
        if is_whole:
            self._on_news()

    def _clear(self) -> None:
        for transfer in list(self._transfers.values()):
            self._drop(transfer)
        self._receiving = None
        self._ended = Ended(self._limits.ended_ids)
        self._news.clear()
        self._changed.notify_all()

    def _end(self, transfers: Iterable[int]) -> None:
        for transfer in transfers:
            if transfer in self._transfers:
                self._drop(self._transfers[transfer])
        self._ended.add(transfers)
        self._changed.notify_all()

    def _drop(self, transfer: _Transfer) -> None:
        """Takes a transfer out and ends its streams; its room is free once they have let go."""
        del self._transfers[transfer.id]
        transfer.is_over = True
        for context in transfer.coming:
            context.cancel()
        self._release(transfer)

    def _release(self, transfer: _Transfer) -> None:
        if transfer.is_over and not transfer.coming:
            self._held_bytes -= transfer.reserved_bytes
            self._changed.notify_all()


def kv_handler(landing: Landing) -> grpc.GenericRpcHandler:
    """The gRPC method that other workers push KV to; messages are bare bytes."""

    def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            landing.receive(messages, context)
        except Refused as refused:
            context.abort(refused.code, str(refused))
        return b""

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(push)
    return grpc.method_handlers_generic_handler(SERVICE, {"Push": method})


def _layers(header: pb.KVHeader) -> range:
    return range(header.first_layer, header.first_layer + header.num_layers)


def _seconds_left(context: grpc.ServicerContext) -> float:
    """Until the push's deadline; without one, more than threads can wait."""
    remaining_s = context.time_remaining()
    return math.inf if remaining_s is None else remaining_s
