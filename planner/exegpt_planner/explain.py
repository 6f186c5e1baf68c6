"""An explanation as plain text: the choice, why, what binds, what the margins cost, what a change would bring.

`explain` is of a plan alone, for those who have no more; `explanation_text` of everything that `exegpt explain` asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from exegpt_planner.alternatives import Alternative
from exegpt_planner.explanation.binding import what_binds
from exegpt_planner.explanation.record import (
    Explanation,
    Frontier,
    Margin,
    MarginPoint,
    NoPlan,
    Ranked,
    StageHolds,
    Use,
)
from exegpt_planner.explanation.sentences import (
    binding_words,
    bound_words,
    capitalised,
    change_words,
    cluster_words,
    frontier_words,
    gib,
    layer_words,
    margin_words,
    no_plan_words,
    proof_words,
    question_words,
    sensitivity_words,
    stage_words,
    trend_words,
)
from exegpt_planner.in_words import words
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, RraSchedule, Split, WaaSchedule

Section = Sequence[str]


def explain(plan: Plan) -> str:
    """What a plan alone says."""
    return _page(
        _chosen(plan),
        _promised(plan),
        [f"{capitalised(what_binds(plan).words)}."],
        ["Strategies:", *(_alternative(each) for each in plan.alternatives)],
        _what_if(plan, []),
        _spaces(plan),
        _warnings(plan),
    )


def explanation_text(found: Explanation | NoPlan) -> str:
    """All that is known of a plan, or of why there is none."""
    if isinstance(found, NoPlan):
        held = [f"  {line}" for line in (_held(each, found.stages) for each in found.stages)]
        where = ["On each device, with that schedule:", *held] if found.reached else []
        return _page([question_words(found)], no_plan_words(found), where, [cluster_words(found)])
    plan = found.plan
    changes = [f"  {change_words(each, plan)}" for each in found.changes]
    return _page(
        [question_words(found)],
        _chosen(plan),
        _promised(plan),
        binding_words(found.binding),
        ["Where the time goes:", *(line for use in found.uses for line in _use(use))],
        ["Memory of each device:", *(f"  {_held(each, found.stages)}" for each in found.stages)],
        _frontier(found.frontier),
        ["Ranked, the best of each kind:", *(_ranked(each) for each in found.ranking)],
        _what_if(plan, changes),
        _margin(found.margin),
        ["Monotone on this table:", *(f"  {trend_words(each)}" for each in found.trends)],
        ["Proof:", *(f"  {line}" for line in proof_words(plan))],
        _warnings(plan),
    )


def _page(*sections: Section) -> str:
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _chosen(plan: Plan) -> list[str]:
    expected = plan.prediction
    times = "" if plan.source == "measured" else " (step times are analytic, not measured)"
    layers = layer_words(plan.schedule)
    return [
        f"{words(plan.schedule)}{times}.",
        f"  workload          {plan.workload}",
        f"  throughput        {expected.queries_per_s:.3g} queries/s, {expected.tokens_per_s:.4g} output tokens/s",
        *([] if layers is None else [f"  layers            {layers}"]),
        _cycle(plan),
        f"  decoding          {expected.pool_mean:.1f} queries on average, sd {expected.pool_sd:.1f}{_where(plan)}",
        f"  first token       after {expected.first_token_s:.3g} s of encode",
        f"  KV                {expected.kv_tokens:,.0f} tokens at the fullest, {expected.kv_tokens_reserved:,.0f} "
        f"held ready, {plan.kv_tokens_capacity:,} fit",
    ]


def _cycle(plan: Plan) -> str:
    expected = plan.prediction
    if isinstance(plan.schedule, WaaSchedule):
        return (
            f"  iteration         {expected.cycle_s:.3g} s of decode; encoders are busy "
            f"{expected.encode_share:.0%} of the time"
        )
    return (
        f"  cycle             {expected.cycle_s:.3g} s, {expected.encode_share:.0%} of it encoding"
    )


def _where(plan: Plan) -> str:
    """Of what the pool is one, where there are several."""
    match plan.schedule:
        case WaaSchedule(decoders=num) if num > 1:
            return f", in each of {num} decoders"
        case RraSchedule(units=num) | CraSchedule(units=num) if num > 1:
            return f", in each of {num} {'workers' if plan.schedule.layout is None else 'units'}"
    return ""


def _promised(plan: Plan) -> list[str]:
    expected = plan.prediction
    bound_s = plan.bound.seconds
    start = "There is no bound" if math.isinf(bound_s) else f"The bound is {bound_s:g} s"
    lines = [
        f"{start} for an answer of {plan.length_tokens} tokens "
        f"(percentile {plan.bound.percentile_length:g} of output lengths), from the start of its encode."
    ]
    rows = [("mean latency", expected.latency_mean_s)]
    if plan.bound.mode == "p99":
        rows += [
            (
                "with the pool's fluctuation, kept by 99 % of such answers",
                expected.latency_p99_s,
            ),
            (f"with the profile's error margin of {plan.error_margin:.1%}", expected.promised_s),
        ]
    else:
        lines.append(
            "Mode mean, as in the paper: fluctuation and profile error are not counted in."
        )
    return lines + [f"  {seconds:8.3g} s  {what}" for what, seconds in rows]


def _alternative(each: Alternative) -> str:
    if each.schedule is None or each.prediction is None:
        return f"  {each.strategy}: {each.reason}"
    return (
        f"  {each.strategy}: {each.reason} ({words(each.schedule).removeprefix(each.strategy + ': ')}; "
        f"{each.prediction.queries_per_s:.3g} queries/s, promises {each.prediction.promised_s:.3g} s)"
    )


def _use(use: Use) -> list[str]:
    """One row a phase, its kinds of work behind it."""
    lines = [f"  {use.who}, a cycle of {use.cycle_s:.3g} s:"]
    for each in use.spent:
        parts = ", ".join(f"{part.name} {part.share:.1%}" for part in each.parts)
        lines.append(
            f"    {each.phase:9} {each.seconds:8.3g} s {each.share:6.1%}{f'  ({parts})' if parts else ''}"
        )
    return lines


def _held(stage: StageHolds, stages: Sequence[StageHolds]) -> str:
    tightest = " (the KV capacity is this stage's)" if stage.is_tightest else ""
    return (
        f"{stage_words(stage, stages)}; weights {gib(stage.weight_bytes)}, held ready {gib(stage.kv_bytes)}, kept free "
        f"{gib(stage.kept_bytes)}, left {gib(stage.free_bytes)}{tightest}"
    )


def _frontier(found: Frontier) -> list[str]:
    rows = [
        f"  {capitalised(bound_words(float(f'{each.bound_s:.4g}'))):22} {each.queries_per_s:8.3g} queries/s  "
        f"{words(each.schedule)}{'  <- chosen' if each.is_chosen else ''}"
        for each in found.points
    ]
    return [*frontier_words(found), *rows]


def _ranked(each: Ranked) -> str:
    if each.schedule is None or each.prediction is None:
        return f"  {each.strategy}{_shared(each)}: {each.reason}"
    return (
        f"  {words(each.schedule)}: {each.prediction.queries_per_s:.3g} queries/s, promises "
        f"{each.prediction.promised_s:.3g} s; {each.reason}"
    )


def _shared(each: Ranked) -> str:
    if each.units is None:
        return ""
    units = "1 unit" if each.units == 1 else f"{each.units} units"
    return f" on {units}" if each.degree in (None, 1) else f" on {units}, groups of {each.degree}"


def _what_if(plan: Plan, changes: Section) -> list[str]:
    rows = [f"  {sensitivity_words(each, plan)}" for each in plan.sensitivity]
    if rows or changes:
        return ["What if:", *changes, *rows]
    if math.isinf(plan.bound.seconds):
        return []
    return ["What if: not searched for this plan; `exegpt plan` does."]


def _margin(margin: Margin) -> list[str]:
    (planned,) = (each for each in margin.points if each.factor == 1)
    rows = [_margin_row(each) for each in margin.points]
    return [
        "If the mean of output lengths is not as planned:",
        *rows,
        *_margin_lines(margin, planned),
    ]


def _margin_lines(margin: Margin, planned: MarginPoint) -> list[str]:
    return [f"  {line}" for line in margin_words(margin, planned.output_mean)]


def _margin_row(each: MarginPoint) -> str:
    start = f"  {each.factor:4.2f} times: "
    if each.promised_s is None or each.queries_per_s is None or each.memory_used is None:
        return f"{start}not predicted"
    broken = "" if each.keeps_bound else "  the bound breaks"
    return (
        f"{start}{each.promised_s:.3g} s for {each.length_tokens} tokens, {each.queries_per_s:.3g} queries/s, "
        f"{each.memory_used:.0%} of the KV capacity{broken}"
    )


def _spaces(plan: Plan) -> list[str]:
    return [
        f"{space.strategy}{_split(space.split)}: {space.num_schedules:,} schedules, {space.num_evaluations:,} "
        f"evaluated; the rest is excluded by the bounds of {len(space.leaves):,} blocks."
        for space in plan.certificate.spaces
    ]


def _split(split: Split | None) -> str:
    return "" if split is None else f" {split[0]}+{split[1]}"


def _warnings(plan: Plan) -> list[str]:
    return [f"Warning: {warning}." for warning in plan.warnings]
