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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.schedule import CraSchedule, Prediction, Split
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.limits import Use, held_at_least_s, held_s, uses
from exegpt_planner.simulator.promise import Promise

Floats = NDArray[np.float64]
Lines = tuple[Floats, Floats]

# C, tokens, four an octave: a step's work strays least where C is just above the need, so that with half as many
# throughput under a tight bound is up to 2 % less, with a quarter 8 %
CHUNKS = tuple(part << e for e in range(1, 14) for part in (4, 5, 6, 7))[:-3]
NARROW = (
    1.25  # largest pool of a block over its smallest, for all to be simulated: about a run of pools
)
NUMERICAL = 1e-3  # relative: the queue's laws are on grids and between pools interpolated, the bounds are not


class Pools(Block):
    """A block that is split to pools close together first, then to single Cs: such blocks are simulated whole."""

    def split(self) -> tuple[Block, Block]:
        """Two halves."""
        x1, x2, y1, y2 = self.x1, self.x2, self.y1, self.y2
        if y1 == y2 or (x2 > x1 and x2 > NARROW * x1):
            cut = min(max(int((x1 * x2) ** 0.5), x1), x2 - 1)
            return Pools(x1, cut, y1, y2), Pools(cut + 1, x2, y1, y2)
        cut = (y1 + y2) // 2
        return Pools(x1, x2, y1, cut), Pools(x1, x2, cut + 1, y2)


class CraSpace:
    """B_D / M from 1 to what the profile covers and chunks keep up with; C from those of a list that it covers."""

    strategy = "CRA"
    axes = ("pool", "chunk_tokens")
    few = 0
    split: Split | None = None

    def __init__(
        self,
        model: CraModel,
        promise: Promise,
        kv_capacity: float,
        units: int = 1,
        chunks: tuple[int, ...] = CHUNKS,
    ) -> None:
        """`chunks` is what C may be, tokens."""
        self.model = model
        self.units = units
        self.promise = promise
        self.kv_capacity = kv_capacity
        self.chunks = tuple(chunk for chunk in chunks if model.edge(1, chunk) <= 1)
        pipeline = model.pipeline
        self._number = pipeline.micro_batches
        self._largest: dict[int, int] = {}
        self._whole = _Below(model, pipeline.whole)
        self._stages: tuple[_Below, ...] = ()
        if pipeline.num_stages > 1:
            self._stages = tuple(_Below(model, costs) for costs in pipeline.stages)

    @property
    def whole(self) -> Block:
        widest = self.chunks[-1] if self.chunks else 0
        most = min(self.model.queues.most(widest), self.model.rounds.whole.most)
        return Pools(1, most, 1, len(self.chunks))

    @property
    def smallest(self) -> Point:
        return 1, self.whole.y2

    def schedule(self, point: Point) -> CraSchedule:
        return CraSchedule(
            pool=self._pool(point),
            chunk_tokens=self._chunk(point),
            units=self.units,
            micro_batches=self._number,
            layout=self.model.pipeline.layout,
        )

    def predict(self, point: Point) -> Prediction:
        return self.model.predict(self.schedule(point), self.promise)

    def edge(self, point: Point) -> float:
        return self.model.edge(self._pool(point), self._chunk(point))

    def kv_need(self, point: Point) -> float:
        return self.model.kv_need(self._pool(point), self._chunk(point))

    def promised_for(self, point: Point, length: int) -> float:
        run = self.model.run(point[0], self._chunk(point))
        return float(run.latencies(length).promised_s(self.promise)[run.at(point[0])])

    def blocked(self, point: Point) -> Blocked | None:
        if not self.model.fits(self._pool(point), self._chunk(point)):
            return "load"
        if self.edge(point) > 1:
            return "coverage"
        return "memory" if self.kv_need(point) > self.kv_capacity else None

    def throughput(self, point: Point) -> float:
        return self.units * self.model.throughput(self._pool(point), self._chunk(point))

    def promised_s(self, point: Point) -> float:
        if self.promise.limits is None:
            return self.promised_for(point, self.promise.length)
        rate = self.throughput(point)
        return held_s(self.model, self._knobs(point), self.promise, rate, self.units)

    def uses(self, point: Point) -> list[Use]:
        if self.promise.limits is None:
            return []
        return uses(
            self.model,
            self._knobs(point),
            self.promise,
            self.promise.limits,
            queries_per_s=self.throughput(point),
            units=self.units,
        )

    def roughly(self, block: Block) -> None:
        """Its bounds are cheap."""

    def bound(self, block: Block) -> Bounds:
        """What no schedule of a block can beat; of throughput, none that keeps the bound."""
        most = max(self._most(y) for y in range(block.y1, block.y2 + 1))
        if most < block.x1:
            blocked = self._blocked(block) or self.blocked((block.x1, block.y2))
            return Bounds(throughput=0.0, promised_s=np.inf, blocked=blocked)
        part = replace(block, x2=min(block.x2, most))
        if self._is_simulated(part):
            return self._simulated(part)
        least_s = self._at_least_s(part)
        if least_s > self.promise.answer_s:
            return self._held(np.inf, least_s)
        model, widest = self.model, self.chunks[block.y2 - 1]
        rate = model.queues.rate_at_most(part.x2, widest)
        chunks_a_query, dispatch_s = model.queues.alone(widest), model.costs.dispatch_s
        # a query's share of a round: by the slowest stage as by a pass that M micro-batches make at once
        per_query_s = self._whole.per_query_s(rate, chunks_a_query, dispatch_s) / self._number
        for stage in self._stages:
            per_query_s = max(per_query_s, stage.per_query_s(rate, chunks_a_query, 0.0))
        return self._held(self.units * (1 + NUMERICAL) / per_query_s, least_s)

    def _is_simulated(self, block: Block) -> bool:
        """Whether its pools are close together and of one C, or all of Cs so large that nobody waits for any."""
        if block.x2 > NARROW * block.x1:
            return False
        first, last = self._chunk((block.x1, block.y1)), self._chunk((block.x1, block.y2))
        if first == last:
            return True
        alike = self.model.fits(block.x2 * self._number, first)
        return alike and self.model.run(block.x2, first) is self.model.run(block.x2, last)

    def _at_least_s(self, block: Block) -> float:
        return self.promise.at_least_s(self._latency(block) * (1 - NUMERICAL))

    def _most(self, y: int) -> int:
        """The largest pool of a micro-batch that a C allows: load, reach and memory all rise with it."""
        found = self._largest.get(y)
        if found is None:
            found, beyond = 0, self.whole.x2 + 1
            while beyond - found > 1:
                middle = (found + beyond) // 2
                if self.blocked((middle, y)) is None:
                    found = middle
                else:
                    beyond = middle
            self._largest[y] = found
        return found

    def _held(self, throughput: float, promised_s: float) -> Bounds:
        held = held_at_least_s(self.promise, promised_s, throughput)
        return Bounds(throughput=throughput, promised_s=held)

    def _simulated(self, block: Block) -> Bounds:
        """Of a block of one C, or of Cs that make no difference: the best of its pools."""
        model, chunk = self.model, self._chunk((block.x1, block.y1))
        throughput, promised_s, pool = 0.0, np.inf, block.x1
        while pool <= block.x2 and model.fits(pool * self._number, chunk):
            run = model.run(pool, chunk)
            latencies = run.latencies(self.promise.length)
            pools = slice(run.at(pool), run.at(block.x2) + 1)
            promises_s = latencies.promised_s(self.promise)[pools]
            promised_s = min(promised_s, float(promises_s.min()))
            kept = np.where(promises_s <= self.promise.answer_s, run.throughput[pools], 0.0)
            throughput = max(throughput, float(kept.max()))
            pool = run.last + 1
        return self._held(self.units * throughput, promised_s)

    def _blocked(self, block: Block) -> Blocked | None:
        model = self.model
        smallest = block.x1 * self._number
        if not model.fits(smallest, self.chunks[block.y2 - 1]):
            return "load"
        if model.edge(smallest, self.chunks[block.y1 - 1]) > 1:
            return "coverage"
        least = smallest * model.prompts.tokens  # as all slots may hold new prompts
        return "memory" if least > self.kv_capacity else None

    def _latency(self, block: Block) -> float:
        """A lower bound on the mean latency of an answer of the bound's length."""
        model, length, number = self.model, self.promise.length, self._number
        narrow = next(
            chunk
            for chunk in self.chunks[block.y1 - 1 : block.y2]
            if model.fits(block.x1 * number, chunk)
        )
        rho = model.queues.rate_at_least(block.x1, narrow) / block.x1
        own = model.own_input(length)[0] + length / 2
        dispatch_s, first_s = model.costs.dispatch_s, model.costs.mixed_fixed_s
        pass_s = self._whole.decode_s((block.x1 - 1) * rho, own)
        round_s = pass_s + dispatch_s
        for stage in self._stages:
            others_s = (number - 1) * stage.mean_s(block.x1 * rho)
            round_s = max(round_s, stage.decode_s((block.x1 - 1) * rho, own) + others_s)
        return first_s + dispatch_s + (length - 2) * round_s + pass_s if length > 1 else first_s

    def _pool(self, point: Point) -> int:
        return point[0] * self._number

    def _knobs(self, point: Point) -> Point:
        return self._pool(point), self._chunk(point)

    def _chunk(self, point: Point) -> int:
        return self.chunks[point[1] - 1]


