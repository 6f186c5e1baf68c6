"""Cliffs of RRA: where a multiple of N_D is, what crossing it costs, and what is offered, against all schedules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.cliffs import Cliff, Held, cliff, cliff_warnings
from exegpt_planner.drift_broken import broken_share
from exegpt_planner.drift_laws import shifted
from exegpt_planner.drift_moves import Setting
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.schedule import CraSchedule, RraSchedule
from exegpt_planner.simulator import simulate
from exegpt_planner.tasks import paper_task
from exegpt_planner.workload import Workload
from planner.builders import MODEL, bell, independent, point, rough_table, summarization_like, table
from planner.spaces import workload

T = paper_task("T")
Edge = tuple[Plan, Setting, Cliff]
A40 = cluster_of("a40", 4)


def translation(bound_s: float, mode: str = "p99") -> Setting:
    """The paper's OPT-13B on four A40, task T, on step times from published figures."""
    model = builtin_model("opt-13b")
    return Setting(
        table=analytic_table(model, A40, "float16"),
        model=model,
        bound=Bound.model_validate({"seconds": bound_s, "mode": mode}),
        memory=MemoryBudget(
            device_bytes=A40.device.memory_bytes, reserve_bytes=2 << 30, holds_activations=False
        ),
        strategies=("RRA",),
        workers=4,
    )


def small_setting(bound_s: float) -> Setting:
    """A small model on one device."""
    return Setting(
        table=table(),
        model=MODEL,
        bound=Bound(seconds=bound_s),
        memory=MemoryBudget(device_bytes=10**9),
        strategies=("RRA",),
    )


def found(plan: Plan, at: Setting, planned: Workload) -> Cliff:
    one = cliff(at.site(plan.schedule, planned), plan.schedule, at.held(planned))
    assert one is not None
    return one


@pytest.fixture(scope="module")
def edge() -> Edge:
    at = translation(8.0)
    plan = at.plan(T)
    return plan, at, found(plan, at, T)


def test_a_plan_on_the_edge_loses_a_quarter_of_the_bound_to_15_per_cent_more_mean(
    edge: Edge,
) -> None:
    plan, at, one = edge
    schedule = plan.schedule
    assert isinstance(schedule, RraSchedule)
    assert (T.s99 - 1) % schedule.encode_interval == 0
    assert (one.decodes, one.encodes, one.spare_tokens, one.edge_tokens) == (291, 1, 0, 292)
    assert one.mean_factor == pytest.approx(1.02)
    before = simulate(schedule, at.table, T)
    after = simulate(schedule, at.table, shifted(T, mean=1.15))
    assert after.latency_mean_s / before.latency_mean_s == pytest.approx(1.27, abs=0.02)
    assert [each.encodes for each in one.after] == [2, 2]
    assert one.after[1].length_tokens == 301
    assert one.after[1].of_bound == pytest.approx(after.promised_s / 8.0)
    assert one.after[1].of_bound == pytest.approx(1.26, abs=0.02)
    assert one.step_of_bound == pytest.approx(0.20, abs=0.02), "most of it is the one encode"
    assert one.is_near


def test_the_offer_keeps_the_bound_after_the_drift_at_the_price_it_says(
    edge: Edge,
) -> None:
    plan, at, one = edge
    offer = one.offer
    assert offer is not None
    before = simulate(offer.schedule, at.table, T)
    after = simulate(offer.schedule, at.table, shifted(T, mean=1.15))
    assert max(before.promised_s, after.promised_s) <= 8.0
    assert offer.of_bound == pytest.approx(before.promised_s / 8.0)
    assert offer.of_bound_after == pytest.approx(after.promised_s / 8.0)
    assert offer.queries_per_s == pytest.approx(before.queries_per_s)
    lost = 1 - before.queries_per_s / plan.prediction.queries_per_s
    assert offer.throughput_lost == pytest.approx(lost)
    assert 0.02 < lost < 0.12
    assert offer.schedule.units == plan.schedule.units
    assert offer.schedule.layout == plan.schedule.layout


def test_a_plan_warns_of_its_cliff_and_names_the_offer(edge: Edge) -> None:
    plan, _, one = edge
    (warning,) = (each for each in plan.warnings if "cliff" in each)
    assert "passes 292 tokens, an encode more" in warning
    small = small_setting(0.1)
    full = make_plan(
        table=small.table,
        model=small.model,
        workload=summarization_like(),
        bound=small.bound,
        memory=small.memory,
        strategies=small.strategies,
    )
    its = found(full, small, summarization_like())
    assert its.offer is not None
    assert full.warnings == its.warnings()
    assert f"encode_batch={its.offer.schedule.encode_batch}" in full.warnings[-1]
    assert max(map(len, (*full.warnings, *one.warnings()))) < 150


def test_an_edge_that_no_answer_passes_is_no_cliff(edge: Edge) -> None:
    _, at, one = edge
    offer = one.offer
    assert offer is not None
    beyond = offer.schedule.model_copy(update={"encode_interval": 319})  # no answer is longer
    far = cliff(at.site(beyond, T), beyond, at.held(T), with_offer=False)
    assert far is not None
    assert (far.encodes, far.mean_factor) == (1, None)
    assert not far.is_near
    assert list(cliff_warnings(at.site(beyond, T), beyond, at.held(T), with_offer=False)) == []


def test_a_step_of_many_is_no_cliff(edge: Edge) -> None:
    plan, at, _ = edge
    often = RraSchedule(encode_batch=8, encode_interval=23, layout=plan.schedule.layout)
    steps = cliff(at.site(often, T), often, at.held(T), with_offer=False)
    assert steps is not None
    assert steps.encodes == 13
    assert steps.mean_factor is not None, "it is crossed"
    assert steps.step_of_bound < 0.05
    assert not steps.is_near


