"""The ways in which kv_transfer.py sends KV, and the process that receives it."""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import torch
from google.protobuf.wrappers_pb2 import BytesValue
from torch import Tensor

from exegpt_runner.kv_transfer.arrived import Receiving
from exegpt_runner.kv_transfer.sender import Outgoing, Sender, Sending
from exegpt_wire import GRPC_OPTIONS
from exegpt_wire import worker_pb2 as pb
from exegpt_wire.token import bearer
from kv_receiver import PROTOBUF_METHOD, TOKEN, serve

MIB = 1 << 20
TRANSFERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    tokens: tuple[int, ...]

    def layers(self) -> list[Tensor]:
        size = (2, self.num_kv_heads, sum(self.tokens), self.head_dim)
        return [torch.randn(size).bfloat16() for _ in range(self.num_layers)]

    def kind(self) -> dict[str, Any]:
        return {
            "model_fingerprint": self.name,
            "weights_digest": "",
            "dtype": torch.bfloat16,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "first_layer": 0,
            "num_layers": self.num_layers,
        }

    @property
    def layer_bytes(self) -> int:
        return 2 * self.num_kv_heads * sum(self.tokens) * self.head_dim * 2


class Receiver:
    """The other process."""

    def __init__(self, folder: Path, core: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._conn, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, core, folder), daemon=True)
        self._process.start()
        theirs.close()
        self.tcp, self.unix, self.raw_tcp, self.raw_unix = self._conn.recv()

    def serve(self, shape: Shape) -> None:
        self._ask(Receiving(incarnation=1, epoch=1, capacity_bytes=1 << 30, **shape.kind()))

    def cpu_s(self) -> float:
        return self._ask(None)

    def close(self) -> None:
        self._conn.close()
        self._process.join()

    def _ask(self, what: Receiving | None) -> float:
        self._conn.send(what)
        answer: float = self._conn.recv()
        return answer


class Ours:
    """Our sender to one address, one transfer at a time."""

    def __init__(self, address: str, shape: Shape) -> None:
        self._address = address
        self._shape = shape
        self._ended = threading.Semaphore(0)
        self._sender = Sender(TOKEN, on_news=self._ended.release)

    def open(self) -> Outgoing:
        hand_over = pb.HandOver(
            transfer=next(TRANSFERS),
            address=self._address,
            incarnation=1,
            epoch=1,
            deadline_s=120.0,
            queries=range(len(self._shape.tokens)),
        )
        return self._sender.open(hand_over, Sending(**self._shape.kind()), self._shape.tokens)

    def wait(self) -> None:
        self._ended.acquire()
        (handed,) = self._sender.handed()
        assert not handed.reason, f"{handed.reason}: {handed.problem}"

    def send(self, layers: Sequence[Tensor]) -> None:
        outgoing = self.open()
        for index, layer in enumerate(layers):
            outgoing.layer(index, layer)
        outgoing.finish()
        self.wait()

    def close(self) -> None:
        self._sender.close()


class RawSocket:
    def __init__(
        self, family: socket.AddressFamily, address: Any, layers: Sequence[Tensor]
    ) -> None:
        self._socket = socket.socket(family)
        self._socket.connect(address)
        self._views = views(layers)
        self._socket.sendall(f"{len(self._views[0])} {len(layers)}\n".encode())

    def send(self) -> None:
        for view in self._views:
            self._socket.sendall(view)
        assert self._socket.recv(1) == b"."

    def close(self) -> None:
        self._socket.close()


class Protobuf:
    def __init__(self, address: str, layers: Sequence[Tensor]) -> None:
        self._channel = grpc.insecure_channel(address, options=list(GRPC_OPTIONS))
        self._push = self._channel.stream_unary(
            PROTOBUF_METHOD, BytesValue.SerializeToString, BytesValue.FromString
        )
        self._views = views(layers)

    def send(self) -> None:
        self._push(self._messages(), metadata=bearer(TOKEN))

    def close(self) -> None:
        self._channel.close()

    def _messages(self) -> Iterator[BytesValue]:
        for view in self._views:
            for start in range(0, len(view), MIB):
                yield BytesValue(value=bytes(view[start : start + MIB]))


def views(layers: Sequence[Tensor]) -> list[memoryview]:
    return [layer.view(-1).view(torch.uint8).numpy().data for layer in layers]
