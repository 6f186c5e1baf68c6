"""Reads one push's bytes, piece by piece, and refuses what is not exactly what its header and trailer say.

Nothing is allocated from the header's word: a layer's memory comes with its bytes, after the landing has found room for
it. A message holds bytes of one layer only; a layer that comes in one message stays where gRPC put it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import xxhash
from google.protobuf.message import DecodeError
from torch import Tensor

from exegpt_runner.kv_transfer.checks import damaged, no_room
from exegpt_runner.kv_transfer.framing import seed_of
from exegpt_runner.kv_transfer.memory import adopt, allocate
from exegpt_wire import worker_pb2 as pb


class Stream:
    """The messages of one push; read its header first."""

    def __init__(self, messages: Iterator[bytes], header_limit_bytes: int) -> None:
        self._messages = messages
        self.header, self._seed = self._read_header(header_limit_bytes)
        self._checksums: list[int] = []

    def layers(self, count: int, size: int) -> list[Tensor]:
        """The bytes of `count` layers of `size` bytes each; call `end` before believing them."""
        return [self._layer(size) for _ in range(count)]

    def probe(self, size: int) -> None:
        """Reads a probe's bytes and keeps none."""
        hasher = xxhash.xxh3_64(seed=self._seed)
        for piece in self._pieces(size):
            hasher.update(piece)
        self._checksums.append(hasher.intdigest())

    def end(self) -> None:
        """Reads the trailer; raises unless everything came as it was sent."""
        message = next(self._messages, None)
        if message is None:
            raise damaged("the stream ended before its trailer")
        found = self._trailer(message)
        if len(found) != len(self._checksums):
            raise damaged(
                f"the trailer has {len(found)} checksums for {len(self._checksums)} layers"
            )
        for index, (theirs, ours) in enumerate(zip(found, self._checksums, strict=True)):
            if theirs != ours:
                raise damaged(
                    f"checksum {ours:x} of layer {index} of the stream is not its sender's {theirs:x}"
                )
        if next(self._messages, None) is not None:
            raise damaged("the stream goes on after its trailer")

    def _read_header(self, limit_bytes: int) -> tuple[pb.KVHeader, int]:
        message = next(self._messages, None)
        if message is None:
            raise damaged("the stream ended before its header")
        if len(message) > limit_bytes:
            raise no_room(f"a header of {len(message)} bytes; at most {limit_bytes} are read")
        try:
            return pb.KVHeader.FromString(message), seed_of(message)
        except DecodeError:
            raise damaged("the header cannot be read") from None

    def _layer(self, size: int) -> Tensor:
        """One layer's bytes, (size,) of uint8."""
        pieces = self._pieces(size)
        first = next(pieces)
        if len(first) == size:
            self._checksums.append(xxhash.xxh3_64_intdigest(first, self._seed))
            return adopt(first)
        hasher = xxhash.xxh3_64(seed=self._seed)
        buffer, memory = allocate(size)
        filled = 0
        for piece in itertools.chain((first,), pieces):
            hasher.update(piece)
            memory[filled : filled + len(piece)] = piece
            filled += len(piece)
        self._checksums.append(hasher.intdigest())
        return buffer

    def _pieces(self, size: int) -> Iterator[bytes]:
        """Messages of `size` bytes in all."""
        where = f"layer {len(self._checksums)} of the stream"
        missing = size
        while missing:
            piece = next(self._messages, None)
            if piece is None:
                raise damaged(f"the stream ended {missing} bytes before the end of {where}")
            if not 0 < len(piece) <= missing:
                raise damaged(
                    f"a message of {len(piece)} bytes where {missing} of {where} are missing"
                )
            missing -= len(piece)
            yield piece

    @staticmethod
    def _trailer(message: bytes) -> Sequence[int]:
        try:
            return pb.KVTrailer.FromString(message).checksums
        except DecodeError:
            raise damaged("the trailer cannot be read") from None
