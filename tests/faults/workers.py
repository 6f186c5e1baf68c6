"""Real worker processes that a test may kill, stop, and start again at the same address."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

END_S = 10.0  # what a killed process gets to be gone


class Nursery:
    """Starts workers quickly; a context manager that ends them all."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).parent / "nursery.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    @property
    def pid(self) -> int:
        """Its own: the parent of those it starts."""
        return self._process.pid

    def start(self, arguments: Sequence[str]) -> int:
        """The process id of a new worker."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def close(self) -> None:
        """Ends it, and with it every worker."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@dataclass
class Worker:
    """One worker's address, and the process that is there now."""

    nursery: Nursery
    socket: Path
    options: Sequence[str] = ()
    starts: int = 0
    pid: int = 0
    _handle: int = field(default=-1, repr=False)  # of the process, so that no other is ever meant

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    @property
    def command(self) -> list[str]:
        parent = str(self.nursery.pid)
        options = ["--threads", "1", "--die-with-parent", parent, *self.options]
        return ["--listen", self.address, *options]

    def start(self) -> None:
        """Starts it, by fork."""
        self._keep(self.nursery.start(self.command))

    def start_cold(self) -> subprocess.Popen[bytes]:
        """Starts it as a user would, loading torch."""
        process = subprocess.Popen([sys.executable, "-m", "exegpt_runner.worker", *self.command])
        self._keep(process.pid)
        return process

    def signal(self, number: signal.Signals) -> None:
        """Sends its process a signal."""
        signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """Ends its process at once and waits until it is gone."""
        if self._handle < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        assert select.select([self._handle], [], [], END_S)[0], f"{self.pid} outlives SIGKILL"
        os.close(self._handle)
        self._handle = -1

    def restart(self) -> None:
        """Kills its process and starts the next."""
        self.kill()
        self.start()

    def _keep(self, pid: int) -> None:
        self.pid, self._handle = pid, os.pidfd_open(pid)
        self.starts += 1
