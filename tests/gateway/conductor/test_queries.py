"""Cancelling, refusing and draining."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from conductors import MakeWorker, Serve, build_conductor, collect, collect_all, greedy
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import Draining, PromptTooLong, QueueFull, SamplingParams
from exegpt_planner.errors import Unavailable
from exegpt_planner.schedule import CraSchedule, RraSchedule
from fake_worker import SeenStep
from toy_model import answer

RRA = RraSchedule(encode_batch=2, encode_interval=8)


async def test_a_cancelled_query_is_dropped_in_mid_phase_and_frees_its_slot(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    await worker.hold_after(3)
    gone, stays = (conductor.submit([n], greedy(9)) for n in range(2))
    serve(conductor)
    await worker.reached(3)

    gone.cancel()
    gone.cancel()
    await worker.until(lambda it: gone.query in it.dropped)
    await worker.release()

    assert await collect(stays) == answer([1], 9)
    assert [event async for event in gone] == []
    assert [shape.decode_queries for shape in worker.shapes] == [0, 2, 2, 1, 1, 1, 1, 1, 1]


async def test_a_query_cancelled_before_its_encode_never_reaches_the_worker(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    gone, stays = (conductor.submit([n], greedy(3)) for n in range(2))
    gone.cancel()
    serve(conductor)

    assert await collect(stays) == answer([1], 3)
    assert worker.steps == [SeenStep(((stays.query, 0, 1, True),), False, 8)]
    assert worker.dropped == []


async def test_an_answer_that_a_stop_string_completes_counts_as_one(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    registry = CollectorRegistry()
    conductor = build_conductor(worker, RRA, metrics=Metrics(registry))
    await worker.hold_after(3)
    stream = conductor.submit([7], greedy(500))
    serve(conductor)
    assert [(await anext(stream)).token for _ in range(3)] == answer([7], 3)

    stream.complete()
    stream.cancel()
    await worker.until(lambda it: stream.query in it.dropped)

    assert stream.times.finished_s is not None
    value = registry.get_sample_value
    assert value("exegpt_queries_total", {"outcome": "stop"}) == 1
    assert value("exegpt_queries_total", {"outcome": "cancelled"}) is None
    assert value("exegpt_output_tokens_sum") == 3


async def test_a_drop_that_overtakes_its_encode_is_said_again(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, CraSchedule(pool=2, chunk_tokens=8))
    await worker.hold_after(0)
    gone = conductor.submit([1], greedy(1000))
    serve(conductor)
    await worker.received(1)
    gone.cancel()
    await worker.until(lambda it: gone.query in it.dropped)
    await worker.release()  # the worker encodes a query it was told to drop before it knew it

    assert await collect(conductor.submit([2], greedy(5))) == answer([2], 5)
    assert worker.dropped.count(gone.query) >= 2
    assert worker.shapes[-1].decode_queries == 1


async def test_cancelling_the_only_query_in_mid_phase_leaves_the_conductor_at_work(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    await worker.hold_after(2)
    gone = conductor.submit([1], greedy(1000))
    serve(conductor)
    await worker.reached(2)
    gone.cancel()
    await worker.until(lambda it: gone.query in it.dropped)
    await worker.release()

    assert await collect(conductor.submit([2], greedy(5))) == answer([2], 5)


async def test_a_full_queue_refuses_and_says_when_to_come_back(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    registry = CollectorRegistry()
    conductor = build_conductor(worker, RRA, max_waiting=3, metrics=Metrics(registry))
    streams = [conductor.submit([n], greedy(2)) for n in range(3)]
    with pytest.raises(QueueFull) as refusal:
        conductor.submit([9], greedy(2))
    assert refusal.value.retry_after_s >= 1
    assert registry.get_sample_value("exegpt_queries_total", {"outcome": "refused"}) == 1

    serve(conductor)
    await collect_all(streams)
    assert await collect(conductor.submit([9], greedy(2))) == answer([9], 2)


async def test_draining_finishes_what_was_taken_and_refuses_the_rest(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    streams = [conductor.submit([n], greedy(20)) for n in range(5)]
    running = serve(conductor)
    await worker.reached(2)

    conductor.drain()
    with pytest.raises(Draining):
        conductor.submit([9], greedy(2))

    assert await collect_all(streams) == [answer([n], 20) for n in range(5)]
    await asyncio.wait_for(running, 5)
    assert not conductor.ready


async def test_an_idle_conductor_drains_at_once(make_worker: MakeWorker, serve: Serve) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    running = serve(conductor)
    await collect(conductor.submit([1], greedy(2)))
    conductor.drain()
    await asyncio.wait_for(running, 5)


async def test_streams_end_with_an_error_when_the_conductor_is_stopped(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    await worker.hold_after(1)
    stream = conductor.submit([1], greedy(5))
    running = serve(conductor)
    await worker.reached(1)
    running.cancel()

    with pytest.raises(Unavailable, match="the server stopped"):
        await collect(stream)
    with pytest.raises(Draining):
        conductor.submit([2], greedy(5))


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "problem"),
    [
        (0, 5, "the prompt is empty"),
        (128, None, "the prompt has 128 tokens, and 128 fit with the output"),
        (100, 29, "only 128 fit together. Ask for at most 28"),
    ],
)
async def test_what_can_never_fit_is_refused_with_the_reason(
    make_worker: MakeWorker, tokens: int, max_tokens: int | None, problem: str
) -> None:
    conductor = build_conductor(await make_worker(kv_tokens=150), RRA)
    with pytest.raises(PromptTooLong, match=problem):
        conductor.submit([1] * tokens, SamplingParams(max_tokens=max_tokens))


async def test_without_a_limit_a_query_runs_to_the_end_of_the_context(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA, context=40)
    serve(conductor)
    events = [event async for event in conductor.submit([1] * 30, SamplingParams(temperature=0))]
    assert [event.token for event in events] == answer([1] * 30, 10)
    assert events[-1].finish == "length"
