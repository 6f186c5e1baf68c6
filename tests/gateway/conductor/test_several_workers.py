"""Several workers under one conductor: units of RRA and CRA, and WAA with its hand-overs, whatever happens to them."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from prometheus_client import CollectorRegistry

from cli.tables import promise as promise_within
from conductors import (
    MakeWorker,
    Serve,
    build_conductor,
    collect,
    collect_all,
    eventually,
    greedy,
    restless_client,
)
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics, Promise
from exegpt_gateway.worker_link import WorkerLost, WorkerRefused
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.schedule import AnySchedule, CraSchedule, RraSchedule, WaaSchedule
from fake_worker import FakeWorker
from toy_model import answer

ONE_AND_ONE = WaaSchedule(encoders=1, decoders=1, encode_batch=3, pool=8)
RRA = RraSchedule(encode_batch=4, encode_interval=7, units=2)
CRA = CraSchedule(pool=6, chunk_tokens=50, units=2)
SCHEDULES: list[AnySchedule] = [
    ONE_AND_ONE,
    WaaSchedule(encoders=2, decoders=1, encode_batch=3, pool=9),
    WaaSchedule(encoders=1, decoders=2, encode_batch=2, pool=5),
    RRA,
    CRA,
]


def num_workers(schedule: AnySchedule) -> int:
    match schedule:
        case WaaSchedule():
            return schedule.encoders + schedule.decoders
        case RraSchedule() | CraSchedule():
            return schedule.units
        case _:
            raise AssertionError(schedule)


async def make_workers(make_worker: MakeWorker, number: int, **options: int) -> list[FakeWorker]:
    return [await make_worker(**options) for _ in range(number)]


def prompts(number: int, tokens: int = 20) -> list[list[int]]:
    return [[(7 * n + i) % 256 for i in range(tokens)] for n in range(number)]


@pytest.fixture
def promise() -> Promise:
    return promise_within(2.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
async def test_every_query_gets_its_answer(
    make_worker: MakeWorker, serve: Serve, schedule: AnySchedule
) -> None:
    workers = await make_workers(make_worker, num_workers(schedule))
    conductor = build_conductor(workers, schedule)
    running = serve(conductor)
    asked = prompts(30)
    while not all(worker.iterations for worker in workers):  # each gets something to do, in time
        streams = [conductor.submit(prompt, greedy(1 + n)) for n, prompt in enumerate(asked)]
        answers = [answer(prompt, 1 + n) for n, prompt in enumerate(asked)]
        assert await collect_all(streams) == answers
    conductor.drain()
    await asyncio.wait_for(running, 10)


async def test_an_encoder_only_encodes_and_a_decoder_only_decodes(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    serve(conductor)
    await collect_all([conductor.submit(prompt, greedy(5)) for prompt in prompts(9)])
    assert all(shape.decode_queries == 0 for shape in encoder.shapes)
    assert all(shape.encode_chunks == 0 for shape in decoder.shapes)
    assert sorted(decoder.joined) == list(range(1, 10))


async def test_encodes_are_whole_batches_and_wait_for_as_many_places(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    streams = [conductor.submit(prompt, greedy(50)) for prompt in prompts(12)]
    serve(conductor)
    await decoder.hold_after(0)
    await eventually(lambda: len(encoder.shapes) == 2)  # 8 places: 3 and 3, and 2 are too few
    await decoder.until(lambda worker: len(worker.joined) >= 3)
    assert [shape.encode_chunks for shape in encoder.shapes] == [3, 3]
    await decoder.release()
    assert len(await collect_all(streams)) == 12
    assert [shape.encode_chunks for shape in encoder.shapes] == [3, 3, 3, 3]


async def test_a_batch_goes_to_the_decoder_with_the_most_places(
    make_worker: MakeWorker, serve: Serve
) -> None:
    schedule = WaaSchedule(encoders=1, decoders=2, encode_batch=2, pool=6)
    encoder, left, right = await make_workers(make_worker, 3)
    conductor = build_conductor([encoder, left, right], schedule)
    streams = [conductor.submit(prompt, greedy(30)) for prompt in prompts(12)]
    await left.hold_after(0)
    await right.hold_after(0)
    serve(conductor)
    await left.until(lambda worker: len(worker.joined) >= 2)
    await right.until(lambda worker: len(worker.joined) >= 2)
    await left.release()
    await right.release()
    await collect_all(streams)
    assert sorted([*left.joined, *right.joined]) == list(range(1, 13))
    assert len(left.joined) == len(right.joined) == 6


async def test_a_query_that_ends_with_its_first_token_is_not_handed_over(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    running = serve(conductor)
    prompt = prompts(1)[0]
    assert await collect(conductor.submit(prompt, greedy(1))) == answer(prompt, 1)
    assert decoder.joined == []
    conductor.drain()
    await asyncio.wait_for(running, 10)


async def test_kv_that_arrives_before_all_its_queries_end_with_their_first_token_is_forgotten(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    running = serve(conductor)
    asked = prompts(3)
    long = conductor.submit(asked[0], greedy(200))
    await decoder.until(lambda worker: len(worker.joined) == 1)
    encoder.holds_encoded = True
    short = conductor.submit(asked[1], greedy(1))
    await decoder.until(lambda worker: len(worker.landed) == 2)
    await decoder.received(len(decoder.steps) + 2)  # so the conductor knows that it has arrived
    await encoder.release()
    assert await collect(short) == answer(asked[1], 1)
    assert await collect(conductor.submit(asked[2], greedy(5))) == answer(asked[2], 5)
    assert await collect(long) == answer(asked[0], 200)
    assert decoder.forgotten == decoder.landed[1:2], "the decoder keeps what nobody takes"
    assert len(decoder.configured) == 1, "the decoder was lost"
    conductor.drain()
    await asyncio.wait_for(running, 10)


async def test_a_failed_hand_over_is_encoded_again_and_counted(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    metrics = Metrics(CollectorRegistry())
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE, metrics=metrics)
    serve(conductor)
    await eventually(lambda: conductor.ready)
    encoder.lose_kv = "data_loss"
    stream = conductor.submit(prompts(1)[0], greedy(9))
    await encoder.until(lambda worker: worker.iterations >= 2)
    encoder.lose_kv = ""
    assert await collect(stream) == answer(prompts(1)[0], 9)
    value = metrics.registry.get_sample_value(
        "exegpt_kv_transfer_failures_total", {"reason": "data_loss"}
    )
    assert value is not None
    assert value >= 1
    assert decoder.forgotten, "the decoder was not told"


async def test_a_query_whose_hand_overs_all_fail_is_given_up_with_the_reason(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    serve(conductor)
    await eventually(lambda: conductor.ready)
    encoder.lose_kv = "data_loss"
    with pytest.raises(WorkerLost, match="hand-over failed: toy: data_loss"):
        await collect(conductor.submit(prompts(1)[0], greedy(9)))


@pytest.mark.parametrize("reason", ["failed_precondition", "unauthenticated"])
async def test_a_way_that_no_retry_opens_ends_the_service_with_the_reason(
    make_worker: MakeWorker, serve: Serve, reason: str
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    encoder.refuse_kv = reason
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    with pytest.raises(WorkerRefused, match=f"no KV gets from worker 0 to worker 1: toy: {reason}"):
        await serve(conductor)
    assert not conductor.ready


@pytest.mark.parametrize("reason", ["unavailable", "failed_precondition"])
async def test_a_way_that_opens_later_is_tried_again(
    make_worker: MakeWorker, serve: Serve, reason: str
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    encoder.refuse_kv = reason  # the latter: as from a worker that has just been replaced
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    serve(conductor)
    stream = conductor.submit(prompts(1)[0], greedy(9))
    await encoder.received(1)
    assert not conductor.ready
    encoder.refuse_kv = ""
    assert await collect(stream) == answer(prompts(1)[0], 9)


async def test_a_lost_encoder_disturbs_no_query_that_decodes(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    streams = [conductor.submit(prompt, greedy(40)) for prompt in prompts(3)]
    serve(conductor)
    await decoder.until(lambda worker: len(worker.joined) == 3)
    await encoder.restart()
    assert await collect_all(streams) == [answer(prompt, 40) for prompt in prompts(3)]
    assert encoder.iterations == 1, "what had arrived was encoded again"
    assert len(decoder.configured) == 1


async def test_what_a_lost_encoder_had_not_sent_is_encoded_again(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    encoder.holds_kv = True
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    streams = [conductor.submit(prompt, greedy(9)) for prompt in prompts(3)]
    serve(conductor)
    await encoder.until(lambda worker: worker.iterations == 1)
    encoder.holds_kv = False
    await encoder.restart()
    assert await collect_all(streams) == [answer(prompt, 9) for prompt in prompts(3)]
    assert encoder.iterations == 2


async def test_what_a_lost_decoder_held_is_encoded_again_with_its_output(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    streams = [conductor.submit(prompt, greedy(20)) for prompt in prompts(3)]
    await decoder.hold_after(5)
    serve(conductor)
    firsts = [[(await anext(stream)).token for _ in range(6)] for stream in streams]
    await decoder.restart()
    rest = await collect_all(streams)
    assert [first + more for first, more in zip(firsts, rest, strict=True)] == [
        answer(prompt, 20) for prompt in prompts(3)
    ]
    # after the probe and the first encode
    encoded_again = [chunk for step in encoder.steps[2:] for chunk in step.chunks]
    assert sorted(tokens for _, _, tokens, _ in encoded_again) == [26, 26, 26]


async def test_kv_that_comes_after_its_query_was_cancelled_is_forgotten(
    make_worker: MakeWorker, serve: Serve
) -> None:
    encoder, decoder = await make_workers(make_worker, 2)
    encoder.holds_kv = True
    conductor = build_conductor([encoder, decoder], ONE_AND_ONE)
    running = serve(conductor)
    gone, stays = (conductor.submit(prompt, greedy(9)) for prompt in prompts(2))
    await anext(gone)
    gone.cancel()
    await encoder.let_go()
    assert await collect(stays) == answer(prompts(2)[1], 9)
    assert decoder.joined == [stays.query]
    conductor.drain()
    await asyncio.wait_for(running, 10)


async def test_a_schedule_for_other_workers_is_refused_and_the_old_one_stays(
    make_worker: MakeWorker, serve: Serve, promise: Promise
) -> None:
    workers = await make_workers(make_worker, 2)
    conductor = build_conductor(workers, ONE_AND_ONE)
    with pytest.raises(InvalidSpec, match="RRA for 1 workers, but there are 2"):
        conductor.reschedule(RraSchedule(encode_batch=1, encode_interval=1), promise)
    assert conductor.schedule == ONE_AND_ONE


@pytest.mark.parametrize(
    ("first", "then"),
    list(
        itertools.permutations(
            [ONE_AND_ONE, RRA, CRA, ONE_AND_ONE.model_copy(update={"pool": 5})], 2
        )
    ),
)
async def test_a_schedule_changes_under_way_without_a_loss(
    make_worker: MakeWorker,
    serve: Serve,
    promise: Promise,
    first: AnySchedule,
    then: AnySchedule,
) -> None:
    workers = await make_workers(make_worker, 2)
    conductor = build_conductor(workers, first, metrics=Metrics(CollectorRegistry(), promise))
    running = serve(conductor)
    streams = [conductor.submit(prompt, greedy(40)) for prompt in prompts(30)]
    await workers[1].until(lambda worker: worker.iterations >= 20)
    conductor.reschedule(then, promise)
    assert await collect_all(streams) == [answer(prompt, 40) for prompt in prompts(30)]
    assert all(len(worker.configured) == 1 for worker in workers)
    conductor.drain()
    await asyncio.wait_for(running, 10)


async def trouble(workers: list[FakeWorker], rng: random.Random) -> None:
    """Kills workers, and lets hand-overs fail or wait for a while."""
    for _ in range(4):
        worker = rng.choice(workers)
        await worker.reached(worker.iterations + rng.randint(1, 40))
        match rng.randrange(3):
            case 0:
                await worker.restart()
            case 1:
                worker.lose_kv = "data_loss"
                await worker.reached(worker.iterations + 1)
                worker.lose_kv = ""
            case _:
                worker.holds_kv = True
                await worker.reached(worker.iterations + 1)
                await worker.let_go()


async def change(
    conductor: Conductor, workers: list[FakeWorker], rng: random.Random, promise: Promise
) -> None:
    """Goes through schedules for as many workers."""
    fitting = [each for each in SCHEDULES if num_workers(each) == len(workers)]
    while True:
        await workers[-1].reached(workers[-1].iterations + rng.randint(5, 40))
        conductor.reschedule(rng.choice(fitting), promise)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))]
)
async def test_every_client_gets_its_answer_whatever_happens(
    make_worker: MakeWorker,
    serve: Serve,
    schedule: AnySchedule,
    seed: int,
    promise: Promise,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # KV that is lost for a while is lost as often as it is tried; who gives up first is another test's
    monkeypatch.setattr("exegpt_gateway.conductor.MAX_LOSSES", 1000)
    rng = random.Random(seed)
    kv_tokens = rng.randint(5, 16) * 64
    workers = await make_workers(make_worker, num_workers(schedule), kv_tokens=kv_tokens)
    metrics = Metrics(CollectorRegistry(), promise)
    conductor = build_conductor(workers, schedule, metrics=metrics)
    running = serve(conductor)
    clients = [
        asyncio.ensure_future(restless_client(conductor, rng, n, comes_within=300))
        for n in range(40)
    ]
    beside = [asyncio.ensure_future(trouble(workers, rng))]
    if seed % 2:
        beside.append(asyncio.ensure_future(change(conductor, workers, rng, promise)))
    await asyncio.gather(*clients)
    for task in beside:
        task.cancel()
    conductor.drain()
    await asyncio.wait_for(running, 10)
