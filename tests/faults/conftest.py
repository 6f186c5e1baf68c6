from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from exegpt_planner.schedule import OrcaSchedule
from faults.rig import LENGTHS, Load, Rig
from faults.workers import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import write_model  # loads torch

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def rig(nursery: Nursery, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Workers of one file's tests, which find them running and leave them so."""
    rig = Rig(nursery, model, tmp_path_factory.mktemp("rig"))
    yield rig
    for worker in rig.workers:
        worker.kill()


@pytest.fixture(scope="session")
def undisturbed(
    nursery: Nursery, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[list[int]]:
    """Each query's answer from one worker, with nothing else in its batch."""
    rig = Rig(nursery, model, tmp_path_factory.mktemp("undisturbed"))
    (worker,) = rig.up_to(1)

    async def run() -> list[list[int]]:
        async with rig.conducting([rig.link(worker)], OrcaSchedule(pool=1)) as conductor:
            return await Load(conductor).finished()

    try:
        answers = asyncio.run(run())
    finally:
        worker.kill()
    assert [len(answer) for answer in answers] == LENGTHS
    return answers
