"""What handing KV from one worker to another costs: timed on the real way between two of them.

Pushing and landing take CPU time from the steps beside them, wherever these happen to be; so both are read from the
process's clock while a worker does nothing else. Copying the KV of a join is the difference of the same decode with and
without it; copying it out for a push is as much again. Medians over turns, as lines over sizes. A worker with several
threads has as many cores to spread it over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from grpc import aio
from numpy.typing import NDArray
from scipy.optimize import nnls

from exegpt_cli.profile_client import ProfileClient
from exegpt_planner.errors import Unavailable
from exegpt_planner.profile_table import Curve, HandOverCurves
from exegpt_wire import worker_pb2

if TYPE_CHECKING:
    Run = aio.StreamStreamCall[worker_pb2.Command, worker_pb2.IterationResult]

Floats = NDArray[np.float64]

TURNS = (9, 9, 7, 5, 3)  # at sizes up to the largest encode, which takes seconds
PROMPT_TOKENS = 32
CLOCK_READINGS = 21
DEADLINE_S = 30.0
_FOREVER = worker_pb2.Sampling(top_p=1.0, max_tokens=1 << 30, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One encode's KV on its way, seconds."""

    pushed: float  # CPU
    landed: float  # CPU
    copied: float
    exposed: float


async def hand_over_curves(
    encoder: ProfileClient, decoder: ProfileClient, largest_tokens: int, *, threads: int
) -> HandOverCurves:
    """Costs by KV tokens of one encode, up to `largest_tokens`; both workers are configured."""
    smallest = min(PROMPT_TOKENS, largest_tokens)
    sizes = np.geomspace(smallest, largest_tokens, len(TURNS)).round().astype(int)
    try:
        async with _Stream.opened(encoder) as sender, _Stream.opened(decoder) as receiver:
            way = _Way(sender, receiver, encoder, decoder, await _reading_s(decoder))
            await way.turn(int(sizes[0]))  # the connection is made
            timed = [
                [await way.turn(int(size)) for _ in range(turns)]
                for size, turns in zip(sizes, TURNS, strict=True)
            ]
    except aio.AioRpcError as error:
        raise decoder.explain(error) from None
    pushed, landed, copied, exposed = (
        np.array([np.median([getattr(each, name) for each in turns]) for turns in timed])
        for name in ("pushed", "landed", "copied", "exposed")
    )
    tokens = sizes.astype(float)
    return HandOverCurves(
        sent=_line(tokens, pushed / threads + copied),
        joined=_line(tokens, landed / threads + copied),
        exposed=_line(tokens, exposed),
    )


async def _reading_s(worker: ProfileClient) -> float:
    """CPU time that reading a worker's clock takes it."""
    readings = [await worker.cpu_s() for _ in range(CLOCK_READINGS)]
    return float(np.median(np.diff(readings)))


def _line(tokens: Floats, seconds: Floats) -> Curve:
    """The line through the points, relative errors alike, neither end below 0."""
    weight = 1 / np.maximum(seconds, np.median(np.abs(seconds)) / 10 + 1e-9)
    design = np.stack([np.ones_like(tokens), tokens], axis=1) * weight[:, None]
    (start, slope), _ = nnls(design, np.maximum(seconds, 0.0) * weight)
    last = float(tokens[-1])
    return Curve(x=(0.0, last), seconds=(float(start), float(start + slope * last)))


