"""Where a cycle's time goes: encode, decode, dispatch and idle, on every kind of stage or worker.

RRA: a stage is busy M times for each step of a micro-batch, encodes and decodes by the simulator's own reckoning for
that stage's costs; what is left of the cycle it waits, for other stages or as the pipeline fills and empties. CRA: what
encoding adds to the mean step, and the rest of it. WAA: an encoder's encode, sending and dispatch fill the share of
time that it is busy; a decoder's iterations all but the time that it has nobody to decode. There an iteration's mean is
not linear in the costs, so that its parts cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from exegpt_planner.explanation.kinds_of_work import KINDS, Kind, add_up, only
from exegpt_planner.explanation.record import Spent, Use
from exegpt_planner.layout import Bill, bills
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import (
    CraSchedule,
    Prediction,
    RraSchedule,
    Schedule,
    WaaSchedule,
)
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import StepCosts, step_costs
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.cra_steps import StepTimes
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.strategies import Site
from exegpt_planner.waa_sites import WaaSite

ROUNDING = 1e-9  # of a cycle: idle time below is none
Seconds = dict[str, float]  # by phase


def uses(site: Site | WaaSite, schedule: Schedule, prediction: Prediction) -> tuple[Use, ...]:
    """Of every kind of stage of a unit, or of encoders and decoders."""
    match schedule, site.model:
        case RraSchedule(), RraModel() as rra:
            assert isinstance(site, Site), site
            return _rra(site, rra, schedule, prediction)
        case CraSchedule(), CraModel() as cra:
            assert isinstance(site, Site), site
            return _cra(site, cra, schedule, prediction)
        case WaaSchedule(), WaaModel() as waa:
            assert isinstance(site, WaaSite), site
            return _waa(site, waa, schedule, prediction)
    raise AssertionError(schedule)


def _rra(
    site: Site, model: RraModel, schedule: RraSchedule, prediction: Prediction
) -> tuple[Use, ...]:
    found = []
    for first, last, bill in _alike(site):

        def busy_s(table: ProfileTable, bill: Bill = bill) -> Seconds:
            return _stage_s(model, step_costs(table, bill), schedule)

        who = _stages(site, first, last)
        cycle = Cycle(who=who, seconds=prediction.cycle_s, table=site.table)
        found.append(cycle.use(busy_s, {"dispatch": model.costs.dispatch_s}))
    return tuple(found)


def _alike(site: Site) -> list[tuple[int, int, Bill]]:
    """(first stage, last, what a step passes through) of stages one behind the other that are alike."""
    stages = bills(site.shape.layout, site.table, site.shape.units).stages
    groups = [
        [index for index, _ in group]
        for _, group in groupby(enumerate(stages), key=lambda each: each[1])
    ]
    return [(group[0] + 1, group[-1] + 1, stages[group[0]]) for group in groups]


def _stage_s(model: RraModel, costs: StepCosts, schedule: RraSchedule) -> Seconds:
    """How long a stage of these costs is busy in a cycle, all micro-batches together."""
    number, batch = schedule.micro_batches, schedule.encode_batch
    # a pipeline of which this is one stage, so that only its own micro-batch empties it
    stage = Pipeline(stages=(costs,), whole=model.costs, num_stages=2, micro_batches=number)
    alone = RraModel(stage, model.law, model.prompts, batch)
    decodes_s = alone.decodes(batch, model.law.phase(schedule.encode_interval)).slowest_s
    return {
        "encode": number * float(alone.encodes.times.slowest_s[batch]),
        "decode": number * float(decodes_s.sum()),
    }


def _cra(
    site: Site, model: CraModel, schedule: CraSchedule, prediction: Prediction
) -> tuple[Use, ...]:
    size, number = model.size(schedule.pool), schedule.micro_batches
    run = model.run(size, schedule.chunk_tokens)
    at = run.at(size)
    found = []
    for first, last, bill in _alike(site):

        def busy_s(table: ProfileTable, bill: Bill = bill) -> Seconds:
            costs = step_costs(table, bill)
            times = StepTimes(costs, model.prompts, model.decoding, model.rounds.whole.most)
            encode_s = number * float(times.encode_s(run.steps)[at])
            step_s = number * float(times.mean_s(run.steps, own=0)[at])
            return {"encode": encode_s, "decode": step_s - encode_s}

        cycle = Cycle(who=_stages(site, first, last), seconds=prediction.cycle_s, table=site.table)
        found.append(cycle.use(busy_s, {"dispatch": model.costs.dispatch_s}))
    return tuple(found)


def _waa(
    site: WaaSite, model: WaaModel, schedule: WaaSchedule, prediction: Prediction
) -> tuple[Use, ...]:
    """An encoder from one encode to its next, and a decoder's round; of pipelines, on the slowest stage."""
    batch, encoders, decoders = schedule.encode_batch, site.encoders, site.shape
    state, dispatch_s = model.at(batch, np.array([float(schedule.pool)])), model.costs.dispatch_s
    interval_s = float(model.encoders.interval_s[batch])
    who = Who("each encoder", encoders.layout.devices * schedule.encoders)
    cycle = Cycle(who=who, seconds=interval_s / float(state.busy[0]), table=site.table)
    if len(encoders.layout.stages) == 1:
        (bill,) = bills(encoders.layout, site.table, encoders.units).stages

        def busy_s(table: ProfileTable) -> Seconds:
            pipeline = Pipeline.single(step_costs(table, bill))
            times = EncodeTimes(pipeline, model.law.workload, model.prompts, batch).times
            return {"encode": float(times.pass_s[batch])}

        send_s = interval_s - dispatch_s - busy_s(site.table)["encode"]
        encoder = cycle.use(busy_s, {"send": send_s, "dispatch": dispatch_s})
    else:
        encoder = cycle.use(
            lambda _: {}, {"encode": interval_s - dispatch_s, "dispatch": dispatch_s}
        )
    round_s = prediction.cycle_s
    who = Who("each decoder", decoders.layout.devices * schedule.decoders)
    cycle = Cycle(who=who, seconds=round_s / (1 - float(state.idle[0])), table=site.table)
    return encoder, cycle.use(lambda _: {}, {"decode": round_s})


