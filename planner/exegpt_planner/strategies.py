"""The strategies that can be planned on one worker, each as a space to search."""

from __future__ import annotations

from typing import Protocol

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.schedule import Prediction, Schedule
from exegpt_planner.search import Point, Space
from exegpt_planner.simulator.costs import costs_of, prompt_moments
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel

PLANNED = ("RRA",)


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


def space_of(
    strategy: str, table: ProfileTable, law: CompletionLaw, promise: Promise, kv_capacity: float
) -> StrategySpace:
    """The space of a strategy; raises `IncompleteProfile` if the table covers no point of it."""
    costs, prompts = costs_of(table), prompt_moments(law.workload)
    space: StrategySpace
    match strategy:
        case "RRA":
            space = RraSpace(RraModel(costs, law, prompts, promise), kv_capacity)
        case _:
            raise AssertionError(strategy)
    if space.whole.num_points < 1:
        raise IncompleteProfile(
            f"the profile does not cover the encode of a single prompt of this workload (mean {prompts.tokens:.0f} tokens, "
            f"up to {law.workload.input.max}): it reaches {costs.per_token.limit:.0f} tokens and "
            f"{costs.per_pair.limit:.0f} query-key pairs a step. Profile larger encodes."
        )
    return space
