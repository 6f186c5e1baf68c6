"""Schedules simulated request by request, stage by stage: an independent check of the closed forms, and timelines.

Nothing here knows a formula of the planner's: stages say how long a step takes (`stages`), queries are drawn with their
own lengths (`queries`), and the policies are played (`rra`, `cra`, `waa`, `policies`). A backlog is always there, KV
always fits. A run is a function of its generator's seed.
"""

from __future__ import annotations

from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.events.cra import run_cra, run_orca
from exegpt_planner.events.policies import run_static
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Run, Until
from exegpt_planner.events.rra import run_rra
from exegpt_planner.events.stages import LayoutStages, Stages, TableStages
from exegpt_planner.events.waa import Machines, run_waa
from exegpt_planner.placing import placed, sides_of
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
    WaaSchedule,
)


def run(schedule: AnySchedule, table: ProfileTable, backlog: Backlog, until: Until) -> Run:
    """A schedule on its layout, or on workers that hold all layers: one unit of RRA or CRA, all instances of WAA."""
    if isinstance(schedule, WaaSchedule):
        return run_waa(schedule, _machines(schedule, table), backlog, until)
    stages: Stages = TableStages(table)
    if not isinstance(schedule, StaticSchedule | OrcaSchedule) and schedule.layout is not None:
        stages = LayoutStages(table, schedule.layout, units=schedule.units)
    match schedule:
        case RraSchedule():
            number = schedule.micro_batches
            return run_rra(schedule, stages, backlog, until, micro_batches=number)
        case CraSchedule():
            number = schedule.micro_batches
            return run_cra(schedule, stages, backlog, until, micro_batches=number)
        case StaticSchedule():
            return run_static(schedule, stages, backlog, until)
        case OrcaSchedule():
            return run_orca(schedule, stages, backlog, until)


def _machines(schedule: WaaSchedule, table: ProfileTable) -> Machines:
    """Its encoders and decoders, where they lie on the devices."""
    if table.hand_over is None:
        raise IncompleteProfile(
            "the profile holds no times of handing over KV, without which WAA cannot be simulated. "
            "Profile two workers or more."
        )
    sides = sides_of(schedule, table)
    starts = placed(table, *sides) or (0, 0)
    encoder, decoder = (
        LayoutStages(table, side.layout, units=side.units, start=start)
        for side, start in zip(sides, starts, strict=True)
    )
    degrees = (side.layout.mean_degree for side in sides)
    return Machines(encoder=encoder, decoder=decoder, hand_over=table.hand_over.between(*degrees))
