"""The sentences that text and page have in common: what the numbers of an explanation say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from exegpt_planner.explanation.record import (
    TOLERANCES,
    Binding,
    Changed,
    Explanation,
    Frontier,
    Margin,
    NoPlan,
    StageHolds,
    Trend,
)
from exegpt_planner.in_words import words
from exegpt_planner.plan import Plan, Sensitivity
from exegpt_planner.schedule import Schedule

GIB = 2**30


def question_words(explanation: Explanation | NoPlan) -> str:
    """What was asked, in one sentence."""
    asked = explanation.asked
    devices = "1 device" if asked.devices == 1 else f"{asked.devices} devices"
    return (
        f"{asked.model} in {asked.dtype} on {devices} ({asked.device}), for {asked.workload}: "
        f"{bound_words(asked.bound.seconds)} for an answer of {asked.length_tokens} tokens, the "
        f"{ordinal(asked.bound.percentile_length)} percentile of output lengths, from the start of its encode."
    )


def bound_words(seconds: float) -> str:
    """A bound in words."""
    return "no bound" if math.isinf(seconds) else f"a bound of {seconds:g} s"


def ordinal(percentile: float) -> str:
    """A percentile's ordinal number, e.g. 99th."""
    text = f"{percentile:g}"
    if "." in text or text[-2:] in ("11", "12", "13"):
        return f"{text}th"
    return text + {"1": "st", "2": "nd", "3": "rd"}.get(text[-1], "th")


def layer_words(schedule: Schedule) -> str | None:
    """What lies on each device of a unit, first stage first; None where a device holds the whole model."""
    if schedule.layout is None:
        return None
    parts = []
    for stage, alike in groupby(schedule.layout.stages):
        number = len(list(alike))
        where = "a device" if stage.degree == 1 else f"a group of {stage.degree}"
        if number > 1:
            what = "devices" if stage.degree == 1 else f"groups of {stage.degree}"
            where = f"each of {number} {what}"
        encoders = f"{stage.encoder_layers} encoder and " if stage.encoder_layers else ""
        parts.append(f"{encoders}{stage.layers} on {where}")
    return ", ".join(parts)


def binding_words(binding: Binding) -> list[str]:
    """What binds, and how much of everything is used."""
    used = [f"{binding.latency_used:.1%} of the bound"] if binding.latency_used else []
    used.append(f"{binding.memory_used:.1%} of the KV capacity")
    if binding.profile_used is not None:
        used.append(f"{binding.profile_used:.1%} of the profile's reach")
    return [f"{capitalised(binding.words)}.", f"Used: {', '.join(used)}."]


def frontier_words(found: Frontier) -> list[str]:
    """Where the frontier begins and ends."""
    most = found.points[-1].queries_per_s
    return [
        f"The best reachable bound is {found.least_s:.3g} s: no schedule keeps {found.refuted_s:.4g} s. From "
        f"{found.saturated_s:.3g} s on throughput rises no more: {most:.3g} queries/s."
    ]


def margin_words(margin: Margin, planned_mean: float) -> list[str]:
    """How wrong the mean may be, and what else happens on the way."""
    return [*_breaks(margin, planned_mean), *_overflows(margin), *_unpredicted(margin)]


def _breaks(margin: Margin, planned_mean: float) -> Iterator[str]:
    last = margin.points[-1].factor
    if margin.keeps_at is None:
        yield "There is no bound to break."
    elif margin.breaks_at is not None:
        mean = margin.breaks_at * planned_mean
        start = "There is no margin: the bound"
        if margin.keeps_at > 1:
            start = f"The bound is kept up to answers {margin.keeps_at - 1:.1%} longer on average than planned, and"
        yield (
            f"{start} breaks at {margin.breaks_at - 1:.1%} longer ones, a mean of {mean:.3g} instead of "
            f"{planned_mean:.3g} tokens."
        )
    elif margin.keeps_at == last:
        yield f"The bound is kept up to answers {last - 1:.0%} longer than planned, the most looked at."
    else:
        yield (
            f"The bound is kept while answers are up to {margin.keeps_at - 1:.1%} longer than planned; "
            "beyond, the profile does not tell."
        )


def _overflows(margin: Margin) -> Iterator[str]:
    full = [each.factor for each in margin.points if (each.memory_used or 0.0) > 1]
    if full:
        yield (
            f"From {full[0]:g} times the planned mean on, the KV to hold ready does not fit: queries wait for room, or "
            "the youngest is encoded again."
        )


def _unpredicted(margin: Margin) -> Iterator[str]:
    missing = [each for each in margin.points if each.problem is not None]
    if missing:
        factors = ", ".join(f"{each.factor:g}" for each in missing)
        yield f"Not predicted at {factors} times: {missing[0].problem}."


def expected_words(trend: Trend) -> str:
    """Which way a knob should lead."""
    return f"As {trend.knob} rises, throughput and promise should both {trend.direction.removesuffix('s')}"


def trend_words(trend: Trend) -> str:
    """One knob: how often throughput and promise go the wrong way."""
    parts = []
    counts = (("throughput", trend.throughput_against), ("the promise", trend.promise_against))
    for what, against in counts:
        shares = ", ".join(
            f"{_share(count, trend.num_pairs)} by more than {tolerance:.0%}"
            for count, tolerance in zip(against, TOLERANCES, strict=True)
        )
        parts.append(f"{what} goes the other way in {shares}")
    return f"{expected_words(trend)}; of {trend.num_pairs} steps looked at, {'; '.join(parts)}."


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else str(count)


