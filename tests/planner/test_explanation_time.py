"""Where a cycle's time goes: by hand on an affine machine, and as a query-by-query simulation sees it."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import fields

import numpy as np
import pytest

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Until
from exegpt_planner.events.timeline import timeline
from exegpt_planner.explanation.kinds_of_work import KINDS, only
from exegpt_planner.explanation.question import Question
from exegpt_planner.explanation.record import Use
from exegpt_planner.explanation.time_spent import uses
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import StepShape
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.schedule import RraSchedule
from planner.builders import MODEL, rough_parallel, rough_table, summarization_like
from planner.test_explanation import question


def used(asked: Question) -> tuple[Plan, tuple[Use, ...]]:
    plan = asked.plan(with_sensitivity=False)
    return plan, uses(asked.site(plan.schedule), plan.schedule, plan.prediction)


def seconds_of(use: Use) -> dict[str, float]:
    return {each.phase: each.seconds for each in use.spent}


def test_an_affine_machines_parts_are_those_reckoned_by_hand() -> None:
    plan, (use,) = used(question(strategies=("RRA",), devices=1))
    schedule = plan.schedule
    assert isinstance(schedule, RraSchedule)
    batch, prompts = schedule.encode_batch, prompt_moments(summarization_like())
    encode, decode, dispatch = use.spent
    assert [each.phase for each in use.spent] == ["encode", "decode", "dispatch"]
    found = {part.name: part.seconds for part in encode.parts}
    layers = 4
    assert found["matrices"] == pytest.approx(layers * (4e-4 + 8e-6 * batch * prompts.tokens))
    pairs_s = 2e-5 * batch + 2e-9 * batch * prompts.pairs
    assert found["attention"] == pytest.approx(layers * pairs_s)
    assert found["embedding"] == pytest.approx(1e-7 * batch * prompts.tokens)
    assert found["head"] == pytest.approx(2e-5 * batch)
    assert found["steps"] == pytest.approx(2e-4)
    phase = CompletionLaw(summarization_like()).phase(schedule.encode_interval)
    found = {part.name: part.seconds for part in decode.parts}
    running = (1 - np.exp(batch * phase.log_empty)).sum()
    queries, context = batch * phase.queries.sum(), batch * phase.context.sum()
    assert found["matrices"] == pytest.approx(layers * (4e-4 * running + 8e-6 * queries))
    assert found["attention"] == pytest.approx(layers * (1.5e-5 * queries + 4e-8 * context))
    assert found["head"] == pytest.approx(2e-5 * queries)
    assert found["steps"] == pytest.approx(2e-4 * running)
    assert dispatch.seconds == pytest.approx(3e-4)
    assert sum(each.seconds for each in use.spent) == pytest.approx(plan.prediction.cycle_s)


@pytest.mark.parametrize("strategy", ["RRA", "CRA"])
def test_phases_fill_the_cycle_and_kinds_of_work_the_phases(strategy: str) -> None:
    plan, (use,) = used(question(strategies=(strategy,)))
    assert use.devices == 2
    assert sum(each.share for each in use.spent) == pytest.approx(1)
    encode = next(each for each in use.spent if each.phase == "encode")
    assert encode.share == pytest.approx(plan.prediction.encode_share)
    for each in use.spent[:2]:
        assert sum(part.seconds for part in each.parts) == pytest.approx(each.seconds)


def test_encoders_and_decoders_of_waa_have_cycles_of_their_own() -> None:
    plan, (encoder, decoder) = used(question(strategies=("WAA",)))
    assert (encoder.devices, decoder.devices) == (1, 1)
    for use in (encoder, decoder):
        assert sum(each.share for each in use.spent) == pytest.approx(1)
    busy = 1 - sum(each.share for each in encoder.spent if each.phase == "idle")
    assert busy == pytest.approx(plan.prediction.encode_share)
    by_phase = seconds_of(encoder)
    assert by_phase["encode"] + by_phase["send"] == pytest.approx(plan.prediction.first_token_s)
    assert seconds_of(decoder)["decode"] == pytest.approx(plan.prediction.cycle_s)


def test_kinds_of_work_are_all_of_a_tables_time() -> None:
    """Each alone, they add up to the whole step, whatever its shape."""
    rng = np.random.default_rng(3)
    machine = rough_table(rng)
    for _ in range(20):
        sums = rng.uniform(1, 12, 6)
        shape = StepShape(**dict(zip((each.name for each in fields(StepShape)), sums, strict=True)))
        alone = sum(only(machine, kind).step_s(shape) for kind in KINDS)
        assert alone == pytest.approx(machine.step_s(shape))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_simulated_pipeline_spends_its_time_so(seed: int) -> None:
    """The event simulation knows no closed form: shares of each stage's time, over many rounds."""
    machine = rough_parallel(
        rough_table(np.random.default_rng(seed), reach=24, context=2500),
        np.random.default_rng(seed + 100),
        reach=24,
        context=2500,
    ).model_copy(update={"num_layers": MODEL.num_layers})
    asked = question(math.inf, table=machine, devices=3, strategies=("RRA",))
    plan = asked.plan(
        with_sensitivity=False, allowed=lambda site: len(site.shape.layout.stages) > 1
    )
    found = uses(asked.site(plan.schedule), plan.schedule, plan.prediction)
    backlog = Backlog.of(asked.workload, np.random.default_rng(seed))
    seen = run(plan.schedule, machine, backlog, Until(queries=6000, warm_up=1000))
    spent: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    shown = timeline(seen, rounds=400)
    for each in shown.intervals:
        spent[each.stage][each.kind] += (each.end_s - each.start_s) / shown.duration_s
    stage = 0
    for use in found:
        shares = {each.phase: each.share for each in use.spent}
        alike = 1 if "each of stages" not in use.who else 2
        for index in range(stage, stage + alike):
            for phase in ("encode", "decode"):
                assert spent[index][phase] == pytest.approx(shares[phase], abs=0.03)
        stage += alike
    assert stage == len(spent)
