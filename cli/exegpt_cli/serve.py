"""`exegpt serve`: workers and gateway on this machine, from the plan to the last stream.

The gateway runs in this process, on the cores that the workers do not use. The first SIGINT or SIGTERM drains: new
queries get 503, running streams finish; the second ends at once. Whatever happens, the workers are ended too. A
manifest that is edited meanwhile is followed in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from exegpt_cli import live
from exegpt_cli.cache import Cache
from exegpt_cli.follow import ManifestWatch, replanned
from exegpt_cli.foresee import foresee
from exegpt_cli.lifetime import end_with_parent, ending_cleanly, open_many_files
from exegpt_cli.local import Ready, as_planned, preparing, promise_of
from exegpt_cli.options import ServeOptions
from exegpt_cli.output import check_writable, fail, log_warnings, progress, say
from exegpt_cli.own_server import Announcement
from exegpt_cli.served import served_model
from exegpt_cli.summary import plan_text
from exegpt_cli.wanted import read_wanted
from exegpt_gateway.app import build_app
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.control import check_address, listening
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.served import ServedModel
from exegpt_gateway.server import serve as serve_http
from exegpt_gateway.steering import Foreseen, Steering
from exegpt_gateway.step_log import StepLog
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.errors import ExeGPTError, Unavailable
from exegpt_wire import worker_pb2
from exegpt_wire.token import read_token

DRAIN_S = 600.0  # the longest answer of a slow machine; a second signal does not wait
CALIBRATE_EVERY_S = 1.0  # under 1 % of the time, to know the machine's speed beside its profile
READY_POLL_S = 0.02
FOLLOW_EVERY_S = 1.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_serve(options: ServeOptions) -> None:
    """Serve until told to end."""
    if options.announce_fd is not None:
        end_with_parent(os.getppid())
    log_warnings()
    open_many_files()
    with ending_cleanly():
        check_port(options.host, options.port)
        if options.control is not None:
            token = None if options.control_token is None else read_token(options.control_token)
            check_address(options.control, has_token=token is not None)
        if options.step_log is not None:
            check_writable(options.step_log, "--step-log")
        cache = Cache.of_user()
        wanted = read_wanted(options.file, cache, strategy=options.strategy, probes=options.probes)
        name = wanted.deployment.spec.model.served_name
        served = served_model(wanted.folder, wanted.model, name)  # its faults come early too
        with preparing(wanted, cache) as ready:
            if options.announce_fd is None:
                say(plan_text(ready.plan))
            with _step_log(options.step_log) as step_log:
                asyncio.run(_Serving(ready, options, cache, step_log).run(served))


def check_port(host: str, port: int) -> None:
    """Raises `Unavailable` when nobody could listen there: before anything is measured."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = (error.strerror or str(error)).rstrip(".")
        raise Unavailable(
            f"cannot listen on {host} port {port}: {reason}. Stop what listens there, or choose another "
            "--host or --port."
        ) from None


@contextlib.contextmanager
def _step_log(path: Path | None) -> Iterator[StepLog | None]:
    if path is None:
        yield None
        return
    with StepLog(path) as log:
        yield log


