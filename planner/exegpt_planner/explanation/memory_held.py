"""What lies in each device's memory: weights, KV held ready, what is kept free and what is left."""

from __future__ import annotations

from itertools import groupby

from exegpt_planner.completion import law_on
from exegpt_planner.explanation.question import Question
from exegpt_planner.explanation.record import StageHolds
from exegpt_planner.layout import Layout, Typical, layouts
from exegpt_planner.schedule import Prediction, Schedule
from exegpt_planner.shapes import Shape, stage_weight_bytes
from exegpt_planner.waa_sites import WaaSite


def stages_hold(layout: Layout, question: Question, kv_tokens: float) -> tuple[StageHolds, ...]:
    """Of every kind of stage, when a unit holds so many KV tokens ready."""
    model, dtype, budget = question.model, question.table.key.dtype, question.memory
    each_kv = model.kv_bytes_per_token_layer(dtype)
    weights = stage_weight_bytes(layout, model, dtype)
    # of a token; encoders of their own hold the cross-attention's
    kv_bytes = [max(stage.layers, 1) * each_kv / stage.degree for stage in layout.stages]
    usable = budget.device_bytes - budget.reserve_bytes
    room = [(usable - weight) / kv for weight, kv in zip(weights, kv_bytes, strict=True)]
    tightest = room.index(min(room))
    rows = list(zip(layout.stages, weights, (i == tightest for i in range(len(room))), strict=True))
    found, first = [], 1
    for (stage, weight, is_tightest), alike in groupby(rows):
        last = first + len(list(alike)) - 1
        kv = kv_tokens * kv_bytes[first - 1]
        found.append(
            StageHolds(
                first=first,
                last=last,
                degree=stage.degree,
                layers=stage.layers,
                encoder_layers=stage.encoder_layers,
                weight_bytes=weight,
                kv_bytes=kv,
                kept_bytes=budget.reserve_bytes,
                free_bytes=usable - weight - kv,
                is_tightest=is_tightest,
            )
        )
        first = last + 1
    return tuple(found)


def holds(question: Question, schedule: Schedule, prediction: Prediction) -> tuple[StageHolds, ...]:
    """Of every kind of stage of a schedule's unit; of WAA, where sides differ, the encoders' first.

    An encoder holds no pool: of its KV only what a batch takes is known, and that is not held ready.
    """
    site = question.site(schedule)
    found = stages_hold(site.shape.layout, question, prediction.kv_tokens_reserved)
    if isinstance(site, WaaSite) and site.encoders.layout != site.shape.layout:
        return *stages_hold(site.encoders.layout, question, 0.0), *found
    return found


def nearest_to_fitting(question: Question) -> tuple[StageHolds, ...]:
    """Of the layout that lacks least, where the weights fit on none or no schedule's KV fits beside them."""
    table, devices = question.table, question.devices
    typical = Typical.of(law_on(table, question.workload), table)
    found = question.shapes()
    if found:
        return max((_smallest(question, shape) for shape in found), key=_least_free)
    every = (
        stages_hold(layout, question, 0.0)
        for units in range(1, devices + 1)
        if devices % units == 0
        for layout in layouts(table, typical, devices // units, units)
    )
    return max(every, key=_least_free)


def _smallest(question: Question, shape: Shape) -> tuple[StageHolds, ...]:
    """With the KV of one query of mean lengths: less than any schedule needs."""
    workload = question.workload
    return stages_hold(shape.layout, question, workload.input.mean + workload.output.mean)


def _least_free(stages: tuple[StageHolds, ...]) -> float:
    return min(each.free_bytes for each in stages)
