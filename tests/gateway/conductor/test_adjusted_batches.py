"""Encodes by the sum of their tokens: who is taken, in RRA and in WAA."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductors import MakeWorker, Serve, build_conductor, collect_all, greedy
from exegpt_gateway.policies import PoolView, Room, WaitingQuery, lookahead, next_step
from exegpt_planner.schedule import Adjustment, PoolBand, RraSchedule, WaaSchedule
from toy_model import answer

EVEN = Adjustment(encode_tokens=40.0, most_tokens=60.0, most_queries=8)
LED = EVEN.model_copy(update={"pool": PoolBand(mean=10.0, band=2.0, gain=0.5)})
RRA = RraSchedule(encode_batch=4, encode_interval=6, adjustment=EVEN)
WAA = WaaSchedule(encoders=1, decoders=1, encode_batch=4, pool=12, adjustment=EVEN)


def view(*tokens: int, num_active: int = 0, room: Room | None = None) -> PoolView:
    return PoolView(
        waiting=tuple(
            WaitingQuery(query=index, tokens=each, growth_limit=10)
            for index, each in enumerate(tokens)
        ),
        partial=(),
        num_active=num_active,
        kv_used=64 * num_active,
        kv_capacity=1 << 20,
        growth_tokens=1.0,
        part="both" if room is None else "encoder",
        room=room,
    )


def taken(schedule: RraSchedule | WaaSchedule, pool: PoolView) -> list[int]:
    step = next_step(schedule, pool)
    return [] if step is None else [chunk.query for chunk in step.chunks]


@pytest.mark.parametrize(
    ("tokens", "number"),
    [
        ((10,) * 8, 4),  # B_E, where prompts are as long as on average
        ((5,) * 9, 8),  # short ones: more, up to the most queries
        ((2,) * 20, 8),
        ((30, 12, 5), 2),  # 42 is nearer to 40 than 30
        ((200, 1, 1), 1),  # one at least
        ((10, 10), 2),  # whatever waits, where that is little
    ],
)
def test_rra_takes_the_first_queries_whose_tokens_sum_to_the_plans(
    tokens: tuple[int, ...], number: int
) -> None:
    assert taken(RRA, view(*tokens)) == list(range(number))
    assert lookahead(RRA) == 8
    assert lookahead(RraSchedule(encode_batch=4, encode_interval=6)) == 4


@pytest.mark.parametrize(("num_active", "number"), [(10, 4), (12, 4), (14, 3), (6, 5), (0, 6)])
def test_a_pool_off_its_plan_changes_the_next_encode(num_active: int, number: int) -> None:
    schedule = RRA.model_copy(update={"adjustment": LED})
    assert taken(schedule, view(*(10,) * 12, num_active=num_active)) == list(range(number))


def room(places: int) -> Room:
    return Room(places=places, kv_held=0, kv_capacity=1 << 20, is_empty=False)


def test_waa_waits_for_places_for_all_of_the_batch_and_for_no_more_than_there_can_be() -> None:
    short = (5,) * 20
    assert taken(WAA, view(*short, room=room(8))) == list(range(8))
    assert taken(WAA, view(*short, room=room(7))) == []
    assert taken(WAA, view(*(20,) * 9, room=room(2))) == [0, 1]
    small = WAA.model_copy(update={"pool": 6})
    assert taken(small, view(*short, room=room(6))) == list(range(6))


@given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.integers(0, 30))
def test_first_come_first_served_and_never_beyond_the_bounds(
    tokens: list[int], num_active: int
) -> None:
    schedule = RRA.model_copy(update={"adjustment": LED})
    found = taken(schedule, view(*tokens, num_active=num_active))
    assert found == list(range(len(found)))
    assert 1 <= len(found) <= LED.most_queries
    if len(found) > 1:  # without its last query it would have been below the most
        assert sum(tokens[: len(found) - 1]) < LED.most_tokens


async def test_answers_do_not_depend_on_it(make_worker: MakeWorker, serve: Serve) -> None:
    worker = await make_worker()
    schedule = RRA.model_copy(update={"adjustment": LED})
    conductor = build_conductor(worker, schedule)
    rng = random.Random(3)
    prompts = [[rng.randrange(256) for _ in range(rng.randint(1, 25))] for _ in range(40)]
    streams = [conductor.submit(prompt, greedy(12)) for prompt in prompts]
    serve(conductor)
    found = await collect_all(streams)
    assert found == [answer(prompt, 12) for prompt in prompts]
    sizes = [len(step.chunks) for step in worker.steps if step.chunks]
    assert sum(sizes) == 40
    assert len(set(sizes)) > 1
