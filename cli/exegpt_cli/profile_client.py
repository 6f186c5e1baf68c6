"""Measuring over the wire: a worker set up for profiling, its step times, and what a step costs beside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
from grpc import aio

from exegpt_planner.errors import ExeGPTError, InvalidSpec, Unavailable
from exegpt_planner.profile_design import Coverage, DesignedStep
from exegpt_wire import GRPC_OPTIONS, PROTOCOL, message_of, worker_pb2
from exegpt_wire.worker_pb2_grpc import WorkerStub

if TYPE_CHECKING:
    from exegpt_wire.worker_pb2_grpc import WorkerAsyncStub  # the stubs' own type for grpc.aio

START_S = 120.0  # a worker loads torch first, slowly from a cold disk
GRANULE_TOKENS = 64  # an extent's rounding in the worker's KV arena, for each query
_TURNS = 30  # the median of so many settles to some percent of a fraction of a millisecond
_PROMPT_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds of a step outside the engine, in the worker."""

    step_s: float  # making, sending and receiving the messages of a step
    sampled_s: float  # more for each sampled token
    dispatch_s: float  # waiting for a conductor that answers at once


class ProfileClient:
    """One worker, for the time of a profile."""

    def __init__(self, stub: WorkerAsyncStub, address: str) -> None:
        self._stub = stub
        self._address = address

    async def describe(self) -> worker_pb2.DescribeReply:
        """What the worker is; waits for one that is starting."""
        request = worker_pb2.DescribeRequest()
        try:
            return await self._stub.Describe(request, wait_for_ready=True, timeout=START_S)
        except aio.AioRpcError as error:
            raise self._explain(error) from None

    async def configure(
        self, model_dir: Path, dtype: str, coverage: Coverage, epoch: int
    ) -> worker_pb2.ConfigureReply:
        """Loads the model with a KV arena for the largest steps of `coverage`."""
        queries = coverage.decode_queries + coverage.encode_chunks + 1
        request = worker_pb2.ConfigureRequest(
            protocol=PROTOCOL,
            epoch=epoch,
            model_path=str(model_dir.resolve()),
            dtype=dtype,
            kv_tokens=coverage.kv_tokens + queries * GRANULE_TOKENS,
        )
        try:
            return await self._stub.Configure(request)
        except aio.AioRpcError as error:
            raise self._explain(error) from None

    async def measure(
        self, steps: Sequence[DesignedStep], *, warm_up: int, seed: int
    ) -> list[worker_pb2.Measurement]:
        """One measurement a step, in order."""
        request = worker_pb2.MeasureRequest(
            shapes=[_shape(step) for step in steps], warm_up=warm_up, seed=seed
        )
        try:
            return [measurement async for measurement in self._stub.Measure(request)]
        except aio.AioRpcError as error:
            raise self._explain(error) from None

    async def overheads(self, num_queries: int) -> Overheads:
        """What a step costs beside the engine, over the stream that serves."""
        try:
            alone = await self._turns(1)
            crowd = await self._turns(num_queries) if num_queries > 1 else alone
        except aio.AioRpcError as error:
            raise self._explain(error) from None
        between_s = float(np.median([result.clocks.between_s for result in alone]))
        crowd_s = float(np.median([result.clocks.between_s for result in crowd]))
        gaps_s = [_engine_start(b) - _engine_end(a) for a, b in pairwise(alone)]
        return Overheads(
            step_s=between_s,
            sampled_s=max(0.0, crowd_s - between_s) / max(1, num_queries - 1),
            dispatch_s=max(0.0, float(np.median(gaps_s)) - between_s),
        )

    async def _turns(self, num_queries: int) -> list[worker_pb2.IterationResult]:
        """Results of decode steps of one iteration each, the next sent at once."""
        run = self._stub.Run()
        await run.write(_begin(num_queries))
        results = [await _result(run)]
        for sequence in range(2, _TURNS + 2):
            step = worker_pb2.Step(sequence=sequence, decode_iterations=1)
            await run.write(worker_pb2.Command(step=step))
            results.append(await _result(run))
        await run.done_writing()
        while await run.read() is not aio.EOF:
            pass
        return results[1:]

    def _explain(self, error: aio.AioRpcError) -> ExeGPTError:
        text = message_of(error.details())
        match error.code():
            case grpc.StatusCode.INVALID_ARGUMENT:
                return InvalidSpec(f"worker at {self._address}", [text])
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return Unavailable(text)
            case code:
                return Unavailable(
                    f"the worker at {self._address} ended the profile "
                    f"({code.name.lower()}: {text}). Run again: it continues where it stopped."
                )


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[ProfileClient]:
    """A client of the worker at `address`."""
    async with aio.insecure_channel(address, options=list(GRPC_OPTIONS)) as channel:
        yield ProfileClient(WorkerStub(channel), address)


def _shape(step: DesignedStep) -> worker_pb2.MeasuredShape:
    return worker_pb2.MeasuredShape(
        id=step.id,
        decode_contexts=step.decode_contexts,
        chunk_starts=step.chunk_starts,
        chunk_tokens=step.chunk_tokens,
        sample_chunks=step.sample_chunks,
    )


def _begin(num_queries: int) -> worker_pb2.Command:
    sampling = worker_pb2.Sampling(top_p=1.0, max_tokens=2 * _TURNS, ignore_eos=True)
    chunks = [
        worker_pb2.Chunk(query=query, tokens=[0] * _PROMPT_TOKENS, last=True, sampling=sampling)
        for query in range(1, num_queries + 1)
    ]
    return worker_pb2.Command(step=worker_pb2.Step(sequence=1, chunks=chunks))


async def _result(
    run: aio.StreamStreamCall[worker_pb2.Command, worker_pb2.IterationResult],
) -> worker_pb2.IterationResult:
    async with asyncio.timeout(START_S):
        result = await run.read()
    if isinstance(result, worker_pb2.IterationResult):
        return result
    raise aio.AioRpcError(
        await run.code(), aio.Metadata(), aio.Metadata(), details=await run.details()
    )


def _engine_start(result: worker_pb2.IterationResult) -> float:
    return result.clocks.start_s


def _engine_end(result: worker_pb2.IterationResult) -> float:
    clocks = result.clocks
    return clocks.start_s + clocks.wall_s - clocks.between_s
