"""This machine's workers: a process each, kept alive, with a token that only this deployment's calls carry."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from exegpt_cli.placement import Placement
from exegpt_cli.supervisor import Supervisor
from exegpt_planner.errors import Unavailable
from exegpt_wire import worker_pb2

TOKEN_BYTES = 32
NICENESS = 10  # of a worker that shares a core with the gateway


def worker_command(placement: Placement, worker: int, token_file: Path) -> list[str]:
    """Starts one worker; the address to listen on is appended."""
    cores = ",".join(str(core) for core in placement.worker_cores[worker])
    options = ["--cpus", cores, "--threads", str(placement.threads)]
    options += ["--die-with-parent", str(os.getpid()), "--token-file", str(token_file)]
    if placement.yields(worker) and placement.num_workers > 1:
        options += ["--nice", str(NICENESS)]
    return [sys.executable, "-m", "exegpt_runner.worker", *options, "--listen"]


class Workers:
    """All workers of one placement; a context manager."""

    def __init__(
        self,
        placement: Placement,
        command: Callable[[Placement, int, Path], list[str]] = worker_command,
    ) -> None:
        self.placement = placement
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._folder = Path(tempfile.mkdtemp(prefix="exegpt-"))  # only we may enter
        token_file = self._folder / "token"
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            f.write(self.token)
        self.supervisors = tuple(
            Supervisor(command(placement, worker, token_file), token=self.token)
            for worker in range(placement.num_workers)
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Begin to keep the workers alive; `stop` ends them."""
        for each in self.supervisors:
            each.start()
        return self

    def stop(self) -> None:
        """End the workers; no process is left when this returns."""
        for each in self.supervisors:
            each.ask_to_stop()
        for each in self.supervisors:
            each.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where they listen."""
        return tuple(each.address for each in self.supervisors)

    def described(self) -> tuple[worker_pb2.DescribeReply, ...]:
        """What each said of itself, once all answer; raises if one never will."""
        return tuple(each.described() for each in self.supervisors)

    @property
    def failure(self) -> Unavailable | None:
        """Why a worker can no longer be kept alive, if that is so."""
        return next((each.failure for each in self.supervisors if each.failure), None)

    def on_failure(self, call: Callable[[], None]) -> None:
        """Calls `call`, from another thread, when a worker can no longer be kept alive."""
        for each in self.supervisors:
            each.on_failure = call
