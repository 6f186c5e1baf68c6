"""Keeps one worker process alive: starts it, waits until it answers, starts it again when it dies, ends it at last.

A thread of its own does all of it, for two reasons of Linux's: a worker asked to die with its parent dies with the
*thread* that started it, and it may only use the cores of that thread, which the rest of this process leaves to the
worker. Ends only what it started, by its handle. After repeated early deaths it gives up: `failure` then says why.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import grpc

from exegpt_cli.placement import leave_to_workers, place
from exegpt_planner.errors import Unavailable
from exegpt_wire import GRPC_OPTIONS, worker_pb2
from exegpt_wire.token import bearer
from exegpt_wire.worker_pb2_grpc import WorkerStub

BACK_OFF_S = (0.2, 1.0, 3.0)  # before each next start
MAX_EARLY_DEATHS = 3  # in a row; then something is wrong that no restart mends
STEADY_S = 60.0  # a worker that lived this long did not die early
END_S = 5.0  # what a worker gets to end by itself
SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 107
RECONNECT_SOON = (
    ("grpc.initial_reconnect_backoff_ms", 50),  # the worker is up any moment; the default is 1 s
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
)
LOG_LINES = 8  # of a dead worker's own words, in the error


class Supervisor:
    """One worker process and its successors, all at one address; a context manager."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        token: str | None = None,
        on_failure: Callable[[], None] = lambda: None,
        back_off_s: Sequence[float] = BACK_OFF_S,
    ) -> None:
        self.failure: Unavailable | None = None
        self.on_failure = on_failure  # called in the supervisor's thread
        self._command = tuple(command)
        self._metadata = bearer(token)
        self._back_off_s = tuple(back_off_s)
        self._cores = os.sched_getaffinity(0)
        self._folder = Path(_short_folder())
        self.address = f"unix://{self._folder / 'worker.sock'}"
        self._thread = threading.Thread(target=self._keep_alive, name="supervisor", daemon=True)
        self._settled = threading.Event()  # the first worker answered, or all hope is lost
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards _process against a stop between start and note
        self._process: subprocess.Popen[bytes] | None = None
        self._described: worker_pb2.DescribeReply | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Begin to keep a worker alive; `stop` ends it."""
        self._thread.start()
        return self

    @property
    def pid(self) -> int | None:
        """The present worker's process."""
        process = self._process
        return None if process is None else process.pid

    def described(self) -> worker_pb2.DescribeReply:
        """What the first worker said of itself, once it answers; raises if it never will."""
        self._settled.wait()
        if self.failure is not None:
            raise self.failure
        assert self._described is not None, "settled without a worker or a failure"
        return self._described

    def restart(self) -> None:
        """Kill the present worker, which hangs; the next one is started."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def ask_to_stop(self) -> None:
        """Have the worker end, without waiting for it."""
        self._stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()

    def stop(self) -> None:
        """End the worker and forget its files; no process is left when this returns."""
        self.ask_to_stop()
        if self._thread.ident is not None:
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep_alive(self) -> None:
        leave_to_workers(place(sorted(self._cores)))  # gRPC starts threads of its own from this one
        early_deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            process = self._start()
            if process is None:
                break
            self._await_answer(process)
            self._await_end(process)
            if self._stopping.is_set():
                break
            early_deaths = early_deaths + 1 if time.monotonic() < started + STEADY_S else 1
            if early_deaths >= MAX_EARLY_DEATHS:
                self._give_up(process)
                break
            self._stopping.wait(self._back_off_s[min(early_deaths, len(self._back_off_s)) - 1])
        self._settled.set()

    def _start(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            (self._folder / "worker.sock").unlink(missing_ok=True)
            own_cores = os.sched_getaffinity(0)  # of this thread
            os.sched_setaffinity(0, self._cores)  # the worker inherits them and picks its own
            try:
                with (self._folder / "worker.log").open("wb") as log:
                    self._process = subprocess.Popen(
                        [*self._command, self.address],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # Ctrl-C in the terminal is ours to pass on
                    )
            finally:
                os.sched_setaffinity(0, own_cores)
            return self._process

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        """Until the worker describes itself, ends, or is no longer wanted."""
        options = [*GRPC_OPTIONS, *RECONNECT_SOON]
        with grpc.insecure_channel(self.address, options=options) as channel:
            stub = WorkerStub(channel)
            while process.poll() is None and not self._stopping.is_set():
                try:
                    request = worker_pb2.DescribeRequest()
                    reply = stub.Describe(request, timeout=1.0, metadata=self._metadata)
                except grpc.RpcError:
                    self._stopping.wait(0.05)
                    continue
                self._described = self._described or reply
                self._settled.set()
                return

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
                return
        try:
            process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        said = self._last_words()
        self.failure = Unavailable(
            f"the worker ended {MAX_EARLY_DEATHS} times in a row, the last time with {_ending(process)}."
            + (f" It said:\n{said}" if said else " It said nothing.")
            + "\nFree memory if it was killed; otherwise mend what it says and start again."
        )
        self.on_failure()

    def _last_words(self) -> str:
        text = (self._folder / "worker.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  {line[:200]}" for line in text.splitlines()[-LOG_LINES:])


def _short_folder() -> str:
    """A new folder only we may enter, with a path short enough for a socket in it."""
    folder = tempfile.mkdtemp(prefix="exegpt-")
    if len(os.fsencode(folder)) + len("/worker.sock") <= SOCKET_PATH_MAX:
        return folder
    Path(folder).rmdir()
    return tempfile.mkdtemp(prefix="exegpt-", dir="/tmp")


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
