from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.certificate import check
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InfeasibleBound, InvalidSpec
from exegpt_planner.explain import explain
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.profile_table import Curve, ProfileTable
from exegpt_planner.schedule import RraSchedule, WaaSchedule
from exegpt_planner.shapes import device_each
from exegpt_planner.simulator import latency_of, simulate
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.strategies import sites_of
from exegpt_planner.strict import read_json
from exegpt_planner.workload import Workload
from planner.builders import MODEL, bell, independent, line, summarization_like, table

GOLDEN = Path(__file__).parents[1] / "golden" / "plan.json"
KV_BYTES = MODEL.kv_bytes_per_token("float32")


def memory_of(kv_tokens: int) -> MemoryBudget:
    return MemoryBudget(device_bytes=MODEL.weight_bytes("float32") + kv_tokens * KV_BYTES)


def plan_within(
    seconds: float,
    *,
    machine: ProfileTable | None = None,
    kv_tokens: int = 100_000,
    strategies: tuple[str, ...] = ("RRA", "WAA", "CRA"),
    workers: int = 1,
    workload: Workload | None = None,
    **bound: object,
) -> Plan:
    return make_plan(
        table=machine or table(),
        model=MODEL,
        workload=workload or summarization_like(),
        bound=Bound.model_validate({"seconds": seconds, **bound}),
        memory=memory_of(kv_tokens),
        strategies=strategies,
        workers=workers,
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_within(0.3)


def test_plan_keeps_its_bound_and_says_what_each_strategy_does(plan: Plan) -> None:
    assert plan.prediction.promised_s <= 0.3
    best = max(a.prediction.queries_per_s for a in plan.alternatives if a.prediction)
    assert plan.prediction.queries_per_s == best
    assert {a.strategy: a.reason.split(":")[0] for a in plan.alternatives} == {
        "RRA": "chosen",
        "CRA": plan.alternatives[1].reason,
        "WAA": "needs at least two workers; this plan is for one",
    }
    assert plan.kv_tokens_capacity == 100_000


def test_prediction_is_the_simulators(plan: Plan) -> None:
    assert plan.prediction == simulate(plan.schedule, table(), summarization_like())
    at_s99 = latency_of(plan.schedule, table(), summarization_like(), plan.length_tokens)
    assert at_s99 == pytest.approx(plan.prediction.latency_mean_s)


def test_certificate_holds(plan: Plan) -> None:
    promise = replace(
        Promise.full(length=plan.length_tokens, error=plan.error_margin), bound_s=plan.bound.seconds
    )
    law = CompletionLaw(summarization_like())
    for record, alternative in zip(plan.certificate.spaces, plan.alternatives, strict=False):
        (site,) = sites_of(
            record.strategy, [device_each(table(), 1, plan.kv_tokens_capacity)], table(), law
        )
        space = site.space(promise)
        assert alternative.prediction is not None
        best = alternative.prediction.queries_per_s
        assert check(record, space, best=best, bound_s=plan.bound.seconds) == []


def test_plan_survives_its_file(plan: Plan) -> None:
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_golden_file_still_reads_and_is_what_would_be_written() -> None:
    golden = read_json(Plan, GOLDEN)
    assert json.loads(golden.model_dump_json()) == json.loads(GOLDEN.read_text(encoding="utf-8"))
    planned = plan_within(0.1, strategies=("RRA", "WAA"), workers=2)
    assert planned.schedule == golden.schedule
    assert planned.prediction.promised_s == pytest.approx(golden.prediction.promised_s)
    assert planned.certificate.inputs == golden.certificate.inputs


def test_more_time_never_costs_throughput() -> None:
    found = [plan_within(s, strategies=("RRA",)).prediction.queries_per_s for s in (0.1, 0.2, 0.4)]
    assert found == sorted(found)


def test_margins_cost_throughput(plan: Plan) -> None:
    by_change = {each.change: each.queries_per_s for each in plan.sensitivity}
    chosen = plan.prediction.queries_per_s
    assert by_change["bound_less"] < chosen < by_change["bound_more"]
    assert chosen <= by_change["error_ignored"]
    assert chosen <= by_change["fluctuation_ignored"]


def test_mean_mode_ignores_fluctuation_and_error() -> None:
    paper = plan_within(0.3, strategies=("RRA",), mode="mean")
    assert paper.prediction.promised_s == paper.prediction.latency_mean_s <= 0.3
    assert paper.prediction.latency_p99_s > paper.prediction.latency_mean_s
    full = plan_within(0.3, strategies=("RRA",))
    assert paper.prediction.queries_per_s > full.prediction.queries_per_s


def test_memory_holds_the_pool_down() -> None:
    roomy, tight = (
        plan_within(2.0, strategies=("RRA",)),
        plan_within(2.0, strategies=("RRA",), kv_tokens=4000),
    )
    assert tight.prediction.kv_tokens_reserved <= 4000 < roomy.prediction.kv_tokens_reserved
    assert "Memory binds" in explain(tight)


def test_unreachable_bound_names_the_best_reachable_and_the_change_that_would_do() -> None:
    with pytest.raises(InfeasibleBound) as caught:
        plan_within(0.03)
    text = str(caught.value)
    assert "answer of 30 tokens within 0.03 s" in text
    assert "RRA with encode_batch=1" in text
    assert "Latency binds" in text
    remedy = float(text.split("latencyBound.seconds to ")[1].split(",")[0])
    assert plan_within(remedy, strategies=("RRA",)).prediction.promised_s <= remedy
    fits = int(text.split("answers of at most ")[1].split()[0])
    assert (
        latency_of(
            RraSchedule(encode_batch=1, encode_interval=39), table(), summarization_like(), fits
        )
        < 0.03
    )


def test_memory_that_holds_no_query_is_named() -> None:
    with pytest.raises(InfeasibleBound, match="memory binds: the smallest schedule of RRA"):
        plan_within(0.3, kv_tokens=20)


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(InfeasibleBound, match="no room for KV"):
        plan_within(0.3, kv_tokens=-10)


def test_profile_that_covers_nothing_is_refused() -> None:
    short = table(context=line(0.0, 1e-8, 20))
    with pytest.raises(IncompleteProfile, match="not even the smallest schedule"):
        plan_within(0.3, machine=short, strategies=("RRA",))
    with pytest.raises(IncompleteProfile, match="a single prompt"):
        plan_within(0.3, machine=table(tokens=line(0.0, 1e-6, 30)), strategies=("RRA",))


def test_winner_at_the_edge_of_the_profile_is_warned_about() -> None:
    narrow = table(queries=Curve(x=(0, 24), seconds=(0, 4e-4)))
    planned = plan_within(1.0, machine=narrow, strategies=("RRA",))
    assert any("larger profile" in warning for warning in planned.warnings)


@pytest.mark.parametrize("strategies", [("FOO",), ("WAA",), ()])
def test_strategies_that_cannot_be_planned_are_refused(strategies: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSpec, match="strategies"):
        plan_within(0.3, strategies=strategies)


def test_inputs_hash_what_they_hold(plan: Plan) -> None:
    other = plan_within(0.3, machine=table(error=0.031), strategies=("RRA",))
    ours, theirs = plan.certificate.inputs, other.certificate.inputs
    assert ours.table != theirs.table
    assert (ours.workload, ours.bound, ours.memory) == (
        theirs.workload,
        theirs.bound,
        theirs.memory,
    )


def test_explanation_answers_the_questions(plan: Plan) -> None:
    text = explain(plan)
    for part in (
        "RRA: encode",
        "Latency binds",
        "less throughput",
        "20 % less",
        "fluctuation were ignored",
        "profile were exact",
        "evaluated",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 160


PROMPTS_HEAVY = independent(bell(200, 40, 320), bell(6, 2, 12))


@pytest.mark.parametrize("strategy", ["RRA", "CRA"])
def test_units_multiply_throughput_and_nothing_else(strategy: str) -> None:
    one, three = (
        plan_within(0.1, strategies=(strategy,), workers=workers).prediction for workers in (1, 3)
    )
    assert three.queries_per_s == pytest.approx(3 * one.queries_per_s)
    assert three.tokens_per_s == pytest.approx(3 * one.tokens_per_s)
    alone = one.model_dump(exclude={"queries_per_s", "tokens_per_s"})
    assert three.model_dump(exclude={"queries_per_s", "tokens_per_s"}) == alone


def test_schedules_say_their_units() -> None:
    planned = plan_within(0.3, strategies=("RRA",), workers=2)
    assert isinstance(planned.schedule, RraSchedule)
    assert planned.schedule.units == 2
    assert "on each of 2 workers" in explain(planned)
    assert planned.prediction == simulate(planned.schedule, table(), summarization_like())


def test_forced_waa_accounts_for_every_split_and_names_the_papers() -> None:
    planned = plan_within(0.3, strategies=("WAA",), workers=4, workload=PROMPTS_HEAVY)
    assert isinstance(planned.schedule, WaaSchedule)
    assert planned.schedule.encoders + planned.schedule.decoders == 4
    searched, left_out = planned.certificate.spaces, planned.certificate.relaxed
    shapes = {each.shape for each in searched} | {each.shape for each in left_out}
    assert shapes == {0, 1, 2}
    assert all(each.throughput < planned.prediction.queries_per_s for each in left_out)
    (row,) = planned.alternatives
    assert row.reason.startswith("chosen: the only strategy within the bound; splits searched: ")
    assert "WAA-C" in row.reason
    assert planned.prediction == simulate(planned.schedule, table(), PROMPTS_HEAVY)
    text = explain(planned)
    for part in ("encoders are busy", "queries at a time", "WAA 3+1:"):
        assert part in text


def test_best_of_all_strategies_is_taken_and_its_certificate_holds() -> None:
    planned = plan_within(0.12, strategies=("RRA", "WAA"), workers=3, workload=PROMPTS_HEAVY)
    assert {each.strategy for each in planned.alternatives} == {"RRA", "WAA"}
    best = max(a.prediction.queries_per_s for a in planned.alternatives if a.prediction)
    assert planned.prediction.queries_per_s == best
    promise = replace(
        Promise.full(length=planned.length_tokens, error=planned.error_margin),
        bound_s=planned.bound.seconds,
    )
    law = CompletionLaw(PROMPTS_HEAVY)
    shape = device_each(table(), 3, planned.kv_tokens_capacity)
    sites = [site for name in ("RRA", "WAA") for site in sites_of(name, [shape], table(), law)]
    records = {(record.strategy, record.shape): record for record in planned.certificate.spaces}
    assert len(records) == 2
    bound_s = planned.bound.seconds
    for site in sites:
        record = records.get((site.strategy, site.number))
        if record is not None:
            space = site.space(promise)
            assert space.split == record.split
            assert check(record, space, best=best, bound_s=bound_s) == []


def test_waa_is_left_out_with_its_reason() -> None:
    unmeasured = table().model_copy(update={"hand_over": None})
    rows = plan_within(0.3, machine=unmeasured, strategies=("RRA", "WAA"), workers=2).alternatives
    assert "this profile does not hold" in rows[1].reason
    at_once = independent(bell(20, 5, 40), bell(1, 0.01, 1))
    rows = plan_within(0.3, strategies=("RRA", "WAA"), workers=2, workload=at_once).alternatives
    assert "more than one token" in rows[1].reason


def test_memory_of_one_worker_holds_a_decoders_pool_down() -> None:
    roomy, tight = (
        plan_within(2.0, strategies=("WAA",), workers=2, kv_tokens=tokens)
        for tokens in (100_000, 4000)
    )
    assert tight.prediction.kv_tokens_reserved <= 4000 < roomy.prediction.kv_tokens_reserved


def test_unreachable_bound_of_waa_names_the_change_that_would_do() -> None:
    with pytest.raises(InfeasibleBound, match="WAA with encoders=1, decoders=1") as caught:
        plan_within(0.03, strategies=("WAA",), workers=2)
    remedy = float(str(caught.value).split("latencyBound.seconds to ")[1].split(",")[0])
    within = plan_within(remedy, strategies=("WAA",), workers=2).prediction
    assert within.promised_s <= remedy


def test_hand_over_that_covers_no_prompt_is_refused() -> None:
    curves = table().hand_over
    assert curves is not None
    short = curves.model_copy(update={"sent": line(0.0, 1e-6, 30)})
    machine = table().model_copy(update={"hand_over": short})
    with pytest.raises(IncompleteProfile, match="hand-over of a single prompt"):
        plan_within(0.3, machine=machine, strategies=("WAA",), workers=2)
