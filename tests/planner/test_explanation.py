"""Every part of an explanation is what the planner or the simulator says when asked directly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import InfeasibleBound
from exegpt_planner.explain import explain, explanation_text
from exegpt_planner.explanation import trends as trends_module
from exegpt_planner.explanation.binding import what_binds
from exegpt_planner.explanation.build import explanation_of, no_plan
from exegpt_planner.explanation.memory_held import stages_hold
from exegpt_planner.explanation.question import Question
from exegpt_planner.explanation.record import ANY_EXPLANATION, Explanation, NoPlan
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import Curve
from exegpt_planner.schedule import RraSchedule
from exegpt_planner.simulator import simulate
from planner.builders import MODEL, rough_parallel, rough_table, summarization_like, table

FOLDER = Path(__file__).parents[1] / "golden"
KV_BYTES = MODEL.kv_bytes_per_token("float32")
WEIGHTS = MODEL.weight_bytes("float32")


def question(seconds: float = 0.3, *, kv_tokens: int = 100_000, **changes: Any) -> Question:
    asked = Question(
        name="tiny",
        table=table(),
        model=MODEL,
        workload=summarization_like(),
        bound=Bound(seconds=seconds),
        memory=MemoryBudget(device_bytes=WEIGHTS + kv_tokens * KV_BYTES),
        strategies=("RRA", "CRA"),
        devices=2,
    )
    return replace(asked, **changes)


def nothing(doing: str) -> None:
    del doing


def explained(asked: Question, points: int = 5) -> Explanation:
    return explanation_of(
        asked,
        asked.plan(),
        grow=lambda devices: replace(asked, devices=devices),
        step=nothing,
        points=points,
    )


def refused(asked: Question) -> NoPlan:
    with pytest.raises(InfeasibleBound) as caught:
        asked.plan()
    grow = lambda devices: replace(asked, devices=devices)  # noqa: E731
    return no_plan(asked, caught.value, grow=grow, step=nothing)


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explained(question())


def test_it_survives_its_file(found: Explanation) -> None:
    assert ANY_EXPLANATION.validate_json(found.model_dump_json()) == found
    unbound = explained(question(math.inf), points=3)
    assert ANY_EXPLANATION.validate_json(unbound.model_dump_json()) == unbound
    assert unbound.margin.breaks_at is None


GOLDEN: dict[str, Callable[[], Explanation | NoPlan]] = {
    "explanation.json": lambda: explained(question(0.1, strategies=("RRA",)), points=3),
    "no-plan.json": lambda: refused(question(0.03, strategies=("RRA",))),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_still_read_and_are_what_would_be_written(name: str) -> None:
    stored = (FOLDER / name).read_text(encoding="utf-8")
    golden = ANY_EXPLANATION.validate_json(stored)
    assert golden.model_dump_json(indent=2) + "\n" == stored
    assert alike(json.loads(GOLDEN[name]().model_dump_json()), json.loads(stored))


def alike(ours: object, stored: object) -> bool:
    """Equal, but for rounding."""
    match ours, stored:
        case dict(), dict():
            return ours.keys() == stored.keys() and all(alike(ours[k], stored[k]) for k in ours)
        case list(), list():
            return len(ours) == len(stored) and all(map(alike, ours, stored))
        case float(), float():
            return ours == pytest.approx(stored, rel=1e-6, abs=1e-9)
    return ours == stored


def test_it_holds_the_plan(found: Explanation) -> None:
    assert found.plan == question().plan()
    assert found.asked.devices == 2
    assert found.asked.length_tokens == found.plan.length_tokens


def test_the_frontier_is_plans_and_rises(found: Explanation) -> None:
    points = found.frontier.points
    for each in points:
        plan = question(each.bound_s * (1 + 1e-9)).plan(with_sensitivity=False)
        assert each.queries_per_s == plan.prediction.queries_per_s
        assert each.promised_s <= each.bound_s * (1 + 1e-9)
    rates = [each.queries_per_s for each in points]
    assert rates == sorted(rates)
    assert [each.bound_s for each in points if each.is_chosen] == [0.3]
    assert math.isinf(points[-1].bound_s)
    assert points[-1].queries_per_s == points[-2].queries_per_s


def test_just_below_the_best_reachable_bound_there_is_nothing(found: Explanation) -> None:
    frontier = found.frontier
    assert frontier.points[0].bound_s == frontier.least_s
    assert frontier.refuted_s == pytest.approx(0.99 * frontier.least_s)
    with pytest.raises(InfeasibleBound):
        question(frontier.refuted_s).plan()


def test_the_ranking_is_led_by_the_plan_and_has_every_strategys_best(found: Explanation) -> None:
    first, *others = found.ranking
    assert first.is_chosen
    assert first.schedule == found.plan.schedule
    assert not any(each.is_chosen for each in others)
    planned = [each.prediction for each in found.ranking if each.prediction]
    rates = [each.queries_per_s for each in planned]
    assert rates == sorted(rates, reverse=True)
    assert all(each.promised_s <= 0.3 for each in planned)
    for best in found.plan.alternatives:
        of_it = [
            each.prediction.queries_per_s
            for each in found.ranking
            if each.strategy == best.strategy and each.prediction
        ]
        assert best.prediction is not None
        assert max(of_it) == best.prediction.queries_per_s


def test_what_lost_says_by_how_much(found: Explanation) -> None:
    for each in found.ranking[1:]:
        assert each.prediction is not None
        less = 1 - each.prediction.queries_per_s / found.plan.prediction.queries_per_s
        assert each.reason.startswith(f"{less:.1%} less throughput; ")
        assert "binds" in each.reason


def test_a_strategy_that_cannot_be_planned_is_ranked_last_with_its_reason() -> None:
    ranking = explained(question(devices=1, strategies=("RRA", "WAA")), points=3).ranking
    assert ranking[-1].strategy == "WAA"
    assert ranking[-1].schedule is None
    assert ranking[-1].reason.startswith("needs at least two workers")


def test_one_that_keeps_no_such_bound_says_what_it_promises() -> None:
    tight = explained(question(0.062), points=3)
    missed = [each for each in tight.ranking if each.schedule is None]
    assert missed
    for each in missed:
        assert "no schedule keeps 0.062 s; the fastest found promises" in each.reason
        with pytest.raises(InfeasibleBound):
            question(0.062, strategies=(each.strategy,)).plan()


def test_changes_are_plans(found: Explanation) -> None:
    more, looser = found.changes
    assert (more.change, more.devices) == ("devices", 3)
    assert more.queries_per_s == question(devices=3).plan().prediction.queries_per_s
    assert looser.bound_s == pytest.approx(0.33)
    assert looser.queries_per_s == question(looser.bound_s).plan().prediction.queries_per_s


def test_memory_adds_up(found: Explanation) -> None:
    (stage,) = found.stages
    held = stage.weight_bytes + stage.kv_bytes + stage.kept_bytes + stage.free_bytes
    assert held == pytest.approx(WEIGHTS + 100_000 * KV_BYTES)
    assert stage.weight_bytes == WEIGHTS
    assert stage.kv_bytes == pytest.approx(found.plan.prediction.kv_tokens_reserved * KV_BYTES)
    assert stage.is_tightest


def test_memory_of_a_pipeline_is_the_models_and_its_tightest_stage_gives_the_capacity() -> None:
    machine = rough_parallel(rough_table(np.random.default_rng(5)), np.random.default_rng(6))
    machine = machine.model_copy(update={"num_layers": MODEL.num_layers})
    asked = question(math.inf, table=machine, devices=4, strategies=("RRA",))
    plan = asked.plan(allowed=lambda site: len(site.shape.layout.stages) == 4)
    layout = asked.site(plan.schedule).shape.layout
    stages = stages_hold(layout, asked, plan.prediction.kv_tokens_reserved)
    devices = sum((each.last - each.first + 1) * each.degree for each in stages)
    assert devices == 4
    # the head of a model with tied embeddings is a copy on the last stage
    whole = WEIGHTS + MODEL.head_weight_bytes("float32")
    weights = [(each.last - each.first + 1) * each.weight_bytes for each in stages]
    assert sum(weights) == pytest.approx(whole, rel=1e-3)
    tightest = next(each for each in stages if each.is_tightest)
    room = WEIGHTS + 100_000 * KV_BYTES - tightest.weight_bytes
    each_kv = tightest.layers * MODEL.kv_bytes_per_token_layer("float32")
    assert int(room / each_kv) == plan.kv_tokens_capacity


def binds_of(plan: Plan) -> str:
    return what_binds(plan).kind


def test_what_binds() -> None:
    assert binds_of(question(strategies=("RRA",)).plan()) == "latency"
    assert binds_of(question(2.0, strategies=("RRA",), kv_tokens=4000).plan()) == "memory"
    narrow = table(queries=Curve(x=(0, 24), seconds=(0, 4e-4)))
    assert binds_of(question(1.0, strategies=("RRA",), table=narrow).plan()) == "profile"
    at_its_end = what_binds(question(math.inf, strategies=("RRA",)).plan(), 0.95)
    assert (at_its_end.kind, at_its_end.profile_used) == ("profile", 0.95)


def test_analytic_times_do_not_make_the_profile_bind() -> None:
    plan = question(math.inf, strategies=("RRA",)).plan(with_sensitivity=False)
    free = plan.model_copy(update={"warnings": ("step times are analytic",), "source": "analytic"})
    assert what_binds(free).kind == "nothing"


@pytest.fixture(scope="module")
def rra() -> Explanation:
    return explained(question(strategies=("RRA",)), points=3)


def test_an_affine_machine_is_monotone_in_rras_knobs(rra: Explanation) -> None:
    for each in rra.trends:
        assert each.num_pairs > 100
        assert each.throughput_against[1:] == (0, 0)
        assert each.promise_against[1:] == (0, 0)
    assert [each.direction for each in rra.trends] == ["rises", "falls"]


def test_every_point_of_a_slice_is_the_simulators(rra: Explanation) -> None:
    chosen = rra.plan.schedule
    assert isinstance(chosen, RraSchedule)
    for trend in rra.trends:
        assert [each.value for each in trend.through_chosen if each.is_chosen] == [
            getattr(chosen, trend.knob)
        ]
        for each in trend.through_chosen[::5]:
            there = chosen.model_copy(update={trend.knob: each.value})
            expected = simulate(there, table(), summarization_like())
            assert each.queries_per_s == pytest.approx(expected.queries_per_s)
            assert each.promised_s == pytest.approx(expected.promised_s)


def test_steps_against_the_trend_are_counted_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gets faster with the seventh query; its space is small enough to be looked at whole."""
    monkeypatch.setattr(trends_module, "LINES", 10_000)
    monkeypatch.setattr(trends_module, "PAIRS", 10_000)
    dip = Curve(x=(0.0, 6.0, 7.0, 12.0), seconds=(0.0, 3e-3, 1e-3, 4e-3))
    machine = table(queries=dip)
    asked = question(1.0, table=machine, strategies=("RRA",), devices=1)
    plan = asked.plan(with_sensitivity=False)
    law = CompletionLaw(asked.workload)
    space = asked.site(plan.schedule).space(plan.bound.promise(law, machine))
    whole, rate = space.whole, plan.prediction.queries_per_s
    steps = [
        (
            (space.throughput((batch, interval)) - space.throughput((batch + 1, interval))) / rate,
            space.promised_s((batch, interval)) - space.promised_s((batch + 1, interval)),
        )
        for interval in range(1, whole.y2 + 1)
        for batch in range(1, whole.x2)
        if not any(space.blocked((each, interval)) for each in (batch, batch + 1))
    ]
    by_batch, _ = trends_module.trends(space, plan)
    assert by_batch.num_pairs == len(steps)
    for what, counted in enumerate((by_batch.throughput_against, by_batch.promise_against)):
        lost = [each[what] for each in steps]
        assert counted == tuple(sum(each > limit for each in lost) for limit in (0, 0.02, 0.05))
    assert by_batch.promise_against[1] > 0


