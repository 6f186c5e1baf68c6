"""One push to another worker, from its header to its acknowledgement.

The compute thread only queues tensors. gRPC's thread of the call takes them from there, cuts and sums them and writes
them, one message at a time; while the receiver does not read, that thread waits and layers queue up, at most the KV of
the step that makes them.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import torch
import xxhash
from torch import Tensor

from exegpt_runner.kv_transfer.framing import dtype_name, seed_of
from exegpt_runner.kv_transfer.peers import Peer
from exegpt_wire import PROTOCOL, message_of
from exegpt_wire import worker_pb2 as pb
from exegpt_wire.token import Metadata

if TYPE_CHECKING:  # the stubs' name for what a multi-callable's `future` returns
    Call = grpc._CallFuture[bytes]

# A layer up to this size is one message, which its receiver need not copy; 1 to 8 MiB were alike for larger ones.
MESSAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What this worker computes, as it is configured."""

    model_fingerprint: str
    weights_digest: str
    dtype: torch.dtype
    num_kv_heads: int
    head_dim: int
    first_layer: int
    num_layers: int

    def layers_for(self, hand_over: pb.HandOver) -> range:
        """Those of this worker's layers that the receiver computes too."""
        start, stop = self.first_layer, self.first_layer + self.num_layers
        if hand_over.num_layers:
            start = max(start, hand_over.first_layer)
            stop = min(stop, hand_over.first_layer + hand_over.num_layers)
        return range(start, max(start, stop))


class Outgoing:
    """One push. `layer` for each layer in order, then `finish`; or `abandon` at any time."""

    def __init__(self, hand_over: pb.HandOver, sending: Sending, tokens: Sequence[int]) -> None:
        self._hand_over = hand_over
        self._dtype = sending.dtype
        self._shape = (2, sending.num_kv_heads, sum(tokens), sending.head_dim)
        self._layers = sending.layers_for(hand_over)
        self._header = _header(hand_over, sending, tokens, self._layers).SerializeToString()
        self._queue: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()  # None: no more
        self._call: Call | None = None
        self._is_over = False
        self._num_given = 0
        self._num_bytes = 0
        self._first_byte_s: float | None = None
        self._finished_s: float | None = None
        self._problem = ""  # what this side knows better than gRPC

    def start(self, peer: Peer, metadata: Metadata, on_end: Callable[[pb.Handed], None]) -> None:
        """Makes the call; `on_end` comes once, from another thread."""
        call = peer.push.future(
            self._messages(), timeout=self._hand_over.deadline_s, metadata=metadata
        )
        self._call = call
        call.add_done_callback(lambda _: on_end(self._end(call)))

    def layer(self, index: int, tensor: Tensor) -> None:
        """Queues layer `index` of the model, (2, G, T, D) on the CPU, contiguous, in memory that no one changes."""
        if index not in self._layers or self._is_over:
            return
        assert index == self._layers[self._num_given], f"layer {index} is out of order"
        assert tensor.shape == self._shape, f"layer {index}: {tensor.shape}, not {self._shape}"
        assert tensor.dtype == self._dtype, f"layer {index}: {tensor.dtype}, not {self._dtype}"
        assert tensor.is_contiguous(), f"layer {index} is not contiguous"
        self._num_given += 1
        self._queue.put(tensor)

    def finish(self) -> None:
        """The iteration is over: from now on the transfer's time is exposed."""
        self._finished_s = time.monotonic()
        if self._hand_over.queries and self._num_given < len(self._layers):
            needed = len(self._layers)
            self.abandon(f"the iteration ended after {self._num_given} of {needed} layers")

    def abandon(self, problem: str = "the sender abandoned it") -> None:
        """Ends the push, wherever it is; nothing happens if it is over."""
        if not self._is_over and self._call is not None:
            self._problem = self._problem or problem
            self._call.cancel()

    def _end(self, call: Call) -> pb.Handed:
        """How the call went."""
        ended_s = time.monotonic()
        self._is_over = True
        self._queue.put(None)  # whoever waits for a layer waits in vain
        handed = pb.Handed(transfer=self._hand_over.transfer, num_bytes=self._num_bytes)
        if self._first_byte_s is not None:
            handed.seconds = ended_s - self._first_byte_s
        if self._finished_s is not None:
            handed.exposed_s = ended_s - self._finished_s
        if call.code() is not grpc.StatusCode.OK:
            handed.reason = call.code().name.lower()
            handed.problem = self._problem or message_of(call.details())
        return handed

    def _messages(self) -> Iterator[bytes]:
        """Header, layers or probe, trailer; just ends when the call has ended."""
        self._first_byte_s = time.monotonic()
        yield self._header
        seed, checksums = seed_of(self._header), []
        for pieces in self._parts():
            hasher = xxhash.xxh3_64(seed=seed)
            for piece in pieces:
                hasher.update(piece)
                self._num_bytes += len(piece)
                yield piece
            checksums.append(hasher.intdigest())
        if not self._is_over:
            yield pb.KVTrailer(checksums=checksums).SerializeToString()

    def _parts(self) -> Iterator[Iterator[bytes]]:
        """What goes under one checksum each, in messages."""
        if not self._hand_over.queries:
            yield _zeros(self._hand_over.probe_bytes)
            return
        for _ in self._layers:
            tensor = self._queue.get()
            if tensor is None:
                return
            yield _cut(tensor)


def _cut(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of `tensor` in messages."""
    data = tensor.view(-1).view(torch.uint8).numpy().data
    for start in range(0, len(data), MESSAGE_BYTES):
        yield bytes(data[start : start + MESSAGE_BYTES])  # gRPC takes nothing but bytes


def _zeros(size: int) -> Iterator[bytes]:
    zeros = bytes(min(size, MESSAGE_BYTES))
    for start in range(0, size, MESSAGE_BYTES):
        yield zeros[: size - start]


def _header(
    hand_over: pb.HandOver, sending: Sending, tokens: Sequence[int], layers: range
) -> pb.KVHeader:
    return pb.KVHeader(
        protocol=PROTOCOL,
        transfer=hand_over.transfer,
        incarnation=hand_over.incarnation,
        epoch=hand_over.epoch,
        model_fingerprint=sending.model_fingerprint,
        weights_digest=sending.weights_digest,
        dtype=dtype_name(sending.dtype),
        num_kv_heads=sending.num_kv_heads,
        head_dim=sending.head_dim,
        first_layer=layers.start,
        num_layers=len(layers),
        queries=hand_over.queries,
        tokens=tokens,
        probe_bytes=hand_over.probe_bytes,
    )