class _Below:
    """Lines below what a step costs, of all stages or of one."""

    def __init__(self, model: CraModel, costs: StepCosts) -> None:
        self._model, self._fixed_s = model, costs.mixed_fixed_s
        law, prompts = model.law, model.prompts
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

    def per_query_s(self, rate: float, chunks_a_query: float, more_s: float) -> float:
        """Of steps that take `more_s` besides, at the most at this rate of prompts, what a query costs at least."""
        some = (self._fixed_s + more_s) / rate + _least(self._chunk_lines, rate, chunks_a_query)
        return some + sum(_least(lines, rate, work) for lines, work in self._work)

    def mean_s(self, rate: float) -> float:
        """A step's mean time at least, at this rate or a higher one."""
        return self._at_least_s(rate, own=0, own_context=0.0)

    def decode_s(self, rate: float, own_context: float) -> float:
        """The same of a step in which one more decodes."""
        return self._at_least_s(rate, own=1, own_context=own_context)

    def _at_least_s(self, rate: float, *, own: int, own_context: float) -> float:
        model = self._model
        decoding = rate * model.law.decode_mean
        means = (
            decoding + own + rate * model.prompts.tokens,
            decoding + own,
            decoding * model.decoding.context + own_context,
            decoding + own + rate,
        )
        return self._fixed_s + sum(
            float(np.max(a + b * mean)) for (a, b), mean in zip(self._floors, means, strict=True)
        )


def _rising(lines: Lines) -> Lines:
    intercepts, slopes = lines
    keep = slopes >= 0
    return intercepts[keep], slopes[keep]


def _least(lines: Lines, rate: float, work: float) -> float:
    """The best lower bound that the lines give on what a curve costs a query."""
    intercepts, slopes = lines
    return float(np.max(intercepts / rate + slopes * work))
