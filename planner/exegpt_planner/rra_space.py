"""RRA's space on one layout, B_E by N_D (what no schedule in a block of it can beat: rra_bounds.py)."""

from __future__ import annotations

from exegpt_planner.adjustment import rra_adjustment
from exegpt_planner.rra_bounds import RraBounds
from exegpt_planner.schedule import Prediction, RraSchedule, Split
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.limits import Use, held_s, uses
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel


class RraSpace:
    """B_E from a query a micro-batch to what the profile covers, N_D up to the longest answer's decode iterations."""

    def __init__(
        self, model: RraModel, promise: Promise, kv_capacity: float, units: int = 1
    ) -> None:
        self.model = model
        self.units = units
        self.promise = promise
        self.kv_capacity = kv_capacity
        self._bounds = RraBounds(model, promise, kv_capacity)

    strategy = "RRA"
    axes = ("encode_batch", "encode_interval")
    few = 3
    split: Split | None = None

    @property
    def whole(self) -> Block:
        least = self.model.pipeline.micro_batches
        return Block(least, self.model.max_batch, 1, max(1, self.model.law.longest))

    @property
    def smallest(self) -> Point:
        return self.whole.x1, self.whole.y2

    def blocked(self, point: Point) -> Blocked | None:
        if not self.model.covers(*point):
            return "coverage"
        return "memory" if self.model.kv_need(*point) > self.kv_capacity else None

    def throughput(self, point: Point) -> float:
        return self.units * self.model.throughput(*point)

    def promised_s(self, point: Point) -> float:
        return held_s(self.model, point, self.promise, self.throughput(point), self.units)

    def schedule(self, point: Point) -> RraSchedule:
        model, (batch, interval) = self.model, point
        decodes = model.decodes(batch, model.law.phase(interval))
        decodes_s = float(model.pipeline.round_s(decodes).sum())
        adjustment = rra_adjustment(
            model.law,
            batch,
            interval,
            encode_share=1 - decodes_s / model.cycle_s(batch, interval),
            reach=model.costs.per_chunk.limit,
        )
        return RraSchedule(
            encode_batch=batch,
            encode_interval=interval,
            units=self.units,
            micro_batches=model.pipeline.micro_batches,
            layout=model.pipeline.layout,
            adjustment=adjustment,
        )

    def predict(self, point: Point) -> Prediction:
        return self.model.predict(self.schedule(point), self.promise)

    def uses(self, point: Point) -> list[Use]:
        if self.promise.limits is None:
            return []
        rate = self.throughput(point)
        return uses(
            self.model,
            point,
            self.promise,
            self.promise.limits,
            queries_per_s=rate,
            units=self.units,
        )

    def edge(self, point: Point) -> float:
        return max(point[0] / max(1, self.model.max_batch), self.model.edge(*point))

    def kv_need(self, point: Point) -> float:
        return self.model.kv_need(*point)

    def promised_for(self, point: Point, length: int) -> float:
        latency = self.model.latency(point[0], point[1], length)
        return self.promise.promised_s(latency.mean_s, latency.sd_s)

    def roughly(self, block: Block) -> Bounds:
        return self._bounds.roughly(block, self.units)

    def bound(self, block: Block) -> Bounds:
        return self._bounds.of(block, self.units)
