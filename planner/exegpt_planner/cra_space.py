"""CRA's space, B_D by C from a short list, and what no schedule in a block of it can beat.

Of a block of one C whose pools are close together (`NARROW`) every pool is simulated, at once: the simulator works on
runs of pools, and few laws of the queue serve them all. So such bounds are exact. Others need no law:

Throughput: a query takes the same sums of work in all, whatever the pool: E[I] + E[D] tokens, E[D] decode queries,
and so on. With a line a + b x below a curve, steps cost a + b E[x] at least (Jensen needs no law), so
1 / X >= sum (a / rate + b work) at the highest rate. Latency: the same lines, where they do not fall, at the smallest
pool's means and the lowest rate. Kingman's bounds on the wait give both rates; that the rate rises with B_D and C is
a property of the queue, not of the table; tests hold it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.schedule import CraSchedule, Prediction, Split
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.limits import Use, held_at_least_s, held_s, uses
from exegpt_planner.simulator.promise import Promise

Floats = NDArray[np.float64]
Lines = tuple[Floats, Floats]

CHUNKS = tuple(
    32 << e for e in range(11)
)  # C, tokens; between neighbours throughput hardly differs
NARROW = (
    1.25  # largest pool of a block over its smallest, for all to be simulated: about a run of pools
)
NUMERICAL = 1e-3  # relative: the queue's laws are on grids and between pools interpolated, the bounds are not


class CraSpace:
    """B_D from 1 to what the profile covers and chunks keep up with; C from those of `CHUNKS` that it covers."""

    strategy = "CRA"
    axes = ("pool", "chunk_tokens")
    split: Split | None = None

    def __init__(
        self, model: CraModel, promise: Promise, kv_capacity: float, units: int = 1
    ) -> None:
        self.model = model
        self.units = units
        self.promise = promise
        self.kv_capacity = kv_capacity
        self.chunks = tuple(chunk for chunk in CHUNKS if model.edge(1, chunk) <= 1)
        costs, law, prompts = model.costs, model.law, model.prompts
        self._fixed_s = costs.mixed_fixed_s + costs.dispatch_s
        self._work: tuple[tuple[Lines, float], ...] = (
            (costs.per_token.lines(), prompts.tokens + law.decode_mean),
            (costs.queries_only.lines(), law.decode_mean),
            (costs.per_context.lines(), law.context_mean),
            (costs.per_sampled.lines(), law.decode_mean + 1),
            (costs.per_pair.lines(), prompts.pairs),
        )
        self._chunk_lines = _rising(costs.chunks_only.lines())
        self._floors = tuple(
            _rising(curve.floor().lines())
            for curve in (costs.per_token, costs.queries_only, costs.per_context, costs.per_sampled)
        )

    @property
    def whole(self) -> Block:
        widest = self.chunks[-1] if self.chunks else 0
        need = self.model.prompts.tokens / (self.model.law.decode_mean + 1)
        most = int(min(widest / need, self.model.costs.queries_only.limit))
        return Block(1, most, 1, len(self.chunks))

    @property
    def smallest(self) -> Point:
        return 1, self.whole.y2

    def schedule(self, point: Point) -> CraSchedule:
        return CraSchedule(
            pool=point[0],
            chunk_tokens=self._chunk(point),
            units=self.units,
            layout=self.model.layout,
        )

    def predict(self, point: Point) -> Prediction:
        return self.model.predict(self.schedule(point), self.promise)

    def uses(self, point: Point) -> list[Use]:
        if self.promise.limits is None:
            return []
        rate = self.throughput(point)
        return uses(
            self.model,
            self._knobs(point),
            self.promise,
            self.promise.limits,
            queries_per_s=rate,
            units=self.units,
        )

    def edge(self, point: Point) -> float:
        return self.model.edge(point[0], self._chunk(point))

    def kv_need(self, point: Point) -> float:
        return self.model.kv_need(point[0], self._chunk(point))

    def promised_for(self, point: Point, length: int) -> float:
        latency = self.model.latency(point[0], self._chunk(point), length)
        return self.promise.promised_s(latency.mean_s, latency.sd_s)

    def blocked(self, point: Point) -> Blocked | None:
        if not self.model.fits(point[0], self._chunk(point)):
            return "load"
        if self.edge(point) > 1:
            return "coverage"
        return "memory" if self.kv_need(point) > self.kv_capacity else None

    def throughput(self, point: Point) -> float:
        return self.units * self.model.throughput(point[0], self._chunk(point))

    def promised_s(self, point: Point) -> float:
        return held_s(
            self.model, self._knobs(point), self.promise, self.throughput(point), self.units
        )

    def roughly(self, block: Block) -> None:
        """Its bounds are cheap."""

    def bound(self, block: Block) -> Bounds:
        blocked = self._blocked(block)
        if blocked is not None:
            return Bounds(throughput=0.0, promised_s=np.inf, blocked=blocked)
        if block.y1 == block.y2 and block.x2 <= NARROW * block.x1:
            return self._simulated(block)
        model, widest = self.model, self.chunks[block.y2 - 1]
        chunks_a_query = model.queues.alone(widest)
        rate = model.queues.rate_at_most(block.x2, widest)
        per_query_s = self._fixed_s / rate + _least(self._chunk_lines, rate, chunks_a_query)
        per_query_s += sum(_least(lines, rate, work) for lines, work in self._work)
        latency_s = self._latency(block) * (1 - NUMERICAL)
        return self._held(
            self.units * (1 + NUMERICAL) / per_query_s, self.promise.at_least_s(latency_s)
        )

    def _held(self, throughput: float, promised_s: float) -> Bounds:
        return Bounds(
            throughput=throughput,
            promised_s=held_at_least_s(self.promise, promised_s, throughput),
        )

    def _simulated(self, block: Block) -> Bounds:
        """Of a block of one C: the best of its pools."""
        model, chunk = self.model, self._chunk((block.x1, block.y1))
        throughput, promised_s, pool = 0.0, np.inf, block.x1
        while pool <= block.x2 and model.fits(pool, chunk):
            run = model.run(pool, chunk)
            latencies = run.latencies(self.promise.length)
            pools = slice(run.at(pool), run.at(block.x2) + 1)
            pairs = zip(
                latencies.mean_s[pools].tolist(), latencies.sd_s[pools].tolist(), strict=True
            )
            promised_s = min(promised_s, *(self.promise.promised_s(*pair) for pair in pairs))
            throughput = max(throughput, float(run.throughput[pools].max()))
            pool = run.last + 1
        return self._held(self.units * throughput, promised_s)

    def _blocked(self, block: Block) -> Blocked | None:
        model = self.model
        if not model.fits(block.x1, self.chunks[block.y2 - 1]):
            return "load"
        if model.edge(block.x1, self.chunks[block.y1 - 1]) > 1:
            return "coverage"
        least = block.x1 * min(model.query_context, model.prompts.tokens)
        return "memory" if least > self.kv_capacity else None

    def _latency(self, block: Block) -> float:
        """A lower bound on the mean latency of an answer of the bound's length."""
        model = self.model
        length = self.promise.length
        narrow = next(
            chunk for chunk in self.chunks[block.y1 - 1 : block.y2] if model.fits(block.x1, chunk)
        )
        rho = model.queues.rate_at_least(block.x1, narrow) / block.x1
        decoding = (block.x1 - 1) * rho * model.law.decode_mean
        encoded = (block.x1 - 1) * rho * model.prompts.tokens
        own = model.own_input(length)[0] + length / 2
        means = (
            decoding + 1 + encoded,
            decoding + 1,
            decoding * model.query_context + own,
            decoding + 1 + (block.x1 - 1) * rho,
        )
        step_s = self._fixed_s + sum(
            float(np.max(a + b * mean)) for (a, b), mean in zip(self._floors, means, strict=True)
        )
        one_encode_step_s = self._fixed_s
        return one_encode_step_s + (length - 1) * step_s - model.costs.dispatch_s

    def _knobs(self, point: Point) -> Point:
        return point[0], self._chunk(point)

    def _chunk(self, point: Point) -> int:
        return self.chunks[point[1] - 1]


def _rising(lines: Lines) -> Lines:
    intercepts, slopes = lines
    keep = slopes >= 0
    return intercepts[keep], slopes[keep]


def _least(lines: Lines, rate: float, work: float) -> float:
    """The best lower bound that the lines give on what a curve costs a query."""
    intercepts, slopes = lines
    return float(np.max(intercepts / rate + slopes * work))
