"""Lost workers, hung workers, evictions: streams go on, and every token is the undisturbed one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from conductors import MakeWorker, Serve, build_conductor, collect, collect_all, eventually, greedy
from exegpt_gateway.conductor import MAX_LOSSES
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.worker_link import Patience, WorkerLost, WorkerRefused
from exegpt_planner.schedule import AnySchedule, CraSchedule, RraSchedule
from fake_worker import FakeWorker
from toy_model import answer

RRA = RraSchedule(encode_batch=2, encode_interval=5)
CRA = CraSchedule(pool=4, chunk_tokens=3)


@pytest.mark.parametrize("schedule", [RRA, CRA])
@pytest.mark.parametrize("killed_after", [0, 1, 3, 7])
async def test_streams_go_on_when_the_worker_is_killed_and_restarted(
    make_worker: MakeWorker, serve: Serve, schedule: AnySchedule, killed_after: int
) -> None:
    worker = await make_worker()
    await worker.hold_after(killed_after)
    registry = CollectorRegistry()
    conductor = build_conductor(worker, schedule, metrics=Metrics(registry))
    prompts = [[n, n + 1] for n in range(5)]
    streams = [conductor.submit(prompt, greedy(12)) for prompt in prompts]
    serve(conductor)
    collected = asyncio.ensure_future(collect_all(streams))
    await worker.reached(killed_after)
    await worker.received(1)

    await worker.restart()

    assert await collected == [answer(prompt, 12) for prompt in prompts]
    assert len(worker.configured) == 2
    assert worker.configured[0].epoch < worker.configured[1].epoch
    assert worker.configured[1].peers[0].incarnation == worker.incarnation
    assert registry.get_sample_value("exegpt_worker_restarts_total") == 1


async def test_what_a_lost_worker_held_is_encoded_again_ahead_of_the_queue(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    await worker.hold_after(3)
    conductor = build_conductor(worker, RRA)
    streams = [conductor.submit([n], greedy(9)) for n in range(3)]
    serve(conductor)
    collected = asyncio.ensure_future(collect_all(streams))
    await worker.reached(3)
    assert len(worker.steps) == 1

    await worker.restart()
    await collected

    # Prompt and the tokens received so far; how many of the 3 sampled came through depends on the break.
    (first, *rest) = worker.steps[1].chunks
    assert [first[0], rest[0][0]] == [1, 2]
    assert 1 <= first[2] <= 4


async def test_the_conductor_is_ready_only_while_its_worker_is_configured(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    assert not conductor.ready
    serve(conductor)
    await collect(conductor.submit([1], greedy(2)))
    assert conductor.ready

    await worker.kill()
    await eventually(lambda: not conductor.ready)

    stream = conductor.submit([4], greedy(2))
    await worker.restart()
    assert await collect(stream) == answer([4], 2)
    assert conductor.ready


async def test_an_idle_conductor_notices_that_its_worker_died(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    serve(conductor)
    await collect(conductor.submit([1], greedy(2)))

    await worker.restart()
    await worker.until(lambda it: len(it.configured) == 2)
    assert await collect(conductor.submit([1], greedy(2))) == answer([1], 2)


async def test_a_hung_worker_counts_as_lost_and_is_reported(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    await worker.hold_after(2)
    hung = asyncio.Event()
    conductor = build_conductor(
        worker, RRA, patience=Patience(floor_s=0.05, multiple=20), on_hung=hung.set
    )
    stream = conductor.submit([3], greedy(4))
    serve(conductor)
    collected = asyncio.ensure_future(collect(stream))

    await asyncio.wait_for(hung.wait(), 5)
    await worker.restart()

    assert await collected == answer([3], 4)


async def test_a_query_that_loses_one_worker_after_another_is_given_up(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    serve(conductor)
    await worker.hold_after(0)
    stream = conductor.submit([3], greedy(4))
    collected = asyncio.ensure_future(collect(stream))

    for attempt in range(MAX_LOSSES):
        await worker.received(attempt + 1)
        await worker.restart()
        await worker.hold_after(0)
    with pytest.raises(WorkerLost):
        await collected

    await worker.release()
    assert await collect(conductor.submit([9], greedy(3))) == answer([9], 3)


async def test_a_worker_that_refuses_ends_the_conductor_with_its_reason(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    worker.refuse = "no such model: /models/toy"
    conductor = build_conductor(worker, RRA)
    stream = conductor.submit([1], greedy(2))
    running = serve(conductor)

    with pytest.raises(WorkerRefused, match="no such model: /models/toy"):
        await running
    with pytest.raises(WorkerRefused, match="no such model"):
        await collect(stream)


async def test_another_protocol_is_refused(make_worker: MakeWorker, serve: Serve) -> None:
    worker = await make_worker()
    worker.protocol = 99
    with pytest.raises(WorkerRefused, match="speaks protocol 99, this gateway 2"):
        await serve(build_conductor(worker, RRA))


async def test_a_worker_with_too_small_an_arena_is_refused(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker(kv_tokens=640)
    conductor = build_conductor(worker, RRA)
    worker.kv_tokens = 320
    with pytest.raises(WorkerRefused, match="holds 320 KV tokens, the plan needs 640"):
        await serve(conductor)


async def test_the_conductor_waits_for_a_worker_that_comes_up_later(
    tmp_path: Path, serve: Serve
) -> None:
    worker = FakeWorker(tmp_path / "late.sock")
    conductor = build_conductor(worker, RRA)
    stream = conductor.submit([8], greedy(3))
    serve(conductor)
    await worker.start()
    assert await collect(stream) == answer([8], 3)
    await worker.kill()


@pytest.mark.parametrize(
    "schedule",
    [RraSchedule(encode_batch=4, encode_interval=64), CraSchedule(pool=4, chunk_tokens=30)],
)
async def test_evicted_queries_are_encoded_again_and_end_with_the_same_tokens(
    make_worker: MakeWorker, serve: Serve, schedule: AnySchedule
) -> None:
    worker = await make_worker(kv_tokens=5 * 64)
    registry = CollectorRegistry()
    conductor = build_conductor(worker, schedule, metrics=Metrics(registry))
    # Short answers first: the expected growth becomes small, and the long ones outgrow it.
    short = [conductor.submit([n], greedy(2)) for n in range(20)]
    prompts = [[n] * 50 for n in range(6)]
    long = [conductor.submit(prompt, greedy(150)) for prompt in prompts]
    serve(conductor)

    assert await collect_all(short) == [answer([n], 2) for n in range(20)]
    assert await collect_all(long) == [answer(prompt, 150) for prompt in prompts]
    assert worker.evicted
    assert registry.get_sample_value("exegpt_evictions_total") == len(worker.evicted)


async def test_a_query_as_long_as_the_arena_runs_alone(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker(kv_tokens=3 * 64 + 7)
    conductor = build_conductor(worker, RRA)
    assert conductor.context == 3 * 64
    prompts = [[n] * 100 for n in range(3)]
    streams = [conductor.submit(prompt, greedy(92)) for prompt in prompts]
    serve(conductor)

    assert await collect_all(streams) == [answer(prompt, 92) for prompt in prompts]
