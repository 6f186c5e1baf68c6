"""Small random spaces for the search: rough tables, short lengths, and sometimes little memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.layout import Typical, layouts
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.search import Candidate
from exegpt_planner.shapes import Room, Shape, micro_batches
from exegpt_planner.simulator.costs import costs_of, hand_over_of
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.encode_queue import QueueFamily
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import Instances, WaaModel
from exegpt_planner.strategies import StrategySpace
from exegpt_planner.waa_space import Rooms, WaaSpace
from exegpt_planner.workload import Workload
from planner.builders import bell, correlated, independent, rough_parallel, rough_table

NUM_WORKLOADS = 4
SPLITS = ((1, 1), (2, 1), (1, 2), (3, 1))


@cache
def workload(index: int) -> Workload:
    return (
        independent(bell(20, 9, 40), bell(7, 3, 14)),
        independent(bell(12, 5, 30), bell(2, 2, 9)),  # many answers of one token
        correlated(bell(8, 4, 16), factor=1.5),
        independent(bell(25, 1, 28), bell(10, 0.5, 12)),  # nearly constant lengths
    )[index]


@cache
def queues(index: int) -> QueueFamily:
    return QueueFamily(workload(index))


def random_space(strategy: str, seed: int) -> StrategySpace:
    rng = np.random.default_rng(seed)
    index = int(rng.integers(NUM_WORKLOADS))
    law = CompletionLaw(workload(index))
    table = rough_table(rng, context=float(rng.choice([300, 900, 3000])))
    promise = Promise.full(
        length=law.workload.output.quantile(0.99), error=float(rng.uniform(0, 0.1))
    )
    capacity = float(rng.choice([200, 1000, 1e9], p=[0.1, 0.4, 0.5]))
    costs, prompts = costs_of(table), prompt_moments(law.workload)
    if strategy == "RRA on pipelines":
        table = rough_parallel(table, rng)
        shape = random_shape(table, law, rng)
        model = RraModel(Pipeline.of(shape, table), law, prompts)
        return RraSpace(model, promise, capacity, units=shape.units)
    if strategy == "CRA on pipelines":
        table = rough_parallel(table, rng)
        shape = random_shape(table, law, rng)
        piped = CraModel(Pipeline.of(shape, table), law, prompts)
        piped.queues = queues(index)
        return CraSpace(piped, promise, capacity, units=shape.units)
    if strategy == "RRA":
        return RraSpace(
            RraModel(Pipeline.single(costs), law, prompts), promise, capacity, units=1 + seed % 3
        )
    if strategy == "WAA":
        split = SPLITS[int(rng.integers(len(SPLITS)))]
        waa = WaaModel(Instances.alike(costs, hand_over_of(table)), law, prompts, split)
        return WaaSpace(waa, promise, Rooms(encoder=capacity, decoder=capacity))
    cra = CraModel(Pipeline.single(costs), law, prompts)
    cra.queues = queues(index)  # solved once for all tests
    return CraSpace(cra, promise, capacity, units=1 + seed % 3)


def held_to(space: StrategySpace, bound_s: float) -> StrategySpace:
    """The same space, which knows the bound that it is searched under."""
    promise = replace(space.promise, bound_s=bound_s)
    match space:
        case RraSpace():
            return RraSpace(space.model, promise, space.kv_capacity, units=space.units)
        case CraSpace():
            return CraSpace(space.model, promise, space.kv_capacity, units=space.units)
        case WaaSpace():
            return WaaSpace(space.model, promise, space.rooms)
    raise AssertionError(space)


def some_bound(space: StrategySpace, seed: int) -> float:
    """A latency bound that usually binds: the promise of a random schedule, or a little more."""
    rng = np.random.default_rng((seed, 1))
    points = [p for p in space.whole.points() if space.blocked(p) is None]
    if not points:
        return 1.0
    promised = space.promised_s(points[int(rng.integers(len(points)))])
    return promised * float(rng.choice([1.0, 1.01, 1.3, 0.5]))


def random_shape(table: ProfileTable, law: CompletionLaw, rng: np.random.Generator) -> Shape:
    """One of the shapes on up to four devices, with room for whatever comes."""
    devices, units = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    choices = layouts(table, Typical.of(law, table), devices, units)
    layout = choices[int(rng.integers(len(choices)))]
    numbers = micro_batches(len(layout.stages))
    return Shape(
        units=units,
        layout=layout,
        micro_batches=numbers[int(rng.integers(len(numbers)))],
        room=Room(kv_tokens=10**9, activation_tokens=0.0, stage=0),
    )


def assert_as_good(found: Candidate | None, best: Candidate | None) -> None:
    """Of schedules with the same throughput, either may be found."""
    assert (found is None) == (best is None), (found, best)
    if found is not None and best is not None:
        assert found.throughput == pytest.approx(best.throughput, rel=1e-9), (found, best)
