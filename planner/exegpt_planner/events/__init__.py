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
    stages: Stages = TableStages(table)
    degree = 1
    if not isinstance(schedule, StaticSchedule | OrcaSchedule) and schedule.layout is not None:
        stages = LayoutStages(table, schedule.layout, units=schedule.units)
        degree = schedule.layout.degree
    match schedule:
        case RraSchedule():
            number = schedule.micro_batches
            return run_rra(schedule, stages, backlog, until, micro_batches=number)
        case CraSchedule():
            return run_cra(schedule, stages, backlog, until)
        case StaticSchedule():
            return run_static(schedule, stages, backlog, until)
        case OrcaSchedule():
            return run_orca(schedule, stages, backlog, until)
        case WaaSchedule():
            if table.hand_over is None:
                raise IncompleteProfile(
                    "the profile holds no times of handing over KV, without which WAA cannot be simulated. "
                    "Profile two workers or more."
                )
            hand_over = table.hand_over.shared(degree)
            machines = Machines(encoder=stages, decoder=stages, hand_over=hand_over)
            return run_waa(schedule, machines, backlog, until)
