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
        self._below = _Below(model)

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
        # a query's share of a round: by a pass that M micro-batches make at once as by the slowest stage
        pass_s, *stages_s = self._below.per_query_s(rate, model.queues.alone(widest)).tolist()
        pass_s = (pass_s + model.costs.dispatch_s / rate) / self._number
        per_query_s = max([pass_s, *stages_s])
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
        narrowest, widest = (self.chunks[y - 1] for y in (block.y1, block.y2))
        least = model.kv_least(smallest, narrowest, widest)
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
        with_it_s = self._below.step_s((block.x1 - 1) * rho, own=1, own_context=own)
        pass_s = float(with_it_s[0])
        round_s = pass_s + dispatch_s
        if number > 1:
            with_it_s += (number - 1) * self._below.step_s(block.x1 * rho)
        if len(with_it_s) > 1:
            round_s = max(round_s, float(with_it_s[1:].max()))
        return first_s + dispatch_s + (length - 2) * round_s + pass_s if length > 1 else first_s

    def _pool(self, point: Point) -> int:
        return point[0] * self._number

    def _knobs(self, point: Point) -> Point:
        return self._pool(point), self._chunk(point)

    def _chunk(self, point: Point) -> int:
        return self.chunks[point[1] - 1]


class _Below:
    """Lines below what a step costs, of a pass first and then of every stage that may be the slowest."""

    def __init__(self, model: CraModel) -> None:
        pipeline, law, prompts = model.pipeline, model.law, model.prompts
        self._tokens, self._decoding = prompts.tokens, model.decoding
        every = [pipeline.whole, *(pipeline.stages if pipeline.num_stages > 1 else ())]
        self._fixed_s = np.array([costs.mixed_fixed_s for costs in every])
        # (what, curves, lines), and what a query takes in all; of chunks that depends on C
        self._lines = _stacked([_curves(costs) for costs in every])
        work = (prompts.tokens + law.decode_mean, law.decode_mean, law.context_mean)
        self._work = np.array([*work, law.decode_mean + 1, prompts.pairs, 0.0])
        self._floors = _stacked([_floors(costs) for costs in every])

    def per_query_s(self, rate: float, chunks_a_query: float) -> Floats:
        """At the most at this rate of prompts, what a query costs at least."""
        intercepts, slopes = self._lines
        work = self._work.copy()
        work[-1] = chunks_a_query
        least_s = (intercepts / rate + slopes * work[:, None]).max(axis=2).sum(axis=1)
        return np.asarray(self._fixed_s / rate + least_s)

    def step_s(self, rate: float, *, own: int = 0, own_context: float = 0.0) -> Floats:
        """A step's mean time at least, at this rate or a higher one; `own` decode besides."""
        decoding = rate * self._decoding.iterations
        means = np.array(
            [
                decoding + own + rate * self._tokens,
                decoding + own,
                decoding * self._decoding.context + own_context,
                decoding + own + rate,
            ]
        )
        intercepts, slopes = self._floors
        least_s = (intercepts + slopes * means[:, None]).max(axis=2).sum(axis=1)
        return np.asarray(self._fixed_s + least_s)


def _curves(costs: StepCosts) -> list[Lines]:
    """Of tokens, queries, context, what is sampled, pairs and chunks."""
    curves = (costs.per_token, costs.queries_only, costs.per_context, costs.per_sampled)
    found = [curve.lines() for curve in (*curves, costs.per_pair)]
    return [*found, _rising(costs.chunks_only.lines())]


def _floors(costs: StepCosts) -> list[Lines]:
    """Of tokens, queries, context and what is sampled, none falling."""
    curves = (costs.per_token, costs.queries_only, costs.per_context, costs.per_sampled)
    return [_rising(curve.floor().lines()) for curve in curves]


def _rising(lines: Lines) -> Lines:
    intercepts, slopes = lines
    keep = slopes >= 0
    return intercepts[keep], slopes[keep]


def _stacked(rows: list[list[Lines]]) -> tuple[Floats, Floats]:
    """(intercepts, slopes), (rows, curves, lines); short ones repeat their first line."""
    most = max(len(a) for row in rows for a, _ in row)

    def full(values: Floats) -> Floats:
        return np.append(values, np.repeat(values[:1], most - len(values)))

    intercepts, slopes = (
        np.array([[full(lines[at]) for lines in row] for row in rows]) for at in (0, 1)
    )
    return intercepts, slopes
