"""The strategies that can be planned on some devices, as spaces to search: one a shape, of WAA one a pair of sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.rra_space import RraSpace
from exegpt_planner.schedule import (
    Prediction,
    Schedule,
    Split,
)
from exegpt_planner.search import Point, Space
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.limits import Use
from exegpt_planner.simulator.pipeline import Costs, Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.waa_sites import WaaSites

STRATEGIES = ("RRA", "CRA", "WAA")


class StrategySpace(Space, Protocol):
    """A space whose points are schedules."""

    strategy: str
    axes: tuple[str, str]
    split: Split | None
    kv_capacity: float
    promise: Promise

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
    def uses(self, point: Point) -> list[Use]:
        """How far each limit is used, where more than whole answers are bounded."""
        ...

    def promised_for(self, point: Point, length: int) -> float:
        """What the schedule promises for answers of `length` tokens."""
        ...


def unplannable(strategy: str, table: ProfileTable, law: CompletionLaw, workers: int) -> str | None:
    """Why a strategy cannot be planned at all, or None."""
    if strategy == "CRA" and table.encoder is not None:
        return "needs a decoder-only model: an encoder's steps cannot ride on a decoder's"
    if strategy != "WAA":
        return None
    if workers < 2:
        return "needs at least two workers; this plan is for one"
    if table.hand_over is None:
        return "needs the times of handing over KV, which this profile does not hold"
    if law.decode_mean == 0:
        return "needs answers of more than one token: an encode ends them, decoders would idle"
    return None


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where RRA or CRA may be planned: on units of one shape."""

    strategy: str
    shape: Shape
    number: int  # of the shape, as `shapes` lists them
    table: ProfileTable
    law: CompletionLaw
    costs: Costs | None = None  # of stages, shared by the sites of a strategy

    @cached_property
    def model(self) -> RraModel | CraModel:
        """Its simulator, which remembers what it has been asked."""
        pipeline = Pipeline.of(self.shape, self.table, self.costs)
        prompts = prompt_moments(self.law.workload)
        match self.strategy:
            case "RRA":
                fitting = int(self.shape.room.kv_tokens / prompts.tokens) + 1
                return RraModel(pipeline, self.law, prompts, fitting)
            case "CRA":
                fitting = int(self.shape.room.kv_tokens / prompts.tokens) + 1
                return CraModel(pipeline, self.law, prompts, fitting)
            case _:
                raise AssertionError(self.strategy)

    def space(self, promise: Promise) -> StrategySpace:
        """Its space; raises `IncompleteProfile` if the table covers no point of it."""
        return space_of(self.model, promise, self.shape.room.kv_tokens, units=self.shape.units)


def sites_of(
    strategy: str, found: Sequence[Shape], table: ProfileTable, law: CompletionLaw
) -> list[Site] | WaaSites:
    """All sites of a strategy; WAA is planned here where a device holds the whole model.

    (`WaaSites.all` are those of WAA on any shapes.)
    """
    if strategy == "WAA":
        return WaaSites.alike(table, law, found)
    costs = Costs(table)
    return [
        Site(strategy=strategy, shape=shape, number=number, table=table, law=law, costs=costs)
        for number, shape in enumerate(found)
    ]


def nowhere(strategy: str) -> str:
    """Why a strategy has no site, though it could be planned."""
    assert strategy == "WAA", "the others are planned on every shape"
    return "needs an encoder and a decoder that hold the weights of their side each; no two groups of devices do"


def space_of(
    model: RraModel | CraModel, promise: Promise, kv_capacity: float, *, units: int = 1
) -> StrategySpace:
    """The space of a strategy; raises `IncompleteProfile` if the table covers no point of it."""
    space: StrategySpace
    match model:
        case RraModel():
            space = RraSpace(model, promise, kv_capacity, units=units)
        case CraModel():
            space = CraSpace(model, promise, kv_capacity, units=units)
    if space.whole.num_points < 1:
        raise IncompleteProfile(_uncovered(model))
    return space


def _uncovered(model: RraModel | CraModel) -> str:
    costs, inputs = model.costs, model.law.workload.input
    return (
        f"the profile does not cover the encode of a single prompt of this workload (mean {inputs.mean:.0f} "
        f"tokens, up to {inputs.max}): it reaches {costs.per_token.limit:.0f} tokens and "
        f"{costs.per_pair.limit:.0f} query-key pairs a step. Profile larger encodes."
    )
