"""Measuring over the wire: a worker set up for profiling, and its step times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from exegpt_planner.errors import ExeGPTError, InvalidSpec, Unavailable
from exegpt_planner.profile_design import Coverage, DesignedStep
from exegpt_wire import GRPC_OPTIONS, PROTOCOL, message_of, worker_pb2
from exegpt_wire.token import bearer
from exegpt_wire.worker_pb2_grpc import WorkerStub

if TYPE_CHECKING:
    Run = aio.StreamStreamCall[worker_pb2.Command, worker_pb2.IterationResult]
    from exegpt_wire.worker_pb2_grpc import WorkerAsyncStub  # the stubs' own type for grpc.aio

START_S = 120.0  # a worker loads torch first, slowly from a cold disk
GRANULE_TOKENS = 64  # an extent's rounding in the worker's KV arena, for each query


class ProfileClient:
    """One worker, for the time of a profile."""

    def __init__(self, stub: WorkerAsyncStub, address: str, token: str | None = None) -> None:
        self._stub = stub
        self._metadata = bearer(token)
        self.address = address
        self.incarnation = 0
        self.epoch = 0  # of what this client has configured

    async def describe(self) -> worker_pb2.DescribeReply:
        """What the worker is; waits for one that is starting."""
        request = worker_pb2.DescribeRequest()
        try:
            reply = await self._stub.Describe(
                request, wait_for_ready=True, timeout=START_S, metadata=self._metadata
            )
        except aio.AioRpcError as error:
            raise self.explain(error) from None
        self.incarnation, self.epoch = reply.incarnation, reply.epoch
        return reply

    async def cpu_s(self) -> float:
        """CPU time of the worker's process so far."""
        return (await self.describe()).cpu_s

    async def configure(
        self, model_dir: Path, dtype: str, coverage: Coverage
    ) -> worker_pb2.ConfigureRequest:
        """Loads the model with a KV arena for the largest steps of `coverage`; returns what was asked for."""
        self.epoch += 1
        queries = coverage.decode_queries + coverage.encode_chunks + 1
        request = worker_pb2.ConfigureRequest(
            protocol=PROTOCOL,
            epoch=self.epoch,
            model_path=str(model_dir.resolve()),
            dtype=dtype,
            kv_tokens=coverage.kv_tokens + queries * GRANULE_TOKENS,
        )
        try:
            await self._stub.Configure(request, metadata=self._metadata)
        except aio.AioRpcError as error:
            raise self.explain(error) from None
        return request

    async def measure(
        self, steps: Sequence[DesignedStep], *, warm_up: int, seed: int
    ) -> list[worker_pb2.Measurement]:
        """One measurement a step, in order."""
        request = worker_pb2.MeasureRequest(
            shapes=[_shape(step) for step in steps], warm_up=warm_up, seed=seed
        )
        try:
            measured = self._stub.Measure(request, metadata=self._metadata)
            return [measurement async for measurement in measured]
        except aio.AioRpcError as error:
            raise self.explain(error) from None

    def run(self) -> Run:
        """A stream of steps."""
        return self._stub.Run(metadata=self._metadata)

    def explain(self, error: aio.AioRpcError) -> ExeGPTError:
        """What a call's failure means for whoever profiles."""
        text = message_of(error.details())
        match error.code():
            case grpc.StatusCode.INVALID_ARGUMENT:
                return InvalidSpec(f"worker at {self.address}", [text])
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return Unavailable(text)
            case code:
                return Unavailable(
                    f"the worker at {self.address} ended the profile "
                    f"({code.name.lower()}: {text}). Run again: it continues where it stopped."
                )


@asynccontextmanager
async def connected(address: str, token: str | None = None) -> AsyncIterator[ProfileClient]:
    """A client of the worker at `address`."""
    async with aio.insecure_channel(address, options=list(GRPC_OPTIONS)) as channel:
        yield ProfileClient(WorkerStub(channel), address, token)


def _shape(step: DesignedStep) -> worker_pb2.MeasuredShape:
    return worker_pb2.MeasuredShape(
        id=step.id,
        decode_contexts=step.decode_contexts,
        chunk_starts=step.chunk_starts,
        chunk_tokens=step.chunk_tokens,
        sample_chunks=step.sample_chunks,
    )
