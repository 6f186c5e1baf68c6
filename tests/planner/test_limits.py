"""Several limits at once: each beside the simulation or a known queue, and the search beside exhaustive search."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.certificate import certify, check
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Run, Until
from exegpt_planner.exhaustive import best_of_all
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.search import search
from exegpt_planner.simulator.arrivals import wait_for_encode, wait_for_place
from exegpt_planner.simulator.limits import Use, uses
from exegpt_planner.simulator.models import model_for
from exegpt_planner.simulator.promise import Limits, Promise
from exegpt_planner.strategies import StrategySpace
from exegpt_planner.waa_space import WaaSpace
from planner.builders import bell, independent, table
from planner.spaces import assert_as_good, random_space
from planner.test_search import cases, random_block

EVERYTHING = Limits(
    answer_s=1.0, all_answers_s=1.0, first_token_s=1.0, gap_s=1.0, token_s=1.0, arrivals_per_s=0.0
)


@pytest.mark.parametrize(
    ("load", "batch"), [(0.3, 1), (0.8, 1), (0.5, 8), (0.9, 8), (0.95, 40), (0.94, 12)]
)
def test_the_wait_for_an_encode_is_that_of_a_queue_played(load: float, batch: int) -> None:
    cycles = 400_000
    rng = np.random.default_rng(3)
    arrivals = rng.poisson(load * batch, cycles)
    left = np.empty(cycles)
    now = 0
    for cycle, number in enumerate(arrivals):
        now = max(0, now + int(number) - batch)
        left[cycle] = now
    expected = wait_for_encode(load * batch, 1.0, batch)
    seen = 0.5 + left.mean() / (load * batch)  # Little
    noise = 4 * left.std() / math.sqrt(cycles * (1 - load) ** 2) / (load * batch)
    assert expected.mean_s == pytest.approx(seen, rel=0.01, abs=noise)


def test_a_server_with_batches_of_one_waits_as_pollaczek_and_khinchine_say() -> None:
    """M/D/1 seen at its departures: what an encode leaves behind is L_q + rho of those that came in it."""
    load = 0.7
    expected = wait_for_encode(load, 1.0, 1)
    queue = load**2 / (2 * (1 - load))  # mean waiting in M/D/1
    assert expected.mean_s == pytest.approx(0.5 + queue / load, rel=1e-6)


@pytest.mark.parametrize(
    ("places", "offered", "chance"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (5, 4.0, 0.554113)]
)
def test_the_wait_for_a_place_is_erlangs(places: int, offered: float, chance: float) -> None:
    """M/M/c, whose squared coefficient of variation is 1: mean wait C / (c mu - lambda)."""
    found = wait_for_place(offered, 1.0, places, 1.0)
    assert found.mean_s == pytest.approx(chance / (places - offered), rel=1e-5)


WORKLOAD = independent(bell(60, 20, 120), bell(24, 8, 48)).with_probes(0.2)
TABLE = table()
SCHEDULES = [
    RraSchedule(encode_batch=8, encode_interval=6),
    RraSchedule(encode_batch=20, encode_interval=20),
    CraSchedule(pool=24, chunk_tokens=256),
    WaaSchedule(encoders=1, decoders=1, encode_batch=4, pool=40),
]


def played(schedule: Schedule) -> Run:
    rng = np.random.default_rng(11)
    until = Until(queries=6000, warm_up=1000, steps=200_000)
    return run(schedule, TABLE, Backlog.of(WORKLOAD, rng), until)


def predicted(schedule: Schedule) -> dict[str, Use]:
    law = CompletionLaw(WORKLOAD)
    promise = Promise.full(length=WORKLOAD.output.quantile(0.99), error=0.0)
    match schedule:
        case RraSchedule():
            knobs = schedule.encode_batch, schedule.encode_interval
        case CraSchedule():
            knobs = schedule.pool, schedule.chunk_tokens
        case WaaSchedule():
            knobs = schedule.encode_batch, schedule.pool
    found = uses(model_for(schedule, TABLE, law), knobs, promise, EVERYTHING, queries_per_s=1.0)
    return {use.name: use for use in found}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: each.model_dump_json()[13:40])
def test_each_limit_is_used_as_queries_see_it(schedule: Schedule) -> None:
    """Means within 5 %, 99th percentiles within 8 %, sampling included."""
    seen, expected = played(schedule), predicted(schedule)
    length = WORKLOAD.output.quantile(0.99)
    queries = seen.queries
    first_s = np.array([each.first_token_s - each.encode_start_s for each in queries])
    assert expected["first_token"].mean == pytest.approx(first_s.mean(), rel=0.05)
    assert expected["first_token"].promised == pytest.approx(np.quantile(first_s, 0.99), rel=0.08)
    long = [each for each in queries if each.output == length]
    token_s = [(each.finish_s - each.first_token_s) / (length - 1) for each in long]
    assert expected["token"].mean == pytest.approx(float(np.mean(token_s)), rel=0.05)
    latencies_s = [each.latency_s for each in queries]
    assert expected["all_answers"].promised == pytest.approx(
        np.quantile(latencies_s, 0.99), rel=0.08
    )


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=["RRA", "RRA longer", "CRA"])
def test_the_longest_gap_is_that_of_answers_of_the_bounds_length(schedule: Schedule) -> None:
    seen, expected = played(schedule), predicted(schedule)
    length = WORKLOAD.output.quantile(0.99)
    ends_s = np.array([step.end_s for step in seen.steps if step.shape.decode_queries])
    gaps_s = []
    for query in seen.queries:
        if query.output == length and query.first_token_s >= ends_s[0]:
            mine = ends_s[(ends_s >= query.first_token_s - 1e-12) & (ends_s <= query.finish_s)]
            times = np.unique(np.append(query.first_token_s, mine))
            gaps_s.append(max(b - a for a, b in pairwise(times)))
    assert len(gaps_s) > 500
    assert expected["gap"].promised == pytest.approx(np.quantile(gaps_s, 0.99), rel=0.1)


def limited(strategy: str, seed: int) -> tuple[StrategySpace, float]:
    """A random space whose random limits usually bind, by a random schedule of it."""
    space = random_space(strategy, seed)
    points = [p for p in space.whole.points() if space.blocked(p) is None]
    rng = np.random.default_rng((seed, 5))
    if not points:
        return space, 1.0
    point = points[int(rng.integers(len(points)))]
    every = under(space, replace(EVERYTHING, arrivals_per_s=1e-3))
    at = {use.name: use for use in every.uses(point)}
    names = [name for name in ("all_answers", "first_token", "gap", "token") if name in at]
    drawn = {
        f"{name}_s": at[name].promised * float(rng.choice([1.0, 1.02, 1.5]))
        for name in names
        if rng.random() < 0.5
    }
    answer_s = at["answer"].promised * float(rng.choice([1.0, 1.3, math.inf]))
    arrivals = space.throughput(point) * float(rng.choice([0.0, 0.3, 0.9]))
    limits = Limits(answer_s=answer_s, arrivals_per_s=arrivals, **drawn)
    return under(space, limits), limits.reference_s


def under(space: StrategySpace, limits: Limits) -> StrategySpace:
    """The same space under other limits."""
    match space:
        case RraSpace():
            promise = replace(space.promise, limits=limits)
            return RraSpace(space.model, promise, space.kv_capacity, units=space.units)
        case CraSpace():
            promise = replace(space.promise, limits=limits)
            return CraSpace(space.model, promise, space.kv_capacity, units=space.units)
        case WaaSpace():
            return WaaSpace(space.model, replace(space.promise, limits=limits), space.rooms)
    raise AssertionError(space)


FAST = {"RRA": 15, "RRA on pipelines": 15, "CRA": 15, "WAA": 15}


@pytest.mark.parametrize(("strategy", "seed"), cases(fast=FAST, last=250))
def test_search_keeps_all_limits_and_finds_what_exhaustive_search_finds(
    strategy: str, seed: int
) -> None:
    space, bound_s = limited(strategy, seed)
    found, best = search(space, bound_s), best_of_all(space, bound_s)
    assert_as_good(found.best, best)
    throughput = None if best is None else best.throughput
    assert check(certify(space, found), space, best=throughput, bound_s=bound_s) == []
    if best is not None:
        assert all(use.share <= 1 + 1e-9 for use in space.uses(best.point))


@pytest.mark.parametrize(("strategy", "seed"), cases(fast=FAST, last=100))
def test_no_schedule_of_a_block_uses_less_than_its_bound(strategy: str, seed: int) -> None:
    space, _ = limited(strategy, seed)
    rng = np.random.default_rng((seed, 2))
    block = random_block(space, rng)
    bounds = space.bound(block)
    for point in block.points():
        if space.blocked(point) is None:
            assert space.promised_s(point) >= bounds.promised_s * (1 - 1e-9), point


def test_a_limit_that_is_not_asked_for_is_not_written() -> None:
    assert Bound(seconds=1).model_dump(mode="json").keys() == {
        "seconds",
        "percentile_length",
        "mode",
    }
    assert Bound(seconds=1).limits is None
    assert Bound(seconds=math.inf, gap_s=0.2).reference_s == 0.2
