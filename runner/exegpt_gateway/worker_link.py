"""The connection to one worker: described, configured under a new epoch, then a stream of steps and results.

`WorkerLost` means: connect again (the worker died, restarts, or hangs). `WorkerRefused` means that no retry helps;
`TakenOver` that a newer conductor has the worker.

Epochs say who is newer. A conductor's first one is the time it was made, in ns since 1970, or follows what it finds at
the worker if that is larger; each connection takes the next. A worker whose epoch is larger than any of ours has been
configured by a newer conductor: we give up, so that two never take a worker from each other in turn.

A process that is stopped answers no ping: its connection counts as lost after PING_EVERY_S + PING_ANSWER_S, and as it
does not describe itself within DESCRIBE_S either, it is reported as hung. One that runs but brings no result hangs when
an iteration takes longer than

    Patience.floor_s + Patience.multiple * (longest time a packed token took so far) * (tokens of the step)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from exegpt_planner.errors import Unavailable
from exegpt_wire import EPOCH_KEY, GRPC_OPTIONS, PROTOCOL, message_of, worker_pb2
from exegpt_wire.token import bearer
from exegpt_wire.worker_pb2_grpc import WorkerStub

if TYPE_CHECKING:  # the stubs' name for an aio stub; it is no class at run time
    from exegpt_wire.worker_pb2_grpc import WorkerAsyncStub

PING_EVERY_S = 2.0
PING_ANSWER_S = 3.0  # a worker's transport answers while it computes
# And so does it this; sooner than a new connection's pings can fail, which would pass for a process that is dead.
DESCRIBE_S = 4.0
CONFIGURE_S = 1800.0  # it loads the weights, perhaps over a network

_PINGS = (
    ("grpc.keepalive_time_ms", int(1000 * PING_EVERY_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * PING_ANSWER_S)),
    (
        "grpc.http2.ping_timeout_ms",
        int(1000 * PING_ANSWER_S),
    ),  # a minute, whatever the line above says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

# What the worker itself says when it understands the call and will not do it. ABORTED it says to older epochs only.
REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


class WorkerLost(Unavailable):
    """The worker does not answer: it died, or is not up yet."""


class WorkerHung(WorkerLost):
    """The worker holds its connection but brings no result; someone must kill it."""


class WorkerRefused(Unavailable):
    """The worker answers and says no; trying again would not help."""


class TakenOver(WorkerRefused):
    """The worker obeys a newer conductor; this one must leave it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a result may take before its worker counts as hung."""

    floor_s: float = (
        60.0  # above any pause of a busy machine, and any first iteration on cold pages
    )
    multiple: float = 20.0  # of the time expected from the slowest iteration so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is, and which of its lives and configurations is meant."""

    address: str
    incarnation: int
    epoch: int


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
        token: str | None = None,
        patience: Patience | None = None,
        on_hung: Callable[[], None] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`configure` gives the model, layers, dtype and KV capacity; the link adds protocol, epoch and peers."""
        self.address = address
        self.worker: worker_pb2.DescribeReply | None = None  # as of the last connection
        self._metadata = bearer(token)
        self._configure = configure
        self._patience = patience or Patience()
        self._on_hung = on_hung
        self._pace = _Pace()
        self._connection: _Connection | None = None
        self._writing = asyncio.Lock()  # gRPC takes one write at a time
        self._epoch = 0  # the latest that we configured, or tried to
        self._first_epoch = now_ns()

    @property
    def place(self) -> Place:
        """The worker as it is connected."""
        assert self.worker is not None, "never connected"
        return Place(address=self.address, incarnation=self.worker.incarnation, epoch=self._epoch)

    async def connect(self) -> worker_pb2.ConfigureReply:
        """Describes and configures the worker under a new epoch and opens its stream of steps."""
        await self.close()
        channel = aio.insecure_channel(
            self.address,
            # A subchannel of our own: a shared one would sit out gRPC's back-off after the worker is up again.
            options=[*GRPC_OPTIONS, *_PINGS, ("grpc.use_local_subchannel_pool", 1)],
        )
        try:
            stub = WorkerStub(channel)
            self.worker = await self._describe(stub)
            self._epoch = self._next_epoch(self.worker.epoch)
            reply = await self._place(stub, self.worker.incarnation)
            run = await self._start(stub)
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
            raise self._hung("brought no result", allowed_s) from None
        except aio.AioRpcError as error:
            raise self._lost(error) from None
        self._pace.note(result)
        return result

    async def heard(self) -> None:
        """Returns when the stream has something to say while no step is under way: news, or it broke."""
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
        request = worker_pb2.DescribeRequest()
        try:
            reply = await stub.Describe(request, timeout=DESCRIBE_S, metadata=self._metadata)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._hung("did not describe itself", DESCRIBE_S) from None
            raise self._lost(error) from None
        if reply.protocol != PROTOCOL:
            raise WorkerRefused(
                f"the worker at {self.address} speaks protocol {reply.protocol}, this gateway {PROTOCOL}. "
                "Run both from the same release."
            )
        return reply

    def _next_epoch(self, found: int) -> int:
        """What to configure a worker with that has epoch `found`; raises `TakenOver` if that is not of us or older."""
        if not self._epoch:
            return max(self._first_epoch, found + 1)
        if found > self._epoch:
            raise self._taken_over(f"it has epoch {found}, ours is {self._epoch}")
        return self._epoch + 1

    async def _place(self, stub: WorkerAsyncStub, incarnation: int) -> worker_pb2.ConfigureReply:
        request = worker_pb2.ConfigureRequest()
        request.CopyFrom(self._configure)
        request.protocol = PROTOCOL
        request.epoch = self._epoch
        del request.peers[:]
        request.peers.add(address=self.address, incarnation=incarnation)
        try:
            reply = await stub.Configure(request, timeout=CONFIGURE_S, metadata=self._metadata)
        except aio.AioRpcError as error:
            raise self._lost(error) from None
        if reply.kv_tokens < request.kv_tokens:
            raise WorkerRefused(
                f"the worker at {self.address} holds {reply.kv_tokens} KV tokens, the plan needs "
                f"{request.kv_tokens}. Plan again with less memory, or free memory on its device."
            )
        return reply

    async def _start(
        self, stub: WorkerAsyncStub
    ) -> aio.StreamStreamCall[worker_pb2.Command, worker_pb2.IterationResult]:
        """The stream of steps, once the worker serves it: from then on KV lands there."""
        run = stub.Run(metadata=(*self._metadata, (EPOCH_KEY, str(self._epoch))))
        try:
            async with asyncio.timeout(DESCRIBE_S):
                await run.initial_metadata()
                if run.done():
                    await _read(run)  # raises why
        except TimeoutError:
            raise self._hung("did not begin to serve", DESCRIBE_S) from None
        except aio.AioRpcError as error:
            raise self._lost(error) from None
        return run

    def _open(self) -> _Connection:
        if self._connection is None:
            raise WorkerLost(f"no connection to the worker at {self.address}. Connect first.")
        return self._connection

    def _lost(self, error: aio.AioRpcError | asyncio.InvalidStateError) -> Unavailable:
        if not isinstance(error, aio.AioRpcError):
            return WorkerLost(f"the stream of the worker at {self.address} is over: {error}")
        said = f"{error.code().name.lower()}: {message_of(error.details())}"
        if error.code() is grpc.StatusCode.ABORTED:
            return self._taken_over(message_of(error.details()))
        if error.code() in REFUSALS:
            return WorkerRefused(f"the worker at {self.address} refuses: {said}")
        return WorkerLost(f"the worker at {self.address} is lost: {said}")

    def _taken_over(self, said: str) -> TakenOver:
        return TakenOver(
            f"a newer conductor has taken over the worker at {self.address}: {said}. "
            "Send queries there; of the conductors of a worker only the newest serves."
        )

    def _hung(self, problem: str, allowed_s: float) -> WorkerHung:
        if self._on_hung is not None:
            self._on_hung()
        return WorkerHung(
            f"the worker at {self.address} {problem} for {allowed_s:.4g} s. Restart it."
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
