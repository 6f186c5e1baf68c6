"""A unit's devices as a pipeline through which micro-batches pass.

M micro-batches of a step go through P stages, each of which serves them in turn. With the slowest stage's time t and
that of a pass through all stages w (P t, where stages are alike), a micro-batch can begin its next iteration

    max(M t, w)

after its last: when M >= P the slowest stage never waits, when M < P every micro-batch goes round without a stop.
Micro-batches are not alike: none overtakes another, so it is the longest one's pass that holds the others up, longer
than the mean by `excess_sds` of its deviations. One device is P = M = 1, t = w.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from exegpt_planner.layout import Bill, Bills, Item, Layout, bills, slowest_kinds
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule
from exegpt_planner.shapes import Room, Shape
from exegpt_planner.simulator.costs import StepCosts, costs_of, step_costs

Floats = NDArray[np.float64]


class Costs:
    """Of what a step passes through, by a table; those of equal bills are one object."""

    def __init__(self, table: ProfileTable) -> None:
        self._table = table
        self._found: dict[frozenset[tuple[Item, int]], StepCosts] = {}

    def of(self, bill: Bill) -> StepCosts:
        """Those of one."""
        key = frozenset((item, number) for item, number in bill.items() if number)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = step_costs(self._table, bill)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what is cached needs a dict
class Pipeline:
    """What a micro-batch's step costs on the stages that may be the slowest, and on all of them together."""

    stages: tuple[StepCosts, ...]
    whole: StepCosts
    num_stages: int = 1  # P
    micro_batches: int = 1  # M
    layout: Layout | None = None  # None: one device
    activation_tokens: float = 0.0  # KV tokens that fit where one packed token's activations are

    @classmethod
    def one_device(cls, table: ProfileTable) -> Self:
        """A device that holds the whole model."""
        return cls.single(costs_of(table))

    @classmethod
    def single(cls, costs: StepCosts) -> Self:
        """One stage."""
        return cls(stages=(costs,), whole=costs)

    @classmethod
    def of(cls, shape: Shape, table: ProfileTable, costs: Costs | None = None) -> Self:
        """The pipeline of a shape; `costs` are shared by those that have stages alike."""
        return cls.through(bills(shape.layout, table, shape.units), shape, costs or Costs(table))

    @classmethod
    def through(cls, found: Bills, shape: Shape, costs: Costs) -> Self:
        """The pipeline of a shape whose stages are passed through as these bills say."""
        whole = costs.of(found.whole)
        stages: tuple[StepCosts, ...] = (whole,)
        if len(found.stages) > 1:
            stages = tuple(costs.of(bill) for bill in slowest_kinds(found))
        return cls(
            stages=stages,
            whole=whole,
            num_stages=len(found.stages),
            micro_batches=shape.micro_batches,
            layout=shape.layout if shape.layout.devices > 1 else None,
            activation_tokens=shape.room.activation_tokens,
        )

    @property
    def is_filled(self) -> bool:
        """M >= P: the slowest stage always has a micro-batch to serve."""
        return self.micro_batches >= self.num_stages

    def times(
        self,
        time_s: Callable[[StepCosts], Floats],
        sd_s: Callable[[StepCosts], Floats] | None = None,
    ) -> Times:
        """The slowest stage's and a whole pass's times, by any reckoning of one step's costs.

        `sd_s` is their deviation from micro-batch to micro-batch, where that matters.
        """
        whole = time_s(self.whole)
        if self.num_stages == 1:
            return Times(slowest_s=whole, pass_s=whole, pass_sd_s=np.zeros_like(whole))
        slowest = np.max([time_s(stage) for stage in self.stages], axis=0)
        sd = np.zeros_like(whole)
        if sd_s is not None and self.micro_batches > 1:
            sd = sd_s(self.whole)
        return Times(slowest_s=slowest, pass_s=whole, pass_sd_s=sd)

    @cached_property
    def excess_sds(self) -> float:
        """By how many deviations the longest of M micro-batches exceeds their mean."""
        return float(_excess_sds(np.array(self.micro_batches)))

    @cached_property
    def excess_mean_sds(self) -> float:
        """The same of the longest so far, mean over the M as they follow each other."""
        return float(_excess_sds(np.arange(1, self.micro_batches + 1)).mean())

    def round_s(self, times: Times) -> Floats:
        """From one iteration of a micro-batch to its next."""
        longest_s = times.pass_s + self.excess_sds * times.pass_sd_s
        return np.maximum(self.micro_batches * times.slowest_s, longest_s)


def pipeline_of(schedule: RraSchedule | CraSchedule, table: ProfileTable) -> Pipeline:
    """The pipeline that a schedule runs on, each of its units."""
    if schedule.layout is None:
        return Pipeline.one_device(table)
    shape = Shape(
        units=schedule.units,
        layout=schedule.layout,
        micro_batches=schedule.micro_batches,
        room=Room(kv_tokens=0, activation_tokens=0.0, stage=0),
    )
    return Pipeline.of(shape, table)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """Of a micro-batch's step; arrays alike."""

    slowest_s: Floats  # t
    pass_s: Floats  # w
    pass_sd_s: Floats  # of w, from micro-batch to micro-batch


def _excess_sds(number: NDArray[np.int64]) -> Floats:
    """Mean of the largest of so many standard normal values (Blom's approximation)."""
    return np.asarray(ndtri((number - 0.375) / (number + 0.25)))
