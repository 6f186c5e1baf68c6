"""The real worker service in the test's process, and a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import torch

from cli_profile_server import CountingService, Server
from exegpt_cli.cache import Cache
from exegpt_cli.profiling import ProfileTarget
from exegpt_planner.model_spec import read_model_spec
from exegpt_wire import GRPC_OPTIONS, worker_pb2_grpc
from tiny_models import write_model


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    torch.set_num_threads(1)
    service = CountingService()
    address = f"unix://{tmp_path / 'worker.sock'}"
    running = grpc.server(ThreadPoolExecutor(max_workers=4), options=list(GRPC_OPTIONS))
    worker_pb2_grpc.add_WorkerServicer_to_server(service, running)
    running.add_insecure_port(address)
    running.start()
    yield Server(address, service, service.measured)
    running.stop(grace=None).wait()


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> ProfileTarget:
    folder = write_model(tmp_path_factory.mktemp("tiny"))
    return ProfileTarget(model_dir=folder, spec=read_model_spec(folder), dtype="float32")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")
