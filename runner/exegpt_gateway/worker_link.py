"""The connection to one worker: described, configured under a new epoch, then a stream of steps and results.

`WorkerLost` means: connect again (the worker died, restarts, or hangs). `WorkerRefused` means that no retry helps. A
worker hangs when an iteration takes longer than

    Patience.floor_s + Patience.multiple * (longest time a packed token took so far) * (tokens of the step)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc import aio

from exegpt_planner.errors import Unavailable
from exegpt_wire import GRPC_OPTIONS, PROTOCOL, message_of, worker_pb2
from exegpt_wire.worker_pb2_grpc import WorkerStub

if TYPE_CHECKING:  # the stubs' name for an aio stub; it is no class at run time
    from exegpt_wire.worker_pb2_grpc import WorkerAsyncStub

T = TypeVar("T")

DESCRIBE_S = 10.0  # a worker answers it while it computes
CONFIGURE_S = 1800.0  # it loads the weights, perhaps over a network

# What the worker itself says when it understands the call and will not do it.
REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class WorkerLost(Unavailable):
    """The worker does not answer: it died, or is not up yet."""


class WorkerHung(WorkerLost):
    """The worker holds its connection but brings no result; someone must kill it."""


class WorkerRefused(Unavailable):
    """The worker answers and says no; trying again would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a result may take before its worker counts as hung."""

    floor_s: float = (
        60.0  # above any pause of a busy machine, and any first iteration on cold pages
    )
    multiple: float = 20.0  # of the time expected from the slowest iteration so far


@dataclass(slots=True)
class _Pace:
    """The longest time that a packed token has taken."""

    token_s: float = 0.0

    def note(self, result: worker_pb2.IterationResult) -> None:
        tokens = max(1, result.shape.tokens)
        self.token_s = max(self.token_s, result.clocks.wall_s / tokens)


@dataclass(slots=True)
class _Connection:
    channel: aio.Channel
    run: aio.StreamStreamCall[worker_pb2.Command, worker_pb2.IterationResult]
    reading: asyncio.Task[worker_pb2.IterationResult] | None = None  # begun while idle


class WorkerLink:
    """One worker at one address; `connect` as often as it is lost."""

    def __init__(
        self,
        address: str,
        configure: worker_pb2.ConfigureRequest,
        *,
        patience: Patience | None = None,
        on_hung: Callable[[], None] | None = None,
    ) -> None:
        """`configure` gives the model, layers, dtype and KV capacity; the link adds protocol, epoch and peers."""
        self.address = address
        self.worker: worker_pb2.DescribeReply | None = None  # as of the last connection
        self._configure = configure
        self._patience = patience or Patience()
        self._on_hung = on_hung
        self._pace = _Pace()
        self._connection: _Connection | None = None
        self._writing = asyncio.Lock()  # gRPC takes one write at a time
        self._epoch = 0

    async def connect(self) -> worker_pb2.ConfigureReply:
        """Describes and configures the worker under a new epoch and opens its stream of steps."""
        await self.close()
        channel = aio.insecure_channel(
            self.address,
            # A subchannel of our own: a shared one would sit out gRPC's back-off after the worker is up again.
            options=[*GRPC_OPTIONS, ("grpc.use_local_subchannel_pool", 1)],
        )
        try:
            stub = WorkerStub(channel)
            self.worker = await self._describe(stub)
            self._epoch = max(self._epoch, self.worker.epoch) + 1
            reply = await self._place(stub, self.worker.incarnation)
            run = stub.Run()
        except BaseException:
            await channel.close()
            raise
        self._connection = _Connection(channel, run)
        return reply

    async def send(self, command: worker_pb2.Command) -> None:
        """Sends a step or a drop."""
        connection = self._open()
        async with self._writing:
            try:
                await connection.run.write(command)
            except (aio.AioRpcError, asyncio.InvalidStateError) as error:
                raise self._lost(error) from None

    async def receive(self, tokens: int) -> worker_pb2.IterationResult:
        """The next result of a step that packs at most `tokens` into an iteration."""
        connection = self._open()
        patience = self._patience
        allowed_s = patience.floor_s + patience.multiple * self._pace.token_s * tokens
        reading, connection.reading = connection.reading, None
        try:
            async with asyncio.timeout(allowed_s):
                result = await (reading or _read(connection.run))
        except TimeoutError:
            raise self._hung(allowed_s) from None
        except aio.AioRpcError as error:
            raise self._lost(error) from None
        self._pace.note(result)
        return result

    async def broken(self) -> None:
        """Returns when the stream has something to say while no step is under way: it broke."""
        connection = self._open()
        if connection.reading is None:
            connection.reading = asyncio.ensure_future(_read(connection.run))
        await asyncio.wait((connection.reading,))

    async def close(self) -> None:
        """Closes the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.run.cancel()
        if connection.reading is not None:
            connection.reading.cancel()
            await asyncio.wait((connection.reading,))
            if not connection.reading.cancelled():
                connection.reading.exception()  # seen: it is why we close
        await connection.channel.close()

    async def _describe(self, stub: WorkerAsyncStub) -> worker_pb2.DescribeReply:
        reply = await self._call(stub.Describe(worker_pb2.DescribeRequest(), timeout=DESCRIBE_S))
        if reply.protocol != PROTOCOL:
            raise WorkerRefused(
                f"the worker at {self.address} speaks protocol {reply.protocol}, this gateway {PROTOCOL}. "
                "Run both from the same release."
            )
        return reply

    async def _place(self, stub: WorkerAsyncStub, incarnation: int) -> worker_pb2.ConfigureReply:
        request = worker_pb2.ConfigureRequest()
        request.CopyFrom(self._configure)
        request.protocol = PROTOCOL
        request.epoch = self._epoch
        del request.peers[:]
        request.peers.add(address=self.address, incarnation=incarnation)
        reply = await self._call(stub.Configure(request, timeout=CONFIGURE_S))
        if reply.kv_tokens < request.kv_tokens:
            raise WorkerRefused(
                f"the worker at {self.address} holds {reply.kv_tokens} KV tokens, the plan needs "
                f"{request.kv_tokens}. Plan again with less memory, or free memory on its device."
            )
        return reply

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except aio.AioRpcError as error:
            raise self._lost(error) from None

    def _open(self) -> _Connection:
        if self._connection is None:
            raise WorkerLost(f"no connection to the worker at {self.address}. Connect first.")
        return self._connection

    def _lost(self, error: aio.AioRpcError | asyncio.InvalidStateError) -> Unavailable:
        if not isinstance(error, aio.AioRpcError):
            return WorkerLost(f"the stream of the worker at {self.address} is over: {error}")
        said = f"{error.code().name.lower()}: {message_of(error.details())}"
        if error.code() in REFUSALS:
            return WorkerRefused(f"the worker at {self.address} refuses: {said}")
        return WorkerLost(f"the worker at {self.address} is lost: {said}")

    def _hung(self, allowed_s: float) -> WorkerHung:
        if self._on_hung is not None:
            self._on_hung()
        return WorkerHung(
            f"the worker at {self.address} brought no result for {allowed_s:.4g} s. Restart it."
        )


async def _read(
    run: aio.StreamStreamCall[worker_pb2.Command, worker_pb2.IterationResult],
) -> worker_pb2.IterationResult:
    """The next message; a stream that ends in good order is an error too, for it never should."""
    message = await run.read()
    if isinstance(message, worker_pb2.IterationResult):
        return message
    code, details = await run.code(), await run.details()
    status = grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.OK else code
    raise aio.AioRpcError(
        status, aio.Metadata(), aio.Metadata(), details=details or "the stream ended"
    )
