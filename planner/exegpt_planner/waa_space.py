"""WAA's space at one split, B_E by B_D, and what no schedule in a block of it can beat.

decoder_pool.py gives all of B_D at once for a B_E, so throughput and mean latency are computed at every point, row by
row as blocks need them, and a block's bounds are their extremes: they hold whatever the table's shape. What is left to
the search is the promise, memory and coverage of the points that matter. A pool that has no places for two encodes, or
more than are ever taken, is not in the space: `shape` blocks it.
"""

from __future__ import annotations

import numpy as np

from exegpt_planner.adjustment import waa_adjustment
from exegpt_planner.schedule import Prediction, Split, WaaSchedule
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.limits import Use, held_at_least_s, held_s, uses
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.waa import ROOM, WaaModel
from exegpt_planner.simulator.waa_points import Points


def points_of(model: WaaModel, length: int) -> Points:
    """All schedules of a split; latencies are of answers of `length` tokens."""
    found = model.points.get(length)
    if found is None:
        found = model.points[length] = _compute(model, length)
    return found


def _compute(model: WaaModel, length: int) -> Points:
    rows = range(1, model.max_batch + 1)
    width = max((model.row(batch).most for batch in rows), default=0)
    pools = np.arange(1.0, width + 1)
    shape = len(rows), width
    points = Points(
        in_shape=np.zeros(shape, dtype=np.bool_),
        covered=np.zeros(shape, dtype=np.bool_),
        kv_tokens=np.zeros(shape),
        queries_per_s=np.zeros(shape),
        latency_s=np.zeros(shape),
        latency_sd_s=np.zeros(shape),
    )
    for i, batch in enumerate(rows):
        own = slice(ROOM * batch - 1, model.row(batch).most)  # of the columns
        some = pools[own]
        if some.size == 0:
            continue
        state = model.at(batch, some)
        points.in_shape[i, own] = True
        points.covered[i, own] = model.edges(batch, state) <= 1
        points.kv_tokens[i, own] = model.kv_needs(batch, state)
        points.queries_per_s[i, own] = state.queries_per_s
        points.latency_s[i, own] = model.latency_means_s(batch, some, state, length)
        points.latency_sd_s[i, own] = model.latency_sds_s(batch, state, length)
    return points


class WaaSpace:
    """B_E from 1 to what the profile covers, B_D from 1 to what is ever taken."""

    strategy = "WAA"
    axes = ("encode_batch", "pool")

    def __init__(self, model: WaaModel, promise: Promise, kv_capacity: float) -> None:
        self.model = model
        self.promise = promise
        self.kv_capacity = kv_capacity
        self.split: Split | None = model.split
        self._points = points_of(model, promise.length)
        self._fits = self._points.kv_tokens <= kv_capacity
        self._reachable = self._points.in_shape & self._points.covered
        self._open = self._reachable & self._fits
        self._promised_s = np.where(
            self._open,
            (self._points.latency_s + promise.sds * self._points.latency_sd_s)
            * (1 + promise.error),
            np.inf,
        )
        self._throughput = np.where(self._open, self._points.queries_per_s, 0.0)

    @property
    def whole(self) -> Block:
        rows, columns = self._open.shape
        return Block(1, rows, 1, columns)

    @property
    def smallest(self) -> Point:
        return 1, ROOM

    def blocked(self, point: Point) -> Blocked | None:
        return self._blocked(Block(point[0], point[0], point[1], point[1]))

    def throughput(self, point: Point) -> float:
        return float(self._throughput[point[0] - 1, point[1] - 1])

    def promised_s(self, point: Point) -> float:
        if self.promise.limits is None or self.blocked(point) is not None:
            return float(self._promised_s[point[0] - 1, point[1] - 1])
        return held_s(self.model, point, self.promise, self.throughput(point))

    def schedule(self, point: Point) -> WaaSchedule:
        (encoders, decoders), (batch, pool) = self.model.split, point
        workload, reach = self.model.law.workload, self.model.costs.per_chunk.limit
        return WaaSchedule(
            encoders=encoders,
            decoders=decoders,
            encode_batch=batch,
            pool=pool,
            layout=self.model.layout,
            adjustment=waa_adjustment(workload, batch, reach=reach),
        )

    def predict(self, point: Point) -> Prediction:
        return self.model.predict(self.schedule(point), self.promise)

    def uses(self, point: Point) -> list[Use]:
        if self.promise.limits is None:
            return []
        rate = self.throughput(point)
        return uses(
            self.model, point, self.promise, self.promise.limits, queries_per_s=rate, units=1
        )

    def edge(self, point: Point) -> float:
        return self.model.edge(*point)

    def kv_need(self, point: Point) -> float:
        return self.model.kv_need(*point)

    def promised_for(self, point: Point, length: int) -> float:
        latency = self.model.latency(point[0], point[1], length)
        return self.promise.promised_s(latency.mean_s, latency.sd_s)

    def roughly(self, block: Block) -> None:
        """Its bounds are cheap."""

    def bound(self, block: Block) -> Bounds:
        blocked = self._blocked(block)
        if blocked is not None:
            return Bounds(throughput=0.0, promised_s=np.inf, blocked=blocked)
        part = _part(block)
        throughput = float(self._throughput[part].max())
        promised_s = float(self._promised_s[part].min())
        return Bounds(
            throughput=throughput,
            promised_s=held_at_least_s(self.promise, promised_s, throughput),
        )

    def _blocked(self, block: Block) -> Blocked | None:
        part = _part(block)
        if self._open[part].any():
            return None
        if not self._points.in_shape[part].any():
            return "shape"
        return "memory" if self._reachable[part].any() else "coverage"


def _part(block: Block) -> tuple[slice, slice]:
    return slice(block.x1 - 1, block.x2), slice(block.y1 - 1, block.y2)
