"""Servers of the comparison as child processes: where they run, when they are ready, how they end.

As `exegpt serve` places itself, so is every peer placed: what computes gets the worker's cores and as many threads,
what talks HTTP gets the others, which it shares with the load. A server ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from exegpt_cli.bench.client import Target
from exegpt_cli.placement import Placement
from peers import PeerUnavailable

START_S = 600.0  # vLLM compiles its model the first time
END_S = 15.0
SERVED_NAME = "model"
LAST_BYTES = 600  # of a server's own words, where it did not start

Computing = Literal["children", "main thread"]  # what of a server's process computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start a server; {port} stands for the port."""

    words: Sequence[str]
    computing: Computing
    environment: Mapping[str, str]


class Server:
    """One peer's server."""

    def __init__(self, command: Command, placement: Placement, log: Path) -> None:
        self._command, self._placement, self._log = command, placement, log
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> Target:
        """For `exegpt bench`'s client."""
        url = f"http://127.0.0.1:{self._port}/v1"
        return Target(url=url, model=SERVED_NAME, extensions=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Begin to start; `await_ready` waits for it."""
        words = [word.replace("{port}", str(self._port)) for word in self._command.words]
        threads = str(self._placement.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*on_cores(self._placement.worker_cores[0] + self._placement.other_cores), *words],
                env=environment | dict(self._command.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_ready(self) -> None:
        """Until it answers, on its cores; raises `PeerUnavailable` with its last words if it never will."""
        url = f"http://127.0.0.1:{self._port}/health"
        until = time.monotonic() + START_S
        assert self._process is not None
        while not _answers(url):
            if self._process.poll() is not None or time.monotonic() > until:
                self.end()
                raise PeerUnavailable(f"the server did not start: ... {self._last_words()}")
            time.sleep(0.2)
        self.place()

    def place(self) -> None:
        """What computes onto the worker's cores, the rest onto the others."""
        process = psutil.Process(self.pid)
        children = process.children(recursive=True)
        worker, other = self._placement.worker_cores[0], self._placement.other_cores
        computes = self._command.computing == "children"
        for each in children:
            _pin(each, worker)
        _pin(process, other)
        if not computes:
            os.sched_setaffinity(self.pid, worker)  # the main thread alone

    def end(self) -> None:
        """The server and what it started."""
        if self._process is not None:
            end(self._process)

    def _last_words(self) -> str:
        return self._log.read_bytes()[-LAST_BYTES:].decode(errors="replace").strip()


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process started in a session of its own, and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children that outlived it


def on_cores(cores: Sequence[int]) -> list[str]:
    """Words before a command: these cores, and the end with whoever started it."""
    return ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", ",".join(map(str, sorted(cores)))]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _pin(process: psutil.Process, cores: Sequence[int]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False
