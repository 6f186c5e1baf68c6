"""The strategies that can be planned on some workers, each as spaces to search: one, or for WAA one a split."""

from __future__ import annotations

from typing import Protocol

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.schedule import (
    CraSchedule,
    Prediction,
    RraSchedule,
    Schedule,
    Split,
    WaaSchedule,
)
from exegpt_planner.search import Point, Space
from exegpt_planner.simulator.costs import costs_of, hand_over_of
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.waa_space import WaaSpace

STRATEGIES = ("RRA", "CRA", "WAA")


class StrategySpace(Space, Protocol):
    """A space whose points are schedules."""

    strategy: str
    axes: tuple[str, str]
    split: Split | None
    kv_capacity: float

    @property
    def smallest(self) -> Point:
        """The schedule that takes least memory and promises most."""
        ...

    def schedule(self, point: Point) -> Schedule: ...
    def predict(self, point: Point) -> Prediction: ...
    def edge(self, point: Point) -> float:
        """How far the schedule reaches into the profile: 1 is its end."""
        ...

    def kv_need(self, point: Point) -> float: ...
    def promised_for(self, point: Point, length: int) -> float:
        """What the schedule promises for answers of `length` tokens."""
        ...


Model = RraModel | CraModel | WaaModel


def unplannable(strategy: str, table: ProfileTable, law: CompletionLaw, workers: int) -> str | None:
    """Why a strategy cannot be planned at all, or None."""
    if strategy != "WAA":
        return None
    if workers < 2:
        return "needs at least two workers; this plan is for one"
    if table.hand_over is None:
        return "needs the times of handing over KV, which this profile does not hold"
    if law.decode_mean == 0:
        return "needs answers of more than one token: an encode ends them, decoders would idle"
    return None


def models_of(
    strategy: str, table: ProfileTable, law: CompletionLaw, workers: int = 1
) -> tuple[Model, ...]:
    """The simulators of a strategy, one a space, which remember what they have been asked."""
    costs, prompts = costs_of(table), prompt_moments(law.workload)
    match strategy:
        case "RRA":
            return (RraModel(Pipeline.single(costs), law, prompts),)
        case "CRA":
            return (CraModel(costs, law, prompts),)
        case "WAA":
            hand_over = hand_over_of(table)
            return tuple(
                WaaModel(costs, hand_over, law, prompts, (encoders, workers - encoders))
                for encoders in range(1, workers)
            )
        case _:
            raise AssertionError(strategy)


def model_for(schedule: Schedule, table: ProfileTable, law: CompletionLaw) -> Model:
    """The simulator of a schedule."""
    costs, prompts = costs_of(table), prompt_moments(law.workload)
    match schedule:
        case RraSchedule():
            return RraModel(Pipeline.single(costs), law, prompts)
        case CraSchedule():
            return CraModel(costs, law, prompts)
        case WaaSchedule(encoders=encoders, decoders=decoders):
            return WaaModel(costs, hand_over_of(table), law, prompts, (encoders, decoders))


def space_of(
    model: Model, promise: Promise, kv_capacity: float, *, workers: int = 1
) -> StrategySpace:
    """The space of a strategy; raises `IncompleteProfile` if the table covers no point of it."""
    space: StrategySpace
    match model:
        case RraModel():
            space = RraSpace(model, promise, kv_capacity, units=workers)
        case CraModel():
            space = CraSpace(model, promise, kv_capacity, units=workers)
        case WaaModel():
            space = WaaSpace(model, promise, kv_capacity)
    if space.whole.num_points < 1:
        raise IncompleteProfile(_uncovered(model))
    return space


def _uncovered(model: Model) -> str:
    costs, inputs = model.costs, model.law.workload.input
    if isinstance(model, WaaModel) and model.encodes.max_batch > 0:
        return (
            f"the profile does not cover the hand-over of a single prompt of this workload (mean {inputs.mean:.0f} "
            f"tokens, up to {inputs.max}): it reaches {model.hand_over_limit:.0f} tokens. Profile larger hand-overs."
        )
    return (
        f"the profile does not cover the encode of a single prompt of this workload (mean {inputs.mean:.0f} "
        f"tokens, up to {inputs.max}): it reaches {costs.per_token.limit:.0f} tokens and "
        f"{costs.per_pair.limit:.0f} query-key pairs a step. Profile larger encodes."
    )
