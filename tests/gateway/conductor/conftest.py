from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conductors import MakeWorker, Serve
from exegpt_gateway.conductor import Conductor
from fake_worker import FakeWorker


@pytest.fixture
async def make_worker(tmp_path: Path) -> AsyncIterator[MakeWorker]:
    """Starts fake workers, each on a socket of its own."""
    names = itertools.count()
    workers: list[FakeWorker] = []

    async def make(kv_tokens: int = 1 << 20) -> FakeWorker:
        worker = FakeWorker(tmp_path / f"worker{next(names)}.sock", kv_tokens=kv_tokens)
        workers.append(worker)
        await worker.start()
        return worker

    yield make
    for worker in workers:
        await worker.kill()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Runs conductors until the test ends."""
    running: list[asyncio.Task[None]] = []

    def start(conductor: Conductor) -> asyncio.Task[None]:
        running.append(asyncio.ensure_future(conductor.run()))
        return running[-1]

    yield start
    for task in running:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
