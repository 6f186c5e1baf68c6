"""The conductor's own death, and two conductors at once: clients are told, and workers obey the newest only."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from cli.small_model import write_small_model
from conductors import collect, greedy
from exegpt_gateway.worker_link import TakenOver
from exegpt_planner.schedule import OrcaSchedule
from exegpt_wire import worker_pb2
from exegpt_wire.worker_pb2_grpc import WorkerStub
from faults.relay import Gate
from faults.rig import KV_TOKENS, LENGTHS, TOTAL, WAA, Load, Rig, conductor_of, ready
from faults.workers import Nursery

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

ASKED = {
    "model": "tiny",
    "prompt": "Once upon a time",
    "max_tokens": 450,
    "temperature": 0,
    "stream": True,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def speaking(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Workers for a model that has a tokenizer."""
    folder = tmp_path_factory.mktemp("speaking")
    rig = Rig(nursery, write_small_model(folder / "model"), folder)
    rig.up_to(2)
    yield rig
    for worker in rig.workers:
        worker.kill()


@contextmanager
def conductor_process(rig: Rig) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway in a process of its own, and its URL."""
    config = json.loads((rig.model / "config.json").read_text())
    given = {
        "model": str(rig.model),
        "workers": [worker.address for worker in rig.workers],
        "schedule": WAA.model_dump(),
        "kv_tokens": KV_TOKENS,
        "vocab": config["vocab_size"],
    }
    script = Path(__file__).parent / "conductor_process.py"
    with subprocess.Popen(
        [sys.executable, str(script), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def events(url: str) -> AsyncIterator[dict[str, Any] | str]:
    """The events of one answer; "[DONE]" comes as it is."""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/v1/completions", json=ASKED) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)


async def answer_text(url: str) -> str:
    """A whole answer, which must be complete."""
    found = [each async for each in events(url)]
    assert found[-1] == "[DONE]"
    return "".join(each["choices"][0]["text"] for each in found if isinstance(each, dict))


@asynccontextmanager
async def describing(rig: Rig) -> AsyncIterator[list[WorkerStub]]:
    """Stubs of the workers."""
    channels = [aio.insecure_channel(worker.address) for worker in rig.workers]
    try:
        yield [WorkerStub(channel) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()


async def epochs(rig: Rig) -> list[int]:
    """What each worker follows now."""
    async with describing(rig) as stubs:
        request = worker_pb2.DescribeRequest()
        return [(await stub.Describe(request)).epoch for stub in stubs]  # type: ignore[misc]  # an aio stub


async def test_a_killed_conductor_cuts_its_streams_and_the_next_one_finds_the_workers(
    speaking: Rig,
) -> None:
    pieces: list[str] = []

    async def read(process: subprocess.Popen[str], url: str) -> None:
        async for each in events(url):
            assert isinstance(each, dict), "the answer was complete"
            pieces.append(each["choices"][0]["text"])
            if len(pieces) == 5:
                process.kill()

    with (
        conductor_process(speaking) as gateway,
        pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
    ):
        await read(*gateway)
    with conductor_process(speaking) as (_, url):
        text = await answer_text(url)
    assert text.startswith("".join(pieces))
    assert [worker.starts for worker in speaking.workers] == [1, 1]


async def test_clients_of_a_conductor_that_is_taken_over_are_told(speaking: Rig) -> None:
    running: list[asyncio.Future[None]] = []
    errors: list[dict[str, Any]] = []
    with conductor_process(speaking) as (process, url):
        newer = conductor_of([speaking.link(worker) for worker in speaking.workers], WAA)
        async for each in events(url):
            assert isinstance(each, dict), "the answer was complete"
            if "error" in each:
                errors.append(each["error"])
            elif not running:
                running.append(asyncio.ensure_future(newer.run()))
        assert await asyncio.to_thread(process.wait, 20) == 5
        assert process.stderr is not None
        assert "a newer conductor has taken over" in process.stderr.read()
    (error,) = errors
    assert error["code"] == "unavailable"
    assert "a newer conductor has taken over the worker at" in error["message"]
    await ready(newer, running[0])
    newer.drain()
    await running[0]


async def test_the_newest_conductor_serves_and_the_older_gives_up_for_good(
    rig: Rig, undisturbed: list[list[int]]
) -> None:
    workers = rig.up_to(2)
    starts = [worker.starts for worker in workers]
    older = conductor_of([rig.link(worker) for worker in workers], WAA)
    running = asyncio.ensure_future(older.run())
    await ready(older, running)
    load = Load(older)
    await load.reached(TOTAL // 4)
    async with rig.conducting([rig.link(worker) for worker in workers], WAA) as newer:
        with pytest.raises(TakenOver, match="a newer conductor has taken over the worker at"):
            await running
        before = await epochs(rig)
        await load.finished()
        assert load.errors
        assert all(isinstance(error, TakenOver) for error in load.errors)
        assert await Load(newer).finished() == undisturbed
        assert await epochs(rig) == before
    assert [worker.starts for worker in workers] == starts


@pytest.mark.parametrize("first", ["older", "newer"])
async def test_a_worker_that_restarts_goes_to_the_newest_whoever_finds_it_first(
    rig: Rig, first: str
) -> None:
    (worker,) = rig.up_to(1)
    schedule = OrcaSchedule(pool=1)
    older = conductor_of([rig.link(worker)], schedule)
    running = asyncio.ensure_future(older.run())
    await ready(older, running)
    newer = conductor_of([rig.link(worker)], schedule)
    worker.kill()
    if first == "older":
        worker.start()
        while older.ready:  # until it has seen the old process go
            await asyncio.sleep(0.01)
        await ready(older, running)
        newer_running = asyncio.ensure_future(newer.run())
    else:
        newer_running = asyncio.ensure_future(newer.run())
        worker.start()
    with pytest.raises(TakenOver):
        await running
    await ready(newer, newer_running)
    assert len(await collect(newer.submit([5, 6, 7], greedy(20)))) == 20
    newer.drain()
    await newer_running


async def test_kv_of_an_older_conductor_is_refused_by_its_epoch(
    rig: Rig, undisturbed: list[list[int]]
) -> None:
    encoder, decoder = rig.up_to(2)
    gate = Gate(before_header=True)
    async with rig.relayed(decoder) as relay:
        relay.harm, relay.num_harmed = gate.hold, 1
        older = conductor_of([rig.link(encoder), rig.link(decoder, relay)], WAA)
        running = asyncio.ensure_future(older.run())
        await ready(older, running)
        load = Load(older)
        await gate.reached.wait()
        links = [rig.link(encoder), rig.link(decoder, relay)]
        async with rig.conducting(links, WAA) as newer:
            with pytest.raises(TakenOver):
                await running
            gate.opened.set()
            while not relay.endings:
                await asyncio.sleep(0.01)
            ((code, problem),) = relay.endings
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "epoch" in problem
            assert await Load(newer).finished() == undisturbed
        await load.finished()
        assert len(load.errors) + sum(map(is_whole, load.answers, LENGTHS)) == len(LENGTHS)


def is_whole(answer: list[int], length: int) -> bool:
    return len(answer) == length