def change_words(change: Changed, plan: Plan) -> str:
    """What another number of devices, or a looser bound, would bring."""
    if change.change == "devices":
        what = f"with {change.devices} devices"
    else:
        what = f"with a bound of {change.bound_s:.3g} s (10 % looser)"
    if change.schedule is None or change.queries_per_s is None:
        return f"{what}: no schedule: {change.problem}"
    gained = change.queries_per_s / plan.prediction.queries_per_s - 1
    idle = "; better leave some idle" if change.change == "devices" and gained < 0 else ""
    return f"{what}: {gained:+.1%} throughput ({words(change.schedule)}){idle}"


def sensitivity_words(each: Sensitivity, plan: Plan) -> str:
    """What a bound or a margin costs."""
    what = {
        "bound_less": f"with a bound of {each.bound_s:.3g} s (20 % less)",
        "bound_more": f"with a bound of {each.bound_s:.3g} s (20 % more)",
        "fluctuation_ignored": "if the pool's fluctuation were ignored",
        "error_ignored": "if the profile were exact",
    }[each.change]
    if each.schedule is None:
        return f"{what}: no schedule"
    gained = each.queries_per_s / plan.prediction.queries_per_s - 1
    return f"{what}: {gained:+.1%} throughput ({words(each.schedule)})"


def stage_words(stage: StageHolds, stages: Sequence[StageHolds]) -> str:
    """Which of the stages, and what of the model is on them."""
    encoders = f"{stage.encoder_layers} encoder and " if stage.encoder_layers else ""
    layers = f"{encoders}{stage.layers} layers"
    if len(stages) == 1 and stage.first == stage.last:
        shared = f" of a group of {stage.degree}" if stage.degree > 1 else ""
        return f"each device{shared}: {layers}"
    number = (
        f"stage {stage.first}"
        if stage.first == stage.last
        else f"stages {stage.first}-{stage.last}"
    )
    group = f", groups of {stage.degree}" if stage.degree > 1 else ""
    return f"{number}{group}: {layers}"


def gib(num_bytes: float) -> str:
    """Bytes for people."""
    return f"{num_bytes / GIB:.2f} GiB" if abs(num_bytes) >= GIB else f"{num_bytes / 2**20:.1f} MiB"


def no_plan_words(found: NoPlan) -> list[str]:
    """What binds where there is no plan."""
    if found.reached is None or found.refuted_s is None:
        return [*_lacking(found.stages), capitalised(found.error)]
    reached = found.reached
    expected = reached.prediction
    lines = [
        f"No schedule keeps {found.asked.bound.seconds:g} s. The best reachable bound is {expected.promised_s:.4g} s, "
        f"by {words(reached.schedule)}; no schedule keeps {found.refuted_s:.4g} s.",
        f"Latency binds: its mean latency is {reached.mean_s:.3g} s, the pool's fluctuation adds "
        f"{reached.fluctuation_s:.2g} s and the profile's error margin {reached.margin_s:.2g} s.",
    ]
    if reached.fits_tokens:
        lines.append(
            f"Answers of at most {reached.fits_tokens} tokens (now {reached.length_tokens}) could be bounded so."
        )
    return lines


def _lacking(stages: Sequence[StageHolds]) -> Iterator[str]:
    """Which stage lacks how many bytes, in the layout that lacks least."""
    short = [each for each in stages if each.free_bytes < 0]
    for each in short:
        kv = f" and {gib(each.kv_bytes)} of KV for one query" if each.kv_bytes else ""
        yield (
            f"Memory binds. In the layout that is nearest to fitting, {stage_words(each, stages)}, lacks "
            f"{gib(-each.free_bytes)} a device: weights take {gib(each.weight_bytes)}{kv}, "
            f"{gib(each.kept_bytes)} are kept free."
        )
    if not short:
        yield "Memory binds: the KV that the smallest schedule holds ready does not fit beside the weights."


def cluster_words(found: NoPlan) -> str:
    """The smallest cluster that would do."""
    cluster = found.cluster
    if cluster is None:
        return "A profile of this machine does not tell of others; more workers of it shorten no answer."
    if cluster.schedule is None or cluster.prediction is None:
        return f"None of {', '.join(map(str, cluster.tried))} devices would do."
    expected = cluster.prediction
    devices = "1 device" if cluster.tried[-1] == 1 else f"{cluster.tried[-1]} devices"
    return (
        f"The smallest cluster that would do has {devices}: {words(cluster.schedule)}; {expected.queries_per_s:.3g} "
        f"queries/s, promises {expected.promised_s:.3g} s."
    )


def proof_words(plan: Plan) -> list[str]:
    """What was searched, by strategy."""
    lines = []
    by_strategy = groupby(plan.certificate.spaces, key=lambda space: space.strategy)
    for strategy, group in by_strategy:
        spaces = list(group)
        schedules = sum(each.num_schedules for each in spaces)
        evaluated = sum(each.num_evaluations for each in spaces)
        blocks = sum(len(each.leaves) for each in spaces)
        where = "1 space" if len(spaces) == 1 else f"{len(spaces)} spaces"
        lines.append(
            f"{strategy}: {schedules:,} schedules in {where}, {evaluated:,} evaluated; the rest is excluded by the "
            f"bounds of {blocks:,} blocks."
        )
    if plan.certificate.relaxed:
        lines.append(
            f"Nothing in {len(plan.certificate.relaxed):,} more could have more throughput, by a bound on each."
        )
    return lines


def capitalised(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]
