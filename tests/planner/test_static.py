"""Static batches, with early termination and without, beside RRA's closed form and the simulation query by query."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.events.policies import run_static
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Until
from exegpt_planner.events.stages import LayoutStages
from exegpt_planner.layout import Typical
from exegpt_planner.plan import make_plan
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.schedule import StaticSchedule
from exegpt_planner.shapes import shapes
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.static import StaticModel
from planner.test_layouts import BUDGET, FOUR, LAW, OPT
from planner.test_pipelined import shape_of


def models(num_stages: int, number: int) -> tuple[RraModel, StaticModel, StaticModel]:
    pipeline = Pipeline.of(shape_of(num_stages, number), FOUR)
    unit = RraModel(pipeline, LAW, prompt_moments(LAW.workload), 200)
    early, plain = (StaticModel(unit, early_termination=each) for each in (True, False))
    return unit, early, plain


def test_early_termination_is_rra_with_a_phase_as_long_as_any_answer() -> None:
    unit, early, _ = models(1, 1)
    for batch in (1, 8, 64):
        assert early.throughput(batch) == pytest.approx(unit.throughput(batch, LAW.longest))
        assert early.kv_need(batch) == unit.kv_need(batch, LAW.longest)


def test_computing_what_has_ended_costs_throughput_and_the_longest_answer_is_the_latest() -> None:
    for num_stages, number in ((1, 1), (4, 4)):
        _, early, plain = models(num_stages, number)
        for batch in (4, 32, 128):
            assert plain.throughput(batch) < early.throughput(batch)
            assert plain.latency_s(batch, 63) > early.latency_s(batch, 63)
            assert plain.kv_need(batch) == batch * (512 + 80)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("num_stages", "number", "batch"), [(1, 1, 24), (4, 4, 40)])
def test_batches_take_what_the_simulation_says(
    early: bool, num_stages: int, number: int, batch: int
) -> None:
    _, with_it, without = models(num_stages, number)
    run = run_static(
        StaticSchedule(batch=batch, early_termination=early),
        LayoutStages(FOUR, shape_of(num_stages, number).layout),
        Backlog.of(LAW.workload, np.random.default_rng(3)),
        Until(queries=4000, warm_up=500),
        micro_batches=number,
    )
    predicted = (with_it if early else without).throughput(batch)
    assert predicted == pytest.approx(run.queries_per_s, rel=0.03)


@pytest.mark.parametrize("bound_s", [4.0, 12.0])
def test_the_choice_is_never_below_static_batches_on_any_shape(bound_s: float) -> None:
    plan = make_plan(
        table=FOUR,
        model=OPT,
        workload=LAW.workload,
        bound=Bound(seconds=bound_s, mode="mean"),
        memory=BUDGET,
        strategies=("RRA",),
        workers=4,
        with_sensitivity=False,
    )
    prompts, length = prompt_moments(LAW.workload), LAW.workload.output.quantile(0.99)
    for shape in shapes(FOUR, OPT, BUDGET, Typical.of(LAW, FOUR), 4):
        unit = RraModel(Pipeline.of(shape, FOUR), LAW, prompts, 160)
        for early in (True, False):
            static = StaticModel(unit, early_termination=early)
            for batch in range(shape.micro_batches, unit.max_batch + 1, 24):
                fits = static.kv_need(batch) <= shape.room.kv_tokens
                if fits and static.latency_s(batch, length) <= bound_s:
                    reached = shape.units * static.throughput(batch)
                    assert reached <= plan.prediction.queries_per_s * (1 + 1e-9)
