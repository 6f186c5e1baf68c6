"""Everything at once, from a seed: arrivals, cancelled clients, a small arena, and workers that die."""

from __future__ import annotations

import asyncio
import random

import pytest

from conductors import MakeWorker, Serve, build_conductor, restless_client
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
)
from fake_worker import FakeWorker

SCHEDULES: list[AnySchedule] = [
    RraSchedule(encode_batch=4, encode_interval=7),
    CraSchedule(pool=8, chunk_tokens=50),
    StaticSchedule(batch=4, early_termination=True),
    StaticSchedule(batch=4, early_termination=False),
    OrcaSchedule(pool=6),
]


async def trouble(worker: FakeWorker, rng: random.Random) -> None:
    """Kills the worker a few times."""
    for _ in range(3):
        await worker.reached(worker.iterations + rng.randint(1, 60))
        await worker.restart()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
)
async def test_every_client_gets_its_answer(
    make_worker: MakeWorker, serve: Serve, schedule: AnySchedule, seed: int
) -> None:
    rng = random.Random(seed)
    worker = await make_worker(kv_tokens=rng.randint(5, 16) * 64)
    conductor = build_conductor(worker, schedule)
    running = serve(conductor)
    clients = [asyncio.ensure_future(restless_client(conductor, rng, n)) for n in range(40)]
    killer = asyncio.ensure_future(trouble(worker, rng))
    await asyncio.gather(*clients)
    killer.cancel()
    assert len(worker.configured) >= 2, "no worker was lost"
    assert worker.dropped, "nobody left in time"

    conductor.drain()
    await asyncio.wait_for(running, 10)