class Who(NamedTuple):
    """Stages or workers that are alike."""

    words: str
    devices: int  # all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What some stages or workers do again and again."""

    who: Who
    seconds: float
    table: ProfileTable

    def use(self, busy_s: Callable[[ProfileTable], Seconds], others: Seconds) -> Use:
        """Phases by `busy_s`, each split into kinds of work; `others`; and what is left as idle."""
        by_kind = {kind: busy_s(only(self.table, kind)) for kind in KINDS}
        spent = []
        for phase, seconds in busy_s(self.table).items():
            parts = {kind: found[phase] for kind, found in by_kind.items()}
            spent.append(self._spent(phase, seconds, parts if add_up(parts, seconds) else {}))
        spent += [self._spent(phase, seconds, {}) for phase, seconds in others.items()]
        idle_s = self.seconds - sum(each.seconds for each in spent)
        if abs(idle_s) > ROUNDING * self.seconds:
            spent.append(self._spent("idle", idle_s, {}))
        return Use(
            who=self.who.words,
            devices=self.who.devices,
            cycle_s=self.seconds,
            spent=tuple(each for each in spent if each.seconds),
        )

    def _spent(self, phase: str, seconds: float, parts: Mapping[Kind, float]) -> Spent:
        rows = [
            {"name": kind, "seconds": each, "share": each / self.seconds}
            for kind, each in parts.items()
            if each
        ]
        share = seconds / self.seconds
        return Spent.model_validate(
            {"phase": phase, "seconds": seconds, "share": share, "parts": tuple(rows)}
        )


def _stages(site: Site, first: int, last: int) -> Who:
    """Stages `first` to `last` of each unit."""
    shape = site.shape
    devices = sum(stage.degree for stage in shape.layout.stages[first - 1 : last])
    return Who(_words(shape, first, last), shape.units * devices)


def _words(shape: Shape, first: int, last: int) -> str:
    unit = "of each unit" if shape.units > 1 else "of the pipeline"
    if shape.layout.devices == 1:
        return "each device" if shape.units > 1 else "the device"
    stage = shape.layout.stages[first - 1]
    group = f"a group of {stage.degree}" if stage.degree > 1 else "one device"
    if len(shape.layout.stages) == 1:
        return (
            f"each group of {stage.degree}" if shape.units > 1 else f"the group of {stage.degree}"
        )
    if first == last:
        return f"stage {first} {unit}, {group}"
    return f"each of stages {first} to {last} {unit}, {group}"