def test_no_plan_says_the_best_reachable_bound_and_that_nothing_is_below() -> None:
    found = refused(question(0.03))
    assert found.binds == "latency"
    assert found.reached is not None
    assert found.refuted_s is not None
    least_s = found.reached.prediction.promised_s
    assert question(least_s * (1 + 1e-9)).plan().prediction.promised_s <= least_s * (1 + 1e-9)
    assert found.refuted_s == pytest.approx(0.99 * least_s)
    with pytest.raises(InfeasibleBound):
        question(found.refuted_s).plan()
    parts = found.reached.mean_s + found.reached.fluctuation_s + found.reached.margin_s
    assert parts == pytest.approx(least_s)
    assert found.cluster is None  # a measured profile tells of no other machine
    assert ANY_EXPLANATION.validate_json(found.model_dump_json()) == found
    assert f"{found.reached.fits_tokens} tokens" in explanation_text(found)


def test_weights_that_do_not_fit_say_which_stage_lacks_what() -> None:
    found = refused(question(kv_tokens=-10))
    assert found.binds == "memory"
    (stage,) = found.stages
    assert stage.free_bytes == -10 * KV_BYTES
    assert "lacks" in explanation_text(found)


def test_kv_that_does_not_fit_says_so() -> None:
    found = refused(question(kv_tokens=20))
    assert found.binds == "memory"
    (stage,) = found.stages
    workload = summarization_like()
    assert stage.kv_bytes == pytest.approx((workload.input.mean + workload.output.mean) * KV_BYTES)
    assert stage.free_bytes < 0


def test_the_text_answers_the_questions(found: Explanation) -> None:
    text = explanation_text(found)
    for part in (
        "Latency binds",
        "Where the time goes",
        "Memory of each device",
        "The best reachable bound is",
        "<- chosen",
        "Ranked",
        "less throughput",
        "with 3 devices",
        "10 % looser",
        "20 % less",
        "breaks at",
        "Monotone on this table",
        "Proof",
    ):
        assert part in text, part
    assert explain(found.plan).startswith(text.split("\n\n")[1].split("\n")[0])
