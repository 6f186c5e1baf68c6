"""The conductor and the real worker process, tiny model in float64: whatever happens, greedy tokens are the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from cli.tables import promise
from conductors import collect_all, greedy
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.policies import EXTENT_TOKENS
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
)
from exegpt_wire import worker_pb2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PROMPTS = [[3 + (7 * n + step) % 90 for step in range(5 + 9 * n)] for n in range(8)]
LENGTHS = [1, 40, 7, 90, 23, 60, 12, 75]


class Process:
    """A worker process that can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "worker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        command = [sys.executable, "-m", "exegpt_runner.worker", "--listen", self.address]
        self._process = subprocess.Popen(
            [*command, "--threads", "1", "--die-with-parent", str(os.getpid())]
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import write_model  # loads torch

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    worker = Process(tmp_path_factory.mktemp("worker"))
    worker.start()
    yield worker
    worker.kill()


async def run(
    process: Process,
    model: Path,
    schedule: AnySchedule,
    *,
    kv_tokens: int = 64 * 64,
    registry: CollectorRegistry | None = None,
    kill_after: int | None = None,
    then: Sequence[AnySchedule] = (),
) -> list[list[int]]:
    """All answers; schedules `then` follow one another.

    The worker is killed and restarted once so many tokens of the longest have come.
    """
    configure = worker_pb2.ConfigureRequest(
        model_path=str(model), dtype="float64", kv_tokens=kv_tokens
    )
    conductor = Conductor(
        [WorkerLink(process.address, configure)],
        schedule=schedule,
        kv_tokens=kv_tokens,
        context=512,
        max_waiting=100,
        metrics=Metrics(registry or CollectorRegistry(), promise()),
    )
    longest = LENGTHS.index(max(LENGTHS))
    streams = [
        conductor.submit(prompt, greedy(length))
        for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
    ]
    running = asyncio.ensure_future(conductor.run())
    begun: list[int] = []
    if kill_after is not None:
        async for event in streams[longest]:
            begun.append(event.token)
            if len(begun) == kill_after:
                break
        process.kill()
        process.start()
    for schedule in then:  # each after ten more tokens of the longest answer
        begun += [(await anext(streams[longest])).token for _ in range(10)]
        conductor.reschedule(schedule, promise())
    answers = await collect_all(streams)
    conductor.drain()
    await running
    answers[longest] = begun + answers[longest]
    return answers


@pytest.fixture(scope="module")
def undisturbed(process: Process, model: Path) -> list[list[int]]:
    """Each query's answer with nothing else in its batch."""
    return asyncio.run(run(process, model, OrcaSchedule(pool=1)))


def test_answers_are_as_long_as_asked(undisturbed: list[list[int]]) -> None:
    assert [len(answer) for answer in undisturbed] == LENGTHS


async def test_a_schedule_that_changes_on_the_way_gives_the_same_tokens(
    process: Process, model: Path, undisturbed: list[list[int]]
) -> None:
    schedules: list[AnySchedule] = [
        CraSchedule(pool=5, chunk_tokens=11),
        RraSchedule(encode_batch=3, encode_interval=5),
        CraSchedule(pool=2, chunk_tokens=64),
        RraSchedule(encode_batch=1, encode_interval=20),
    ]
    assert await run(process, model, schedules[0], then=schedules[1:]) == undisturbed


@pytest.mark.parametrize(
    "schedule",
    [
        RraSchedule(encode_batch=3, encode_interval=5),
        CraSchedule(pool=5, chunk_tokens=11),
        StaticSchedule(batch=4, early_termination=True),
        StaticSchedule(batch=4, early_termination=False),
        OrcaSchedule(pool=4),
    ],
)
async def test_every_schedule_gives_the_same_tokens(
    process: Process, model: Path, undisturbed: list[list[int]], schedule: AnySchedule
) -> None:
    assert await run(process, model, schedule) == undisturbed


@pytest.mark.parametrize(
    ("schedule", "arena_extents"),
    [
        (RraSchedule(encode_batch=4, encode_interval=16), 5),
        (CraSchedule(pool=6, chunk_tokens=40), 6),
    ],
)
async def test_a_small_arena_evicts_and_gives_the_same_tokens(
    process: Process,
    model: Path,
    undisturbed: list[list[int]],
    schedule: AnySchedule,
    arena_extents: int,
) -> None:
    registry = CollectorRegistry()
    kv_tokens = arena_extents * EXTENT_TOKENS
    answers = await run(process, model, schedule, kv_tokens=kv_tokens, registry=registry)
    assert answers == undisturbed
    assert registry.get_sample_value("exegpt_evictions_total")


@pytest.mark.parametrize(
    "schedule",
    [RraSchedule(encode_batch=3, encode_interval=5), CraSchedule(pool=5, chunk_tokens=11)],
)
async def test_a_killed_worker_costs_no_token(
    process: Process, model: Path, undisturbed: list[list[int]], schedule: AnySchedule
) -> None:
    registry = CollectorRegistry()
    answers = await run(process, model, schedule, registry=registry, kill_after=30)
    assert answers == undisturbed
    assert registry.get_sample_value("exegpt_worker_restarts_total") == 1
