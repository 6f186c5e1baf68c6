"""What each schedule sends, exactly, for small cases: a real stream of steps over a Unix socket."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from prometheus_client import CollectorRegistry

from cli.tables import promise
from conductors import MakeWorker, Serve, build_conductor, collect, collect_all, greedy
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.policies import UNTIL_DONE
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
)
from fake_worker import SeenStep
from toy_model import answer


def whole(*queries: tuple[int, int]) -> tuple[tuple[int, int, int, bool], ...]:
    return tuple((query, 0, tokens, True) for query, tokens in queries)


async def test_rra_encodes_batches_of_b_e_every_n_d_iterations(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RraSchedule(encode_batch=2, encode_interval=3))
    prompts = [[10, 11], [20, 21, 22], [30]]
    streams = [conductor.submit(prompt, greedy(6)) for prompt in prompts]
    serve(conductor)

    assert await collect_all(streams) == [answer(prompt, 6) for prompt in prompts]
    # Each encode brings its queries one token, each iteration another: 1 and 2 end in the second phase, 3 in the third.
    assert worker.steps == [
        SeenStep(whole((1, 2), (2, 3)), False, 3),
        SeenStep(whole((3, 1)), False, 3),
        SeenStep((), False, 3),
    ]


async def test_rra_decodes_on_in_short_phases_when_nothing_waits(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RraSchedule(encode_batch=2, encode_interval=8))
    stream = conductor.submit([1, 2], greedy(16))
    serve(conductor)

    assert await collect(stream) == answer([1, 2], 16)
    assert worker.steps == [
        SeenStep(whole((1, 2)), False, 8),
        SeenStep((), False, 4),
        SeenStep((), False, 4),
    ]


async def test_a_query_of_one_token_needs_no_decode(make_worker: MakeWorker, serve: Serve) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RraSchedule(encode_batch=2, encode_interval=8))
    serve(conductor)

    assert await collect(conductor.submit([1, 2], greedy(1))) == answer([1, 2], 1)
    assert worker.iterations == 1


async def test_a_lone_query_starts_at_once_and_the_idle_conductor_waits_for_the_next(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RraSchedule(encode_batch=8, encode_interval=50))
    serve(conductor)

    assert await collect(conductor.submit([5], greedy(3))) == answer([5], 3)
    assert await collect(conductor.submit([6], greedy(3))) == answer([6], 3)
    assert worker.iterations == 6


async def test_cra_refills_the_pool_and_encodes_in_chunks_of_c(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, CraSchedule(pool=2, chunk_tokens=4))
    prompts = [[1] * 3, [2] * 6, [3] * 2]
    streams = [conductor.submit(prompt, greedy(4)) for prompt in prompts]
    serve(conductor)

    assert await collect_all(streams) == [answer(prompt, 4) for prompt in prompts]
    ride = (True, 0)
    assert worker.steps == [
        SeenStep(((1, 0, 3, True), (2, 0, 1, False)), *ride),
        SeenStep(((2, 1, 4, False),), *ride),
        SeenStep(((2, 5, 1, True),), *ride),  # 1 has its third token
        SeenStep((), False, 1),  # 1 ends
        SeenStep(((3, 0, 2, True),), *ride),
        SeenStep((), False, 1),  # 2 ends
        SeenStep((), False, 1),
        SeenStep((), False, 1),
    ]


async def test_static_waits_for_the_whole_batch(make_worker: MakeWorker, serve: Serve) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, StaticSchedule(batch=2, early_termination=True))
    lengths = [2, 5, 3]
    streams = [conductor.submit([n], greedy(n)) for n in lengths]
    serve(conductor)

    assert await collect_all(streams) == [answer([n], n) for n in lengths]
    assert worker.steps == [
        SeenStep(whole((1, 1), (2, 1)), False, UNTIL_DONE),
        SeenStep(whole((3, 1)), False, UNTIL_DONE),
    ]
    assert [shape.decode_queries for shape in worker.shapes] == [0, 2, 1, 1, 1, 0, 1, 1]


async def test_static_without_early_termination_computes_ended_queries_on(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, StaticSchedule(batch=2, early_termination=False))
    lengths = [2, 5]
    streams = [conductor.submit([n], greedy(n)) for n in lengths]
    serve(conductor)

    assert await collect_all(streams) == [answer([n], n) for n in lengths]
    assert worker.steps == [SeenStep(whole((1, 1), (2, 1)), False, UNTIL_DONE, True)]
    assert [shape.decode_queries for shape in worker.shapes] == [0, 2, 2, 2, 2]


async def test_orca_lets_one_prompt_join_an_iteration(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, OrcaSchedule(pool=2))
    streams = [conductor.submit([n], greedy(3)) for n in range(3)]
    serve(conductor)

    assert await collect_all(streams) == [answer([n], 3) for n in range(3)]
    assert worker.steps == [
        SeenStep(whole((1, 1)), True, 0),
        SeenStep(whole((2, 1)), True, 0),
        SeenStep((), False, 1),  # 1 ends
        SeenStep(whole((3, 1)), True, 0),  # 2 ends
        SeenStep((), False, 1),
        SeenStep((), False, 1),
    ]


async def test_end_tokens_stop_a_query_and_ignore_eos_does_not(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RraSchedule(encode_batch=2, encode_interval=4))
    serve(conductor)
    end = answer([7], 5)[2]

    events = [event async for event in conductor.submit([7], greedy(5, end_tokens=[end]))]
    assert [event.token for event in events] == answer([7], 5)[:3]
    assert [event.finish for event in events] == [None, None, "stop"]


async def test_times_run_from_arrival_over_encode_start_to_the_last_token(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RraSchedule(encode_batch=2, encode_interval=4))
    stream = conductor.submit([7], greedy(5))
    serve(conductor)
    await asyncio.wait_for(collect(stream), 5)

    times = stream.times
    assert times.encode_started_s is not None
    assert times.first_token_s is not None
    assert times.finished_s is not None
    assert times.arrival_s <= times.encode_started_s <= times.first_token_s < times.finished_s


async def test_a_new_schedule_is_in_force_from_the_next_step(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    registry = CollectorRegistry()
    conductor = build_conductor(
        worker,
        RraSchedule(encode_batch=2, encode_interval=3),
        metrics=Metrics(registry, promise()),
    )
    stream = conductor.submit([1, 2], greedy(13))
    serve(conductor)
    tokens = []
    async for event in stream:
        tokens.append(event.token)
        if len(tokens) == 2:  # within the first phase
            conductor.reschedule(RraSchedule(encode_batch=2, encode_interval=2), promise(7.0))
    assert tokens == answer([1, 2], 13)
    intervals = [step.decode_iterations for step in worker.steps]
    assert intervals[0] == 3
    assert set(intervals[2:]) == {2}  # at most one step was on its way
    assert registry.get_sample_value("exegpt_schedule_encode_interval_iterations") == 2
    assert registry.get_sample_value("exegpt_bound_seconds") == 7.0


@pytest.mark.parametrize(
    ("before", "after"),
    list(
        itertools.permutations(
            [
                RraSchedule(encode_batch=2, encode_interval=3),
                CraSchedule(pool=4, chunk_tokens=3),
                StaticSchedule(batch=2, early_termination=True),
                OrcaSchedule(pool=2),
            ],
            2,
        )
    ),
    ids=str,
)
async def test_any_schedule_may_follow_any_other_while_queries_run(
    make_worker: MakeWorker, serve: Serve, before: AnySchedule, after: AnySchedule
) -> None:
    """Prompts of 10 tokens in chunks of 3: some are half encoded at the change."""
    worker = await make_worker()
    conductor = build_conductor(worker, before, metrics=Metrics(CollectorRegistry(), promise()))
    prompts = [[n] * 10 for n in range(1, 9)]
    streams = [conductor.submit(prompt, greedy(6)) for prompt in prompts]
    serve(conductor)
    first = [await anext(streams[0])]
    conductor.reschedule(after, promise())
    rest = await collect_all(streams)
    assert [[first[0].token, *rest[0]], *rest[1:]] == [answer(prompt, 6) for prompt in prompts]
