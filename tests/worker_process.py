"""A real worker process on a Unix socket, for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from exegpt_wire import GRPC_OPTIONS
from exegpt_wire.worker_pb2_grpc import WorkerStub


@dataclass(frozen=True)
class WorkerProcess:
    process: subprocess.Popen[bytes]
    address: str
    stub: WorkerStub


@contextmanager
def worker_process(
    folder: Path, arguments: Sequence[str] = ("--threads", "1")
) -> Iterator[WorkerProcess]:
    """A worker that is starting; calls with `wait_for_ready` wait for it."""
    address = f"unix://{folder / 'worker.sock'}"
    command = [sys.executable, "-m", "exegpt_runner.worker", "--listen", address, *arguments]
    with subprocess.Popen(command) as process:
        try:
            with grpc.insecure_channel(address, options=list(GRPC_OPTIONS)) as channel:
                yield WorkerProcess(process, address, WorkerStub(channel))
        finally:
            process.terminate()
