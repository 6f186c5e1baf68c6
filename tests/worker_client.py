"""A synchronous client of a worker's Run stream, for tests."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from exegpt_wire import worker_pb2 as pb
from exegpt_wire.worker_pb2_grpc import WorkerStub

Configure = Callable[..., pb.ConfigureReply]  # keywords: fields of the request
TIMEOUT_S = 50.0


class Stream:
    """Sends steps and drops; reads results as they come."""

    def __init__(self, stub: WorkerStub) -> None:
        self._commands: queue.SimpleQueue[pb.Command | None] = queue.SimpleQueue()
        self.results = stub.Run(iter(self._commands.get, None), timeout=TIMEOUT_S)
        self._sequence = 0

    @classmethod
    @contextmanager
    def opened(cls, stub: WorkerStub) -> Iterator[Stream]:
        stream = cls(stub)
        try:
            yield stream
        finally:
            stream.finish()
            stream.results.cancel()

    def send(self, chunks: Sequence[pb.Chunk] = (), *, decode: int = 0, **fields: Any) -> int:
        """Sends a step; returns its sequence number."""
        self._sequence += 1
        step = pb.Step(sequence=self._sequence, chunks=chunks, decode_iterations=decode, **fields)
        self._commands.put(pb.Command(step=step))
        return self._sequence

    def drop(self, *queries: int) -> None:
        self._commands.put(pb.Command(drop=pb.Drop(queries=queries)))

    def finish(self) -> None:
        """Says that no more commands come."""
        self._commands.put(None)

    def read(self) -> pb.IterationResult:
        return next(self.results)

    def step(self, chunks: Sequence[pb.Chunk] = (), **fields: Any) -> list[pb.IterationResult]:
        """The results of one step, up to the one marked last."""
        sequence = self.send(chunks, **fields)
        results = [self.read()]
        while not results[-1].last:
            results.append(self.read())
        assert {result.sequence for result in results} == {sequence}
        return results


def chunk(query: int, tokens: Sequence[int], **fields: Any) -> pb.Chunk:
    """A whole prompt, greedy, of 8 output tokens unless said otherwise (`max_tokens`, `start`, `last`)."""
    sampling = pb.Sampling(
        top_p=1.0, max_tokens=fields.pop("max_tokens", 8), end_tokens=fields.pop("end_tokens", ())
    )
    return pb.Chunk(query=query, tokens=tokens, sampling=sampling, **{"last": True} | fields)


def outputs(results: Sequence[pb.IterationResult]) -> dict[int, list[int]]:
    """The sampled tokens by query."""
    found: dict[int, list[int]] = {}
    for result in results:
        for token in result.tokens:
            found.setdefault(token.query, []).append(token.token)
    return found
