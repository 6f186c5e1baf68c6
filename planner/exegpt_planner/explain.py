"""A plan as a page of plain text: the choice, why, what binds, what the margins cost, what a change would bring."""

from __future__ import annotations

import math
from itertools import groupby

from exegpt_planner.alternatives import Alternative
from exegpt_planner.in_words import LIMITS, use_in_words, words
from exegpt_planner.plan import Plan, Sensitivity
from exegpt_planner.schedule import CraSchedule, RraSchedule, Split, WaaSchedule

BINDING = 0.03  # the promise within 3 % of the bound: the bound is what holds throughput back


def explain(plan: Plan) -> str:
    """The page."""
    sections = (
        _chosen(plan),
        _promised(plan),
        _binding(plan),
        _alternatives(plan),
        _changes(plan),
        _proof(plan),
        [f"Warning: {warning}." for warning in plan.warnings],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _chosen(plan: Plan) -> list[str]:
    expected = plan.prediction
    times = "" if plan.source == "measured" else " (step times are analytic, not measured)"
    return [
        f"{words(plan.schedule)}{times}.",
        f"  workload          {plan.workload}",
        f"  throughput        {expected.queries_per_s:.3g} queries/s, {expected.tokens_per_s:.4g} output tokens/s",
        *_layers(plan),
        _cycle(plan),
        f"  decoding          {expected.pool_mean:.1f} queries on average, sd {expected.pool_sd:.1f}{_where(plan)}",
        f"  first token       after {expected.first_token_s:.3g} s of encode",
        f"  KV                {expected.kv_tokens:,.0f} tokens at the fullest, {expected.kv_tokens_reserved:,.0f} "
        f"held ready, {plan.kv_tokens_capacity:,} fit",
    ]


def _layers(plan: Plan) -> list[str]:
    """What lies on each device of a unit, first stage first."""
    layout = plan.schedule.layout
    if layout is None:
        return []
    parts = []
    for stage, alike in groupby(layout.stages):
        number = len(list(alike))
        where = "a device" if stage.degree == 1 else f"a group of {stage.degree}"
        if number > 1:
            what = "devices" if stage.degree == 1 else f"groups of {stage.degree}"
            where = f"each of {number} {what}"
        encoders = f"{stage.encoder_layers} encoder and " if stage.encoder_layers else ""
        parts.append(f"{encoders}{stage.layers} on {where}")
    return [f"  layers            {', '.join(parts)}"]


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
    lines = [
        f"The bound is {plan.bound.seconds:g} s for an answer of {plan.length_tokens} tokens "
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


def _binding(plan: Plan) -> list[str]:
    expected, bound_s = plan.prediction, plan.bound.seconds
    if plan.limits:
        return _limits(plan)
    slack = 1 - expected.promised_s / bound_s
    if slack < BINDING:
        return [f"Latency binds: the promise uses {1 - slack:.1%} of the bound."]
    used = expected.kv_tokens_reserved / plan.kv_tokens_capacity
    if used > 1 - BINDING:
        return [
            f"Memory binds: {used:.0%} of the KV capacity is spoken for; {slack:.0%} of the bound is left."
        ]
    if plan.warnings:
        return [f"The profile's reach binds; {slack:.0%} of the bound is left."]
    return [
        f"Nothing binds but the steps of the knobs and the device itself: {slack:.0%} of the bound is left."
    ]


def _limits(plan: Plan) -> list[str]:
    """Where more than whole answers are bounded."""
    binds = max(plan.limits, key=lambda use: use.share)
    lines = [
        f"Of all limits, {LIMITS[binds.name]} binds: {binds.share:.1%} of it is used."
        if binds.share > 1 - BINDING
        else f"No limit binds: the most used, {LIMITS[binds.name]}, leaves {1 - binds.share:.0%}."
    ]
    for use in plan.limits:
        margin = f", {use.promised - use.mean:.2g} of it margin" if use.promised > use.mean else ""
        lines.append(f"  {use_in_words(use)} ({use.share:.0%}{margin})")
    return lines


def _alternatives(plan: Plan) -> list[str]:
    return ["Strategies:", *(_alternative(each) for each in plan.alternatives)]


def _alternative(each: Alternative) -> str:
    if each.schedule is None or each.prediction is None:
        return f"  {each.strategy}: {each.reason}"
    return (
        f"  {each.strategy}: {each.reason} ({words(each.schedule).removeprefix(each.strategy + ': ')}; "
        f"{each.prediction.queries_per_s:.3g} queries/s, promises {each.prediction.promised_s:.3g} s)"
    )


def _changes(plan: Plan) -> list[str]:
    if not plan.sensitivity and math.isinf(plan.bound.seconds):
        return []
    if not plan.sensitivity:
        return ["What if: not searched for this plan; `exegpt plan` does."]
    base = plan.prediction.queries_per_s
    return ["What if:", *(_change(each, base) for each in plan.sensitivity)]


def _change(each: Sensitivity, base: float) -> str:
    what = {
        "bound_less": f"a bound of {each.bound_s:.3g} s (20 % less)",
        "bound_more": f"a bound of {each.bound_s:.3g} s (20 % more)",
        "fluctuation_ignored": "the pool's fluctuation were ignored",
        "error_ignored": "the profile were exact",
    }[each.change]
    if each.schedule is None:
        return f"  {what}: no schedule"
    return f"  {what}: {each.queries_per_s / base - 1:+.1%} throughput ({words(each.schedule)})"


def _proof(plan: Plan) -> list[str]:
    return [
        f"{space.strategy}{_split(space.split)}: {space.num_schedules:,} schedules, {space.num_evaluations:,} "
        f"evaluated; the rest is excluded by the bounds of {len(space.leaves):,} blocks."
        for space in plan.certificate.spaces
    ]


def _split(split: Split | None) -> str:
    return "" if split is None else f" {split[0]}+{split[1]}"
