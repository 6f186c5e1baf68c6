"""The worker's gRPC service: it holds weights and KV, runs what it is told in order, and knows no policy.

One user of the engine at a time: a Run stream or a Measure call. `Configure` with a newer epoch ends the user there
is and takes its place; an older epoch is refused. Errors of the input come back as a gRPC status with their text;
ABORTED says one thing only: a newer conductor's epoch is in force.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypedDict

import grpc
import torch

from exegpt_planner.errors import ExeGPTError, InvalidSpec
from exegpt_runner import identity
from exegpt_runner.clocks import CalibrationKernel
from exegpt_runner.engine import Engine
from exegpt_runner.hand_over import Exchange
from exegpt_runner.inbox import Inbox, News
from exegpt_runner.kv_arena import round_up
from exegpt_runner.kv_transfer.arrived import Receiving
from exegpt_runner.kv_transfer.receiver import Landing
from exegpt_runner.kv_transfer.sender import Sender, Sending
from exegpt_runner.loading import Loaded, OutOfMemory, check_memory, load
from exegpt_runner.measure import measure
from exegpt_runner.steps import StepRunner
from exegpt_wire import EPOCH_KEY, PROTOCOL, worker_pb2_grpc
from exegpt_wire import worker_pb2 as pb


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """One device's worker."""

    def __init__(
        self,
        *,
        threads: int,
        token: str | None = None,
        on_serving: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`on_serving` is told when a conductor's stream of steps begins and ends."""
        self.landing = Landing(on_news=self._wake)
        self._sender = Sender(token, on_news=self._wake)
        self._inbox: Inbox | None = None
        self._threads = threads
        self._on_serving = on_serving
        self._incarnation = secrets.randbits(64)
        self._kernel = CalibrationKernel(threads=threads)
        self._engine_free = threading.Lock()
        self._is_stopping = False
        self._state = threading.Lock()  # guards the three below
        self._newest_epoch = 0
        self._end_user: Callable[[], None] | None = None
        self._configured: pb.ConfigureRequest | None = None
        self._loaded: Loaded | None = None
        self._engine: Engine | None = None

    def Describe(  # noqa: N802 (the stub's name)
        self,
        request: pb.DescribeRequest,  # noqa: ARG002 (the stub's signature)
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.DescribeReply:
        return pb.DescribeReply(
            protocol=PROTOCOL,
            incarnation=self._incarnation,
            epoch=self._configured.epoch if self._configured else 0,
            device=identity.device(),
            memory_bytes=identity.memory_bytes(),
            threads=self._threads,
            versions=identity.versions(),
            cpu_s=time.process_time(),
        )

    def Configure(  # noqa: N802 (the stub's name)
        self, request: pb.ConfigureRequest, context: grpc.ServicerContext
    ) -> pb.ConfigureReply:
        with _errors_as_status(context):
            _check_supported(request)
        self._check_addressee(request, context)
        self._claim(request, context)
        with self._engine_free, _errors_as_status(context):
            if request.epoch < self._newest_epoch:
                self._refuse_epoch(request.epoch, context)
            if request != self._configured:
                self._place(request)
            return self._reply()

    def Run(  # noqa: N802 (the stub's name)
        self, request_iterator: Iterator[pb.Command], context: grpc.ServicerContext
    ) -> Iterator[pb.IterationResult]:
        self._check_epoch(context)
        inbox = Inbox(request_iterator)
        with self._use(context, inbox.close) as engine:
            self._inbox = inbox
            self.landing.serve(self._receiving(engine))
            context.send_initial_metadata(())  # says that KV may come
            self._on_serving(True)
            try:
                yield from self._serve(engine, inbox, context)
            finally:
                self._on_serving(False)
                self._inbox = None
                self.landing.close()
                engine.reset()
        if inbox.is_closed:
            self._say_why_ended(context)

    def Measure(  # noqa: N802 (the stub's name)
        self, request: pb.MeasureRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Measurement]:
        ended = threading.Event()
        with self._use(context, ended.set) as engine:
            try:
                with _errors_as_status(context):
                    for measurement in measure(request, engine, self._kernel):
                        yield measurement
                        if ended.is_set():
                            break
            finally:
                engine.reset()
        if ended.is_set():
            self._say_why_ended(context)

    def stop(self) -> None:
        """Makes the Run stream or Measure call there is end after its iteration: the process ends."""
        self._is_stopping = True
        self._end()

    def _end(self) -> None:
        if self._end_user is not None:
            self._end_user()

    def _say_why_ended(self, context: grpc.ServicerContext) -> None:
        """Tells a conductor that is still there whether to come back."""
        if not context.is_active():
            return
        if self._is_stopping:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is ending")
        context.abort(grpc.StatusCode.ABORTED, f"epoch {self._newest_epoch} was configured")

    def _serve(
        self, engine: Engine, inbox: Inbox, context: grpc.ServicerContext
    ) -> Iterator[pb.IterationResult]:
        assert self._configured is not None  # _use hands out a configured engine only
        exchange = Exchange(self._sender, self.landing, self._sending())
        runner = StepRunner(engine, exchange, self._kernel, self._configured.calibrate_every_s)
        while (event := runner.next_event(inbox)) is not None:
            if isinstance(event, News):
                yield from runner.news()
                continue
            with _errors_as_status(context):
                for result in runner.run(event, inbox.take_drops):
                    yield result
                    if inbox.is_closed:
                        return

    def _wake(self) -> None:
        inbox = self._inbox
        if inbox is not None:
            inbox.wake()

    def _sending(self) -> Sending:
        assert self._loaded is not None
        return Sending(**_kind(self._loaded))

    def _receiving(self, engine: Engine) -> Receiving:
        """What may arrive: at most as much as the arena holds, where the conductor keeps room for it."""
        assert self._loaded is not None
        assert self._configured is not None
        token_bytes = self._loaded.spec.kv_bytes_per_token(self._loaded.dtype)
        return Receiving(
            **_kind(self._loaded),
            incarnation=self._incarnation,
            epoch=self._configured.epoch,
            capacity_bytes=engine.kv_capacity * token_bytes,
        )

    @contextmanager
    def _use(self, context: grpc.ServicerContext, end: Callable[[], None]) -> Iterator[Engine]:
        """The engine, for one call alone; `end` is called when the call must end."""
        if not self._engine_free.acquire(blocking=False):
            problem = "the worker is in use by another stream; Configure with a newer epoch first"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        try:
            if self._engine is None or self._configured is None:
                problem = "the worker holds no model; Configure it first"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
            if self._configured.epoch != self._newest_epoch:  # Configure waits for the engine
                context.abort(grpc.StatusCode.ABORTED, "a newer epoch is being configured")
            with self._state:
                self._end_user = end
            context.add_callback(end)
            yield self._engine
        finally:
            with self._state:
                self._end_user = None
            self._engine_free.release()

    def _check_addressee(self, request: pb.ConfigureRequest, context: grpc.ServicerContext) -> None:
        """Refuses what was meant for an earlier process at this address; describing again helps."""
        meant = request.peers[0].incarnation if request.peers else self._incarnation
        if meant != self._incarnation:
            problem = f"incarnation {meant} is gone; this worker is {self._incarnation}"
            context.abort(grpc.StatusCode.UNAVAILABLE, problem)

    def _check_epoch(self, context: grpc.ServicerContext) -> None:
        """Refuses the stream of a conductor that has been overtaken since its Configure."""
        given = dict(context.invocation_metadata()).get(EPOCH_KEY)
        if given is not None and given != str(self._newest_epoch):
            problem = f"epoch {given!s} is not {self._newest_epoch}, which this worker follows"
            context.abort(grpc.StatusCode.ABORTED, problem)

    def _claim(self, request: pb.ConfigureRequest, context: grpc.ServicerContext) -> None:
        """Makes this epoch the newest and ends the engine's user; older epochs are refused."""
        with self._state:
            is_repeated = request.epoch == self._newest_epoch and request == self._configured
            if request.epoch <= self._newest_epoch and not is_repeated:
                self._refuse_epoch(request.epoch, context)
            self._newest_epoch = request.epoch
            if not is_repeated:
                self._end()

    def _refuse_epoch(self, epoch: int, context: grpc.ServicerContext) -> NoReturn:
        problem = (
            f"epoch {epoch} is not newer than {self._newest_epoch}, which this worker follows; "
            "configure with a larger one"
        )
        context.abort(grpc.StatusCode.ABORTED, problem)

    def _place(self, request: pb.ConfigureRequest) -> None:
        self._engine = self._configured = None  # frees the arena before the next is allocated
        if self._loaded is None or not self._loaded.serves(request):
            self._loaded = None
            self._loaded = load(request)
        check_memory(self._loaded, request.kv_tokens)
        try:
            self._engine = Engine(self._loaded.model, round_up(request.kv_tokens))
        except RuntimeError as error:  # torch has no narrower class on a CPU
            problem = f"no memory for {request.kv_tokens} KV tokens: {error}. Lower kv_tokens."
            raise OutOfMemory(problem) from error
        self._configured = request

    def _reply(self) -> pb.ConfigureReply:
        assert self._loaded is not None
        assert self._configured is not None
        assert self._engine is not None
        return pb.ConfigureReply(
            incarnation=self._incarnation,
            epoch=self._configured.epoch,
            kv_tokens=self._engine.kv_capacity,
            weight_bytes=self._loaded.weight_bytes,
            model_fingerprint=self._loaded.spec.fingerprint,
            weights_digest=self._loaded.digest,
        )


class _Kind(TypedDict):
    """What KV is of; sender and receiver must agree."""

    model_fingerprint: str
    weights_digest: str
    dtype: torch.dtype
    num_kv_heads: int
    head_dim: int
    first_layer: int
    num_layers: int


def _kind(loaded: Loaded) -> _Kind:
    spec = loaded.spec
    return _Kind(
        model_fingerprint=spec.fingerprint,
        weights_digest=loaded.digest,
        dtype=loaded.model.dtype,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        first_layer=0,
        num_layers=spec.num_layers,
    )


def _check_supported(request: pb.ConfigureRequest) -> None:
    problems = []
    if request.protocol != PROTOCOL:
        problems.append(
            f"protocol: {request.protocol} is not this worker's {PROTOCOL}; use one version of exegpt"
        )
    if request.epoch == 0:
        problems.append("epoch: must be at least 1")
    if request.kv_tokens == 0:
        problems.append("kv_tokens: must be at least 1")
    if request.first_layer != 0:
        problems.append("first_layer: one worker holds all layers of the model")
    if len(request.peers) > 1:
        problems.append(f"peers: {len(request.peers)} given; this worker works alone")
    if problems:
        raise InvalidSpec("Configure", problems)


@contextmanager
def _errors_as_status(context: grpc.ServicerContext) -> Iterator[None]:
    """Turns errors of the input into a gRPC status that carries their text."""
    try:
        yield
    except OutOfMemory as error:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
    except ExeGPTError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
