"""One worker process and one tiny model for all tests here; each test configures a newer epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exegpt_wire import PROTOCOL
from exegpt_wire import worker_pb2 as pb
from tiny_models import write_model
from worker_client import Configure, Stream
from worker_process import WorkerProcess, worker_process


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with worker_process(tmp_path_factory.mktemp("worker")) as process:
        process.stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=60)
        yield process


@pytest.fixture(scope="session")
def configure(worker: WorkerProcess, model_dir: Path) -> Configure:
    """Configures the tiny model under the next epoch; keywords override the request's fields."""
    epochs = itertools.count(1)

    def call(**fields: Any) -> pb.ConfigureReply:
        request = pb.ConfigureRequest(
            protocol=PROTOCOL,
            epoch=next(epochs),
            model_path=str(model_dir),
            dtype="float64",
            kv_tokens=2048,
        )
        request.MergeFrom(pb.ConfigureRequest(**fields))
        return worker.stub.Configure(request)

    return call


@pytest.fixture
def stream(worker: WorkerProcess, configure: Configure) -> Iterator[Stream]:
    """An open Run stream of a worker with room for 2048 KV tokens."""
    configure()
    with Stream.opened(worker.stub) as opened:
        yield opened
