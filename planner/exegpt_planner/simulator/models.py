"""The simulator of any schedule."""

from __future__ import annotations

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.instances import instances_of
from exegpt_planner.simulator.pipeline import pipeline_of
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel

Model = RraModel | CraModel | WaaModel


def model_for(schedule: Schedule, table: ProfileTable, law: CompletionLaw) -> Model:
    """The simulator of a schedule."""
    prompts = prompt_moments(law.workload)
    match schedule:
        case RraSchedule():
            return RraModel(pipeline_of(schedule, table), law, prompts)
        case CraSchedule():
            return CraModel(pipeline_of(schedule, table), law, prompts)
        case WaaSchedule():
            instances = instances_of(schedule, table)
            return WaaModel(instances, law, prompts, (schedule.encoders, schedule.decoders))
