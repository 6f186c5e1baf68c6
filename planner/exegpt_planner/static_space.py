"""Static batches as spaces to search: one knob, the batch."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.rra_space import RraSpace
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.static import StaticModel

Floats = NDArray[np.float64]


class EarlySpace(RraSpace):
    """Static batches with early termination: RRA with an N_D as long as the longest answer."""

    @property
    def whole(self) -> Block:
        longest = max(1, self.model.law.longest)
        return Block(self.model.pipeline.micro_batches, self.model.max_batch, longest, longest)


class PlainSpace:
    """Static batches without early termination; every batch is evaluated at once, in the first question for a bound."""

    few = 3

    def __init__(self, model: RraModel, promise: Promise, kv_capacity: float, units: int) -> None:
        self._model, self._promise = StaticModel(model, early_termination=False), promise
        self._units, self._length = units, promise.length
        most = min(model.max_batch, int(kv_capacity / self._model.kv_need(1)))
        self.whole = Block(model.pipeline.micro_batches, most, 1, 1)

    def roughly(self, block: Block) -> None:
        """Its bounds are cheap."""

    def bound(self, block: Block) -> Bounds:
        some = slice(block.x1 - self.whole.x1, block.x2 - self.whole.x1 + 1)
        throughput, promised_s = self._every
        return Bounds(
            throughput=float(throughput[some].max()), promised_s=float(promised_s[some].min())
        )

    def blocked(self, point: Point) -> Blocked | None:
        return None if self._model.covers(point[0]) else "coverage"

    def throughput(self, point: Point) -> float:
        return self._units * self._model.throughput(point[0])

    def promised_s(self, point: Point) -> float:
        latency = self._model.latency(point[0], self._length)
        return self._promise.promised_s(latency.mean_s, latency.sd_s)

    @cached_property
    def _every(self) -> tuple[Floats, Floats]:
        points = [(batch, 1) for batch in range(self.whole.x1, self.whole.x2 + 1)]
        return (
            np.array([self.throughput(point) for point in points]),
            np.array([self.promised_s(point) for point in points]),
        )
