"""Processes of the cluster: each with a log of its own, all ended by their pids."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

END_S = 10.0
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")  # however the tests end


class Dead(Exception):
    """A process ended, or did not become ready; its last lines say why."""


@dataclass(slots=True)
class Processes:
    """Those that were started, the first one first."""

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Starts one in a session of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*DIES_WITH_US, *(str(part) for part in command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, name: str, is_ready: Callable[[], bool], *, within_s: float = 60.0) -> None:
        """Until it is ready; raises `Dead`."""
        end_s = time.monotonic() + within_s
        while not is_ready():
            if self.running[name].poll() is not None:
                raise Dead(f"{name} ended: {self.tail(name)}")
            if time.monotonic() > end_s:
                raise Dead(f"{name} is not ready within {within_s:g} s: {self.tail(name)}")
            time.sleep(0.1)

    def tail(self, name: str) -> str:
        """The last lines of a log."""
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-8:])

    def stop(self, name: str) -> None:
        """Ends one, politely first."""
        process = self.running.pop(name)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()

    def stop_all(self) -> None:
        """Ends all, the last one first."""
        for name in reversed(list(self.running)):
            self.stop(name)
