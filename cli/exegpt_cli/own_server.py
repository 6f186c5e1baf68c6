"""A server of one's own for a load: `exegpt serve` as a child process, which says where it listens and what it planned.

A process apart, so that the load generator never competes for the gateway's interpreter; it yields the shared core to
the gateway by its niceness. The child ends with this process, however this one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

from exegpt_cli.lifetime import open_many_files
from exegpt_cli.placement import leave_to_workers, this_machine
from exegpt_planner.plan import Plan
from exegpt_planner.strict import StrictModel, parse

END_S = 30.0  # what a server without running answers gets to end; it needs about one second
MOST_WAITING = 1_000_000  # a saturated load must wait, not be refused
NICENESS = 5  # of the load generator, beside a gateway at 0


class Announcement(StrictModel):
    """What a server says of itself when it is ready."""

    version: Literal["exegpt.serving/v1"] = "exegpt.serving/v1"
    host: str
    port: int
    model: str  # the served name
    vocab: int
    context: int
    plan: Plan

    @property
    def url(self) -> str:
        """Of the OpenAI routes."""
        return f"http://{self.host}:{self.port}/v1"

    @property
    def metrics_url(self) -> str:
        """Of the Prometheus metrics."""
        return f"http://{self.host}:{self.port}/metrics"


class OwnServer:
    """`exegpt serve` for one manifest; a context manager that gives the announcement."""

    def __init__(self, file: Path, *, probes: float, strategy: str | None = None) -> None:
        self._options = ["-f", str(file), "--port", "0", "--probes", str(probes)]
        self._options += ["--max-waiting", str(MOST_WAITING)]
        if strategy is not None:
            self._options += ["--strategy", strategy]
        self._placement = this_machine()  # before this process leaves the worker's cores
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Announcement:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "exegpt_cli.main", "serve", *self._options]
        try:
            self._process = subprocess.Popen(
                [*command, "--announce-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # stdout is for the report alone
                pass_fds=(writing,),
                start_new_session=True,  # Ctrl-C in the terminal is ours to pass on
            )
        finally:
            os.close(writing)
        try:
            with os.fdopen(reading, encoding="utf-8") as pipe:
                line = pipe.readline()
            if not line:
                # It has said why on stderr already, and its exit code says what kind of fault it was.
                sys.exit(self._process.wait() or 1)
        except BaseException:
            self._end_at_once()
            raise
        leave_to_workers(self._placement)
        open_many_files()
        os.nice(NICENESS)
        return parse(Announcement, json.loads(line), source="exegpt serve")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._end_at_once()
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._end_at_once()

    def _end_at_once(self) -> None:
        """Without waiting for running answers; the server ends its worker either way."""
        if self._process is None:
            return
        for patience_s in (1.0, END_S):  # the second signal means: at once
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
                return
        self._process.kill()
        self._process.wait()