def test_only_rra_with_a_bound_and_answers_that_decode_has_cliffs() -> None:
    at = small_setting(0.3)
    planned, rra = summarization_like(), RraSchedule(encode_batch=4, encode_interval=8)
    site, held = at.site(rra, planned), at.held(planned)
    assert cliff(site, rra, held) is not None
    assert cliff(site, CraSchedule(pool=4, chunk_tokens=64), held) is None
    assert cliff(site, rra, replace(held, bound_s=math.inf)) is None
    at_once = independent(bell(32, 17, 64), point(1))
    assert cliff(at.site(rra, at_once), rra, at.held(at_once)) is None


def test_lengths_that_cannot_drift_have_an_edge_and_no_cliff() -> None:
    constant = independent(bell(32, 17, 64), point(17))
    at = small_setting(0.3)
    schedule = RraSchedule(encode_batch=4, encode_interval=8)
    one = cliff(at.site(schedule, constant), schedule, at.held(constant))
    assert one is not None
    assert (one.decodes, one.encodes, one.spare_tokens) == (16, 2, 0)
    assert (one.mean_factor, one.after, one.offer) == (None, (), None)
    assert not one.is_near


@pytest.mark.parametrize("interval", [1, 7, 10, 28, 29, 30, 39])
def test_where_an_answer_stands_between_multiples(interval: int) -> None:
    planned = summarization_like()
    at = small_setting(0.3)
    schedule = RraSchedule(encode_batch=4, encode_interval=interval)
    one = cliff(at.site(schedule, planned), schedule, at.held(planned), with_offer=False)
    assert one is not None
    assert one.encodes * interval - one.decodes == one.spare_tokens < interval
    assert one.edge_tokens == planned.s99 + one.spare_tokens
    if one.mean_factor is not None:
        assert shifted(planned, mean=one.mean_factor).s99 > one.edge_tokens
        assert shifted(planned, mean=one.mean_factor - 0.01).s99 <= one.edge_tokens
    for each in one.after:
        drifted = shifted(planned, mean=each.mean_factor)
        assert each.length_tokens == drifted.s99
        seen = simulate(schedule, table(), drifted)
        assert each.of_bound == pytest.approx(seen.promised_s / 0.3)


def rates_of_all(plan: Plan, at: Setting, held: Held, moved: Held) -> list[float]:
    """Of every schedule that keeps the bound before and after, one by one."""
    spaces = [at.site(plan.schedule, each.workload).space(each.promise) for each in (held, moved)]
    return [
        spaces[0].throughput(point)
        for point in spaces[0].whole.points()
        if all(
            point[0] <= space.whole.x2
            and space.blocked(point) is None
            and space.promised_s(point) <= held.bound_s
            for space in spaces
        )
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_offer_is_the_best_of_all_schedules_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    planned = (workload(0), workload(1), summarization_like())[seed % 3]
    machine = rough_table(rng, context=3000)
    smallest = RraSchedule(encode_batch=1, encode_interval=planned.output.max - 1)
    least_s = simulate(smallest, machine, planned).promised_s
    at = Setting(
        table=machine,
        model=MODEL,
        bound=Bound(seconds=least_s * float(rng.choice([1.02, 1.3, 2.5]))),
        memory=MemoryBudget(
            device_bytes=MODEL.weight_bytes("float32")
            + int(rng.choice([500, 9000])) * MODEL.kv_bytes_per_token("float32")
        ),
        strategies=("RRA",),
    )
    plan = at.plan(planned)
    offer = found(plan, at, planned).offer
    held, moved = at.held(planned), at.held(shifted(planned, mean=1.15))
    rates = rates_of_all(plan, at, held, moved)
    assert (offer is None) == (not rates)
    if offer is not None:
        assert offer.queries_per_s == pytest.approx(max(rates))
        assert offer.throughput_lost >= 0
        assert max(offer.of_bound, offer.of_bound_after) <= 1


def test_a_mean_bound_has_its_cliff_in_means() -> None:
    at = translation(8.0, "mean")
    plan = at.plan(T)
    one = found(plan, at, T)
    schedule = plan.schedule
    after = simulate(schedule, at.table, shifted(T, mean=1.15))
    assert one.after[1].of_bound == pytest.approx(after.latency_mean_s / 8.0)


def test_an_answer_of_an_encoder_decoder_decodes_its_first_token_too() -> None:
    model, device = builtin_model("t5-11b"), cluster_of("a40", 1)
    at = Setting(
        table=analytic_table(model, device, "float16"),
        model=model,
        bound=Bound(seconds=20.0),
        memory=MemoryBudget(device_bytes=device.device.memory_bytes, holds_activations=False),
    )
    schedule, planned = RraSchedule(encode_batch=2, encode_interval=9), paper_task("S")
    one = cliff(at.site(schedule, planned), schedule, at.held(planned), with_offer=False)
    assert one is not None
    assert (planned.s99, one.decodes, one.encodes, one.spare_tokens) == (63, 63, 7, 0)
    assert one.edge_tokens == 63
    drifted = shifted(planned, mean=1.15)
    assert one.after[1].length_tokens == drifted.s99
    seen = simulate(schedule, at.table, drifted)
    assert one.after[1].of_bound == pytest.approx(seen.promised_s / 20)
    late = broken_share(schedule, at.table, drifted, seen.latency_p99_s)
    assert late.length_tokens == drifted.s99
    assert late.of_percentile == pytest.approx(0.01)