class _Serving:
    """One gateway from its start to its end."""

    def __init__(
        self, ready: Ready, options: ServeOptions, cache: Cache, step_log: StepLog | None
    ) -> None:
        self._ready = ready
        self._cache = cache
        self._name = ready.wanted.deployment.spec.model.served_name
        self._options = options
        self._metrics = Metrics(CollectorRegistry(), promise_of(ready))
        self._conductor = Conductor(
            [
                WorkerLink(
                    each.address,
                    _configuration(ready),
                    token=ready.workers.token,
                    on_hung=each.restart,
                )
                for each in ready.workers.supervisors
            ],
            schedule=ready.plan.schedule,
            kv_tokens=ready.plan.kv_tokens_capacity,
            context=ready.wanted.model.context,
            max_waiting=options.max_waiting,
            metrics=self._metrics,
            step_log=step_log,
        )
        self._steering = Steering(
            self._conductor,
            ready.plan,
            model_fingerprint=ready.table.key.model_fingerprint,
            foresee=lambda plan, _: foresee(plan, ready.table, self._ready.wanted.workload),
        )
        self._stop = asyncio.Event()
        self._is_draining = False
        self._serving: asyncio.Future[None] | None = None
        self._conducting: asyncio.Task[None] | None = None

    async def run(self, served: ServedModel) -> None:
        """Serves until a signal, or until the worker is past saving."""
        app = build_app(self._conductor, served, self._metrics)
        loop = asyncio.get_running_loop()
        started_s = loop.time()

        def give_up() -> None:
            loop.call_soon_threadsafe(self._end_at_once)

        self._ready.workers.on_failure(give_up)
        conducting = self._conducting = asyncio.create_task(self._conductor.run())
        conducting.add_done_callback(lambda _: self._stop.set())
        beside = [asyncio.create_task(self._report()), asyncio.create_task(self._follow())]
        with self._signals(loop):
            try:
                await self._until_ready(conducting)
                async with self._control():
                    await self._serve(app)
            finally:
                for task in (*beside, conducting):
                    task.cancel()
                await asyncio.gather(*beside, conducting, return_exceptions=True)
        if (failure := self._ready.workers.failure) is not None:
            raise failure
        if not conducting.cancelled() and (error := conducting.exception()) is not None:
            raise error
        if self._options.announce_fd is None:
            whole = live.Window(self._metrics.registry)
            line = whole.line(loop.time() - started_s, self._steering.plan)
            say(line or "No answer was completed.")

    def _control(self) -> contextlib.AbstractAsyncContextManager[None]:
        options = self._options
        if options.control is None:
            return contextlib.nullcontext()
        token = None if options.control_token is None else read_token(options.control_token)
        return listening(self._steering, options.control, token=token)

    async def _until_ready(self, conducting: asyncio.Task[None]) -> None:
        """Until every worker holds the model; ends early when the conductor does."""
        with progress(f"Loading the weights of {self._name}"):
            conductor = self._conductor
            while not (conductor.ready and conductor.is_complete) and not conducting.done():
                await asyncio.sleep(READY_POLL_S)

    async def _serve(self, app: FastAPI) -> None:
        if self._stop.is_set():
            return
        serving = serve_http(
            app,
            self._options.host,
            self._options.port,
            on_started=self._started,
            stop=self._stop,
            drain_s=lambda: DRAIN_S,
        )
        self._serving = asyncio.ensure_future(serving)
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    def _started(self, host: str, port: int) -> None:
        ready, options = self._ready, self._options
        if options.announce_fd is None:
            say(live.invitation(host, port, self._name))
            return
        announcement = Announcement(
            host=host,
            port=port,
            model=self._name,
            vocab=ready.wanted.model.vocab,
            context=self._conductor.context,
            plan=ready.plan,
        )
        with os.fdopen(options.announce_fd, "w", encoding="utf-8") as pipe:
            pipe.write(announcement.model_dump_json() + "\n")

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in ENDING}
        for number in ENDING:
            loop.add_signal_handler(number, self._asked_to_end)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _asked_to_end(self) -> None:
        if self._is_draining:
            say("Ending at once.")
            self._end_at_once()
            return
        self._is_draining = True
        if self._options.announce_fd is None:
            say("Draining: running answers finish, new queries get 503. Ctrl-C again ends at once.")
        self._conductor.drain()
        self._stop.set()

    def _end_at_once(self) -> None:
        self._stop.set()
        for task in (self._serving, self._conducting):
            if task is not None:
                task.cancel()

    async def _report(self) -> None:
        """Prints predicted beside measured from time to time, when there was work."""
        if self._options.announce_fd is not None:
            return
        window = live.Window(self._metrics.registry)
        while True:
            await asyncio.sleep(self._options.report_every_s)
            line = window.line(self._options.report_every_s, self._steering.plan)
            if line is not None:
                say(line)

    async def _follow(self) -> None:
        """Works by the manifest as it is edited; what cannot be followed is said, and changes nothing."""
        options, watch = self._options, ManifestWatch(self._options.file)
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            if not watch.has_changed():
                continue
            try:
                await self._steering.replan(self._replanned)
            except ExeGPTError as error:
                say(f"{options.file} has changed, but the schedule stays as it is:")
                fail(error)
                continue
            text = plan_text(self._steering.plan)
            say(f"{options.file} has changed; in force from now:\n{text}")

    def _replanned(self) -> Foreseen:
        """The plan for the manifest as it is now."""
        options = self._options
        self._ready = replanned(
            self._ready,
            options.file,
            self._cache,
            strategy=options.strategy,
            probes=options.probes,
        )
        return as_planned(self._ready)


def _configuration(ready: Ready) -> worker_pb2.ConfigureRequest:
    return worker_pb2.ConfigureRequest(
        model_path=str(ready.wanted.folder),
        dtype=ready.wanted.deployment.spec.model.dtype,
        kv_tokens=ready.plan.kv_tokens_capacity,
        calibrate_every_s=CALIBRATE_EVERY_S,
    )
