"""Encoder-decoder models: the encode passes other layers, samples nothing, and the answer takes one iteration more."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.layout import Typical, bills
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.relaxation import Relaxation
from exegpt_planner.schedule import RraSchedule
from exegpt_planner.shapes import shapes
from exegpt_planner.simulator import latency_of, simulate
from exegpt_planner.simulator.costs import step_costs
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.tasks import paper_task

T5 = builtin_model("t5-11b")
TABLE = analytic_table(T5, cluster_of("a40", 8), "float16")
TASK = paper_task("S")
BUDGET = MemoryBudget(device_bytes=48 << 30, reserve_bytes=2 << 30, holds_activations=False)


def planned(seconds: float, strategies: tuple[str, ...] = ("RRA", "CRA", "WAA")) -> Plan:
    return make_plan(
        table=TABLE,
        model=T5,
        workload=TASK,
        bound=Bound(seconds=seconds, mode="mean"),
        memory=BUDGET,
        strategies=strategies,
        workers=8,
        with_sensitivity=False,
    )


def test_an_answer_takes_as_many_iterations_as_it_has_tokens() -> None:
    law, decoder_only = law_on(TABLE, TASK), CompletionLaw(TASK)
    assert law.decode_mean == pytest.approx(TASK.output.mean)
    assert law.decode_mean == pytest.approx(decoder_only.decode_mean + 1)
    for each in (law, decoder_only):
        assert each.output_mean == pytest.approx(TASK.output.mean)
    assert law.longest == TASK.output.max


def test_encodes_pass_the_encoder_alone_and_decodes_the_decoder_alone() -> None:
    assert TABLE.encoder is not None
    (shape, *_) = [s for s in shapes(TABLE, T5, BUDGET, Typical.of(law_on(TABLE, TASK), TABLE), 8)
                   if len(s.layout.stages) == 1 and s.layout.degree == 1]  # fmt: skip
    costs = step_costs(TABLE, bills(shape.layout, TABLE, shape.units).whole)
    tokens = 5000.0
    of_encoder = TABLE.encoder.num_layers * TABLE.encoder.layer.tokens(tokens)
    assert float(costs.per_token(tokens)) == pytest.approx(
        of_encoder + TABLE.outside.tokens(tokens)
    )
    context = 40_000.0
    of_decoder = TABLE.num_layers * TABLE.layer.decode_context(context)
    assert float(costs.per_context(context)) == pytest.approx(of_decoder)
    assert costs.encode_fixed_s == costs.decode_fixed_s == TABLE.step_overhead_s


def test_both_parts_are_laid_on_every_stage() -> None:
    typical = Typical.of(law_on(TABLE, TASK), TABLE)
    for shape in shapes(TABLE, T5, BUDGET, typical, 8):
        stages = shape.layout.stages
        assert sum(stage.layers for stage in stages) == 24
        assert sum(stage.encoder_layers for stage in stages) == 24
        assert min(min(stage.layers, stage.encoder_layers) for stage in stages) >= 1


def test_rra_and_waa_are_planned_and_cra_says_why_not() -> None:
    plan = planned(20.0)
    assert isinstance(plan.schedule, RraSchedule)
    assert plan.length_tokens == 63
    reasons = {each.strategy: each.reason for each in plan.alternatives}
    assert "decoder-only" in reasons["CRA"]
    assert "splits searched" in reasons["WAA"]
    expected = plan.prediction
    assert expected.tokens_per_s == pytest.approx(expected.queries_per_s * TASK.output.mean)
    assert simulate(plan.schedule, TABLE, TASK).queries_per_s == pytest.approx(
        expected.queries_per_s
    )
    at_s99 = latency_of(plan.schedule, TABLE, TASK, plan.length_tokens)
    assert at_s99 == pytest.approx(expected.latency_mean_s)
    with pytest.raises(InvalidSpec, match="decoder-only"):
        planned(20.0, ("CRA",))


def test_no_schedule_beats_the_relaxation_of_its_shape() -> None:
    law, rng = law_on(TABLE, TASK), np.random.default_rng(5)
    prompts, length = prompt_moments(TASK), law.workload.output.quantile(0.99)
    some = list(shapes(TABLE, T5, BUDGET, Typical.of(law, TABLE), 8))
    uppers = Relaxation(TABLE, law, prompts, length).rra(some, 12.0).max(axis=1)
    for at in rng.choice(len(some), 12, replace=False):
        shape = some[int(at)]
        model = RraModel(Pipeline.of(shape, TABLE), law, prompts, 300)
        for _ in range(8):
            batch = int(rng.integers(shape.micro_batches, model.max_batch + 1))
            interval = int(rng.integers(1, law.longest + 1))
            keeps = model.latency_mean_s(batch, interval, length) <= 12.0
            if keeps and model.kv_need(batch, interval) <= shape.room.kv_tokens:
                reached = shape.units * model.throughput(batch, interval)
                assert reached <= uppers[at] * (1 + 1e-9)