@dataclass(slots=True)
class _Way:
    """Two workers, and one encode after the other between them."""

    sender: _Stream
    receiver: _Stream
    encoder: ProfileClient
    decoder: ProfileClient
    reading_s: float
    _transfer: int = 0
    _query: int = 0

    async def turn(self, tokens: int) -> _Timed:
        """Encodes prompts of so many tokens in all, hands them over, joins and drops them, and pushes as much again."""
        chunks = self._chunks(tokens)
        queries = [chunk.query for chunk in chunks]
        before_s = await self.decoder.cpu_s()
        handed = await self._handed(chunks=chunks, queries=queries)
        await self.receiver.next_arrived()
        landed_s = await self.decoder.cpu_s() - before_s
        join = worker_pb2.Join(
            transfer=self._transfer,
            queries=[
                worker_pb2.Joining(query=query, token=1, num_generated=1, sampling=_FOREVER)
                for query in queries
            ],
        )
        joined = await self.receiver.step(joins=[join], decode_iterations=1)
        decoded = await self.receiver.step(decode_iterations=1)
        await self.receiver.drop(queries)
        before_s = await self.encoder.cpu_s()
        await self._handed(probe_bytes=handed.num_bytes)
        pushed_s = await self.encoder.cpu_s() - before_s
        return _Timed(
            pushed=pushed_s - self.reading_s,
            landed=landed_s - self.reading_s,
            copied=max(0.0, joined - decoded),
            exposed=handed.exposed_s,
        )

    async def _handed(
        self,
        *,
        chunks: Sequence[worker_pb2.Chunk] = (),
        queries: Sequence[int] = (),
        probe_bytes: int = 0,
    ) -> worker_pb2.Handed:
        """Runs a step that encodes and pushes, or pushes a probe only; how the push went."""
        self._transfer += 1
        hand_over = worker_pb2.HandOver(
            transfer=self._transfer,
            address=self.decoder.address,
            incarnation=self.decoder.incarnation,
            epoch=self.decoder.epoch,
            deadline_s=DEADLINE_S,
            queries=queries,
            probe_bytes=probe_bytes,
        )
        await self.sender.step(chunks=chunks, hand_overs=[hand_over])
        handed = await self.sender.next_handed()
        if handed.reason:
            raise Unavailable(f"KV does not get from worker to worker: {handed.problem}.")
        return handed

    def _chunks(self, tokens: int) -> list[worker_pb2.Chunk]:
        chunks = []
        for start in range(0, tokens, PROMPT_TOKENS):
            self._query += 1
            length = min(PROMPT_TOKENS, tokens - start)
            chunks.append(
                worker_pb2.Chunk(
                    query=self._query, tokens=[1] * length, last=True, sampling=_FOREVER
                )
            )
        return chunks


@dataclass(slots=True)
class _Stream:
    """A worker's Run stream, a step at a time."""

    run: Run
    handed: list[worker_pb2.Handed] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    _sequence: int = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, client: ProfileClient) -> AsyncIterator[_Stream]:
        run = client.run()
        try:
            await run.initial_metadata()  # from now on KV lands there
            yield cls(run)
        finally:
            run.cancel()
            await asyncio.wait([asyncio.ensure_future(run.code())])

    async def step(
        self,
        *,
        chunks: Sequence[worker_pb2.Chunk] = (),
        decode_iterations: int = 0,
        hand_overs: Sequence[worker_pb2.HandOver] = (),
        joins: Sequence[worker_pb2.Join] = (),
    ) -> float:
        """Runs one step of one iteration; its seconds in the worker."""
        self._sequence += 1
        step = worker_pb2.Step(
            sequence=self._sequence,
            chunks=chunks,
            decode_iterations=decode_iterations,
            hand_overs=hand_overs,
            joins=joins,
        )
        await self.run.write(worker_pb2.Command(step=step))
        while (result := await self._read()).sequence == 0:
            pass
        assert result.last, "a step of one iteration has one result"
        return result.clocks.wall_s - result.clocks.between_s

    async def drop(self, queries: Sequence[int]) -> None:
        await self.run.write(worker_pb2.Command(drop=worker_pb2.Drop(queries=queries)))

    async def next_handed(self) -> worker_pb2.Handed:
        """How the next hand-over went."""
        while not self.handed:
            await self._read()
        return self.handed.pop(0)

    async def next_arrived(self) -> int:
        """The next transfer that arrives."""
        while not self.arrived:
            await self._read()
        return self.arrived.pop(0)

    async def _read(self) -> worker_pb2.IterationResult:
        result = await self.run.read()
        if not isinstance(result, worker_pb2.IterationResult):
            said = await self.run.details()
            raise Unavailable(f"a worker ended while hand-overs were timed ({said}). Run again.")
        self.handed += result.handed
        self.arrived += result.arrived
        return result
