"""RRA on pipelines: the closed form beside the simulation query by query, and bounds of whole shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Until
from exegpt_planner.events.rra import run_rra
from exegpt_planner.events.stages import LayoutStages
from exegpt_planner.layout import Typical, layouts
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.relaxation import Relaxation
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.schedule import RraSchedule
from exegpt_planner.shapes import Room, Shape
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from planner.builders import rough_parallel, rough_table
from planner.spaces import NUM_WORKLOADS, random_shape, workload
from planner.test_layouts import FOUR, LAW

ROOM = Room(kv_tokens=10**9, activation_tokens=0.0, stage=0)
PROBED = CompletionLaw(LAW.workload.with_probes(0.2))

# stages, micro-batches, B_E, N_D: filled, not filled, few and many queries, long and short phases
CASES = [
    (1, 1, 18, 7),
    (4, 5, 59, 10),
    (4, 2, 40, 13),
    (3, 4, 32, 5),
    (2, 4, 46, 9),
    (4, 8, 78, 2),
    (3, 1, 6, 32),
    (4, 4, 48, 22),
]


def shape_of(num_stages: int, number: int) -> Shape:
    typical = Typical.of(LAW, FOUR)
    layout = next(each for each in layouts(FOUR, typical, 4) if len(each.stages) == num_stages)
    return Shape(units=1, layout=layout, micro_batches=number, room=ROOM)


@pytest.mark.parametrize(("num_stages", "number", "batch", "interval"), CASES)
def test_the_closed_form_is_what_queries_see(
    num_stages: int, number: int, batch: int, interval: int
) -> None:
    """Within 3 % in throughput and 5 % in latency, pipelined; 1 % and 2 % on one stage, sampling included."""
    shape = shape_of(num_stages, number)
    model = RraModel(Pipeline.of(shape, FOUR), PROBED, prompt_moments(PROBED.workload), batch)
    length = PROBED.workload.output.quantile(0.99)
    run = run_rra(
        RraSchedule(encode_batch=batch, encode_interval=interval),
        LayoutStages(FOUR, shape.layout),
        Backlog.of(PROBED.workload, np.random.default_rng(7)),
        Until(queries=3000, warm_up=1000),
        micro_batches=number,
    )
    tolerance = (0.01, 0.02) if num_stages == 1 else (0.03, 0.05)
    assert model.throughput(batch, interval) == pytest.approx(run.queries_per_s, rel=tolerance[0])
    seen = float(np.mean(run.latencies_s(length)))
    assert model.latency_mean_s(batch, interval, length) == pytest.approx(seen, rel=tolerance[1])


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_of_a_shape_beats_its_relaxation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    law = CompletionLaw(workload(int(rng.integers(NUM_WORKLOADS))))
    table = rough_parallel(rough_table(rng), rng)
    capacity = int(rng.choice([200, 1000, 10**9]))
    shape = replace(random_shape(table, law, rng), room=replace(ROOM, kv_tokens=capacity))
    promise = Promise.full(length=law.workload.output.quantile(0.99), error=0.05)
    prompts = prompt_moments(law.workload)
    space = RraSpace(
        RraModel(Pipeline.of(shape, table), law, prompts), promise, capacity, units=shape.units
    )
    if space.whole.num_points < 1:
        return
    relaxation = Relaxation(table, law, prompts, promise.length)
    points = [point for point in space.whole.points() if space.blocked(point) is None]
    promised_s = [space.promised_s(point) for point in points]
    for bound_s in (np.inf, *rng.choice(promised_s or [1.0], 2)):
        uppers = relaxation.rra([shape], bound_s / (1 + promise.error))[0]
        phases = relaxation.cycles.phases
        for point, promised in zip(points, promised_s, strict=True):
            if promised > bound_s:
                continue
            block = int(np.searchsorted(phases.first, point[1], side="right")) - 1
            assert space.throughput(point) <= uppers[block] * (1 + 1e-9), point


def test_a_relaxation_is_near_the_best_on_a_machine_without_steps() -> None:
    """Within a quarter on the paper's OPT-13B: what makes searching most shapes needless."""
    promise = Promise.of_mean(length=LAW.workload.output.quantile(0.99))
    prompts = prompt_moments(LAW.workload)
    relaxation = Relaxation(FOUR, LAW, prompts, promise.length)
    shape = replace(shape_of(1, 1), room=replace(ROOM, kv_tokens=180_000))
    model = RraModel(Pipeline.of(shape, FOUR), LAW, prompts, 700)
    space = RraSpace(model, promise, shape.room.kv_tokens)
    for bound_s in (5.9, 11.5):
        best = max(
            space.throughput(point)
            for point in [(b, n) for b in range(4, 200, 4) for n in (7, 9, 13, 21, 31, 62)]
            if space.promised_s(point) <= bound_s
        )
        assert best <= relaxation.rra([shape], bound_s).max() <= 1.25 * best
