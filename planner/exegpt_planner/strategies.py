"""The strategies that can be planned on one worker, each as a space to search."""

from __future__ import annotations

from typing import Protocol

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.schedule import Prediction, Schedule
from exegpt_planner.search import Point, Space
from exegpt_planner.simulator.costs import costs_of, prompt_moments
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel

PLANNED = ("RRA", "CRA")


class StrategySpace(Space, Protocol):
    """A space whose points are schedules."""

    strategy: str
    axes: tuple[str, str]
    kv_capacity: float

    def schedule(self, point: Point) -> Schedule: ...
    def predict(self, point: Point) -> Prediction: ...
    def edge(self, point: Point) -> float:
        """How far the schedule reaches into the profile: 1 is its end."""
        ...

    def kv_need(self, point: Point) -> float: ...
    def promised_for(self, point: Point, length: int) -> float:
        """What the schedule promises for answers of `length` tokens."""
        ...


Model = RraModel | CraModel


def model_of(strategy: str, table: ProfileTable, law: CompletionLaw) -> Model:
    """The simulator of a strategy, which remembers what it has been asked."""
    costs, prompts = costs_of(table), prompt_moments(law.workload)
    match strategy:
        case "RRA":
            return RraModel(costs, law, prompts)
        case "CRA":
            return CraModel(costs, law, prompts)
        case _:
            raise AssertionError(strategy)


def space_of(model: Model, promise: Promise, kv_capacity: float) -> StrategySpace:
    """The space of a strategy; raises `IncompleteProfile` if the table covers no point of it."""
    space: StrategySpace
    match model:
        case RraModel():
            space = RraSpace(model, promise, kv_capacity)
        case CraModel():
            space = CraSpace(model, promise, kv_capacity)
    if space.whole.num_points < 1:
        costs, inputs = model.costs, model.law.workload.input
        raise IncompleteProfile(
            f"the profile does not cover the encode of a single prompt of this workload (mean {inputs.mean:.0f} "
            f"tokens, up to {inputs.max}): it reaches {costs.per_token.limit:.0f} tokens and "
            f"{costs.per_pair.limit:.0f} query-key pairs a step. Profile larger encodes."
        )
    return space
