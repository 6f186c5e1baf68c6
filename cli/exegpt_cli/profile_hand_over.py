"""What handing KV from one worker to another costs: timed on the real way between two of them.

The same encode with and without a hand-over, the same decode with and without a join, in turn: the differences of
medians, over sizes, as lines.
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
DEADLINE_S = 30.0
_FOREVER = worker_pb2.Sampling(top_p=1.0, max_tokens=1 << 30, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One encode's KV on its way, seconds."""

    sent: float
    joined: float
    exposed: float


async def hand_over_curves(
    encoder: ProfileClient, decoder: ProfileClient, largest_tokens: int
) -> HandOverCurves:
    """Costs by KV tokens of one encode, up to `largest_tokens`; both workers are configured."""
    smallest = min(PROMPT_TOKENS, largest_tokens)
    sizes = np.geomspace(smallest, largest_tokens, len(TURNS)).round().astype(int)
    try:
        async with _Stream.opened(encoder) as sender, _Stream.opened(decoder) as receiver:
            way = _Way(sender, receiver, decoder)
            await way.turn(int(sizes[0]))  # the connection is made
            timed = [
                [await way.turn(int(size)) for _ in range(turns)]
                for size, turns in zip(sizes, TURNS, strict=True)
            ]
    except aio.AioRpcError as error:
        raise decoder.explain(error) from None
    medians = {
        name: np.array([np.median([getattr(each, name) for each in turns]) for turns in timed])
        for name in ("sent", "joined", "exposed")
    }
    return HandOverCurves(
        **{name: _line(sizes.astype(float), values) for name, values in medians.items()}
    )


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
    decoder: ProfileClient
    _transfer: int = 0
    _query: int = 0

    async def turn(self, tokens: int) -> _Timed:
        """Encodes prompts of so many tokens in all twice, hands the second over, joins it, and drops all."""
        plain = await self.sender.step(chunks=self._chunks(tokens))
        await self.sender.drop(self._last(tokens))
        chunks = self._chunks(tokens)
        queries = [chunk.query for chunk in chunks]
        self._transfer += 1
        hand_over = worker_pb2.HandOver(
            transfer=self._transfer,
            address=self.decoder.address,
            incarnation=self.decoder.incarnation,
            epoch=self.decoder.epoch,
            deadline_s=DEADLINE_S,
            queries=queries,
        )
        sent = await self.sender.step(chunks=chunks, hand_overs=[hand_over])
        handed = await self.sender.next_handed()
        if handed.reason:
            raise Unavailable(f"KV does not get from worker to worker: {handed.problem}.")
        await self.receiver.next_arrived()
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
        return _Timed(
            sent=sent - plain, joined=max(0.0, joined - decoded), exposed=handed.exposed_s
        )

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

    def _last(self, tokens: int) -> list[int]:
        number = -(-tokens // PROMPT_TOKENS)
        return list(range(self._query - number + 1, self._query + 1))


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
