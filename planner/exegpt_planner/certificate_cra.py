"""CRA's schedules on a shape, for checking a certificate: those that no bound settles.

With r prompts an iteration of a micro-batch its steps hold r times what a query takes in all, so with h(r) the sum of
the convex curves below its costs at those means (Jensen, whatever the laws), by the slowest stage or a pass with its
message,

    X <= R M r / (h_w(r) + dispatch),   R r / h_t(r),   r <= B_D / M / (chunks + E[D])

r / h(r) may fall where costs grow steeper, so that of any smaller r counts. What beats a throughput has an r of at
least that bound's inverse, and one of at least what Kingman's bound on the wait gives; a round in which an answer
decodes takes at least h at the means of one slot fewer with the answer's own. With memory, coverage and load at the
least, that leaves some (B_D / M, C), which are simulated, run by run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.certificate_convex import Convex
from exegpt_planner.certificate_spaces import CHUNKS, Point, Question
from exegpt_planner.proof import Corners
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.limits import held_s

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NUMERICAL = 1e-3  # relative: the queue's laws are on grids and interpolated between pools
HALVINGS = 50


class Cra:
    """All schedules on a shape, x queries of a micro-batch by chunks from a list."""

    def __init__(self, asked: Question, shape: Shape) -> None:
        self.asked, self.room, self.units = asked, shape.room.kv_tokens, shape.units
        self.model, self.number, self.simulated = asked.cra(shape), shape.micro_batches, 0
        self.chunks = [chunk for chunk in CHUNKS if self.model.edge(1, chunk) <= 1]
        widest = self.chunks[-1] if self.chunks else 0
        most = min(self.model.queues.most(widest), self.model.rounds.whole.most)
        self.whole: Corners = 1, most, 1, len(self.chunks)
        pipeline, dispatch_s = self.model.pipeline, self.model.costs.dispatch_s
        self._pass = _below(asked, self.model, pipeline.whole, dispatch_s)
        self._ends: dict[int, int] = {}
        self._stages: list[_Below] = []
        if pipeline.num_stages > 1:
            self._stages = [_below(asked, self.model, each, 0.0) for each in pipeline.stages]

    def knobs(self, x: int, y: int) -> Point:
        """The pool and the chunk of a point."""
        return x * self.number, self.chunks[y - 1]

    def fits(self, x: int, y: int) -> bool:
        """Whether chunks keep up, the table covers the schedule and memory holds it."""
        pool, chunk = self.knobs(x, y)
        covered = self.model.fits(pool, chunk) and self.model.edge(pool, chunk) <= 1
        return covered and self.model.kv_need(pool, chunk) <= self.room

    def rate(self, x: int, y: int) -> float:
        """Queries/s."""
        return self.units * self.model.throughput(*self.knobs(x, y))

    def promised_s(self, x: int, y: int) -> float:
        """What is held against the bound."""
        knobs, rate = self.knobs(x, y), self.rate(x, y)
        return held_s(self.model, knobs, self.asked.promise, rate, self.units)

    def ends(self, block: Corners) -> set[Point]:
        """Its corners, as far as they fit."""
        x1, x2, y1, y2 = block
        return {(x, y) for x in (x1, x2) for y in (y1, y2) if self.fits(x, y)}

    def unsettled(self, block: Corners, best: float, bound_s: float) -> Iterator[Point]:
        """Schedules of the block with more throughput than `best` that keep the bound on whole answers."""
        x1, _, y1, _ = block
        may = self._may(block, best, np.isfinite(bound_s))
        for column in np.flatnonzero(may.any(axis=0)).tolist():
            y = y1 + column
            sizes = x1 + np.flatnonzero(may[:, column])
            sizes = sizes[sizes <= self._last(y)]
            yield from self._better(sizes, y, best, np.isfinite(bound_s))

    def _last(self, y: int) -> int:
        """The largest that fits: need, reach and memory all rise with the pool."""
        found = self._ends.get(y)
        if found is None:
            sizes = range(1, self.whole[1] + 1)
            found = self._ends[y] = bisect_left(sizes, True, key=lambda x: not self.fits(x, y))
        return found

    def _better(
        self, sizes: NDArray[np.int64], y: int, best: float, is_bound: bool
    ) -> Iterator[Point]:
        """Of these schedules, which fit; simulated."""
        promise, chunk = self.asked.promise, self.chunks[y - 1]
        self.simulated += len(sizes)
        while sizes.size:
            run = self.model.run(int(sizes[0]), chunk)
            here, sizes = sizes[sizes <= run.last], sizes[sizes > run.last]
            at = here + run.at(0)
            better = self.units * run.throughput[at] > best
            if is_bound and better.any():
                better &= run.latencies(promise.length).promised_s(promise)[at] <= promise.answer_s
            for x in here[better].tolist():
                yield x, y

    def _may(self, block: Corners, best: float, is_bound: bool) -> Bools:
        """(B_D / M, C) of the block: whether a schedule may fit, beat `best` and keep the bound."""
        x1, x2, y1, y2 = block
        model, sizes = self.model, np.arange(float(x1), x2 + 1)[:, None]
        chunks = np.array(self.chunks[y1 - 1 : y2], dtype=np.float64)
        pools, costs, prompts = sizes * self.number, model.costs, model.prompts
        may = (sizes * model.queues.need(1) <= chunks) & (sizes <= costs.queries_only.limit)
        may &= sizes + chunks <= costs.per_token.limit
        need = memory.needs(pools * prompts.tokens, pools * prompts.tokens_var, pools)
        may &= need + model.pipeline.activation_tokens * (sizes + chunks) <= self.room
        at = np.nonzero(may)
        if best == 0 or not at[0].size:
            return may
        size, (low, high) = sizes[at[0], 0], self._rates(sizes[at[0], 0], chunks[at[1]])
        kept = self.units / self._per_query_s(high) > best
        if is_bound:
            rate = np.maximum(low, self._least_rate(best))
            mean_s = self.asked.promise.answer_s / (1 + self.asked.promise.error)
            kept &= self._latency_s(size, rate) * (1 - NUMERICAL) <= mean_s
        may[at] = kept
        return may

    def _rates(self, size: Floats, chunk: Floats) -> tuple[Floats, Floats]:
        """Prompts an iteration, at least and at most."""
        tokens, square, decode, alone = self.asked.prompt_chunks
        chunks = np.array([alone[each] for each in chunk.tolist()])
        most = 1 / (chunks + decode)  # of a slot
        arriving = (size - 1) * most * tokens
        var = (size - 1) * most * (square - most * tokens**2)
        waits = (var / (2 * (chunk - arriving)) + tokens + arriving / 2) / chunk
        least = 1 / (1 + waits + decode)
        return size * least * (1 - NUMERICAL), size * most * (1 + NUMERICAL)

    def _per_query_s(self, rate: Floats) -> Floats:
        """A unit's time a query at least, at this rate or any below."""
        found = self._pass.per_prompt_s(rate) / self.number
        for stage in self._stages:
            found = np.maximum(found, stage.per_prompt_s(rate))
        return found * (1 - NUMERICAL)

    def _least_rate(self, best: float) -> float:
        """Below it nothing has more throughput than `best`."""
        low, high = 0.0, float(self.whole[1])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            beats = self.units / self._per_query_s(np.array([middle]))[0] > best
            low, high = (low, middle) if beats else (middle, high)
        return low

    def _latency_s(self, size: Floats, rate: Floats) -> Floats:
        """The mean latency of an answer of the bound's length, at least."""
        costs, length = self.model.costs, self.asked.promise.length
        first_s = costs.mixed_fixed_s + costs.dispatch_s
        if length == 1:
            return np.full(len(size), first_s)
        own = self.model.own_input(length)[0] + length / 2
        others = rate * (size - 1) / size
        pass_s = self._pass.decode_s(others, own)
        round_s = pass_s + costs.dispatch_s
        for stage in self._stages:
            before_s = (self.number - 1) * stage.step_s(rate)
            round_s = np.maximum(round_s, stage.decode_s(others, own) + before_s)
        return np.asarray(first_s + (length - 2) * round_s + pass_s)


class _Below:
    """Steps through some stages, at least, by the prompts an iteration."""

    def __init__(self, model: CraModel, costs: StepCosts, more_s: float) -> None:
        law, prompts = model.law, model.prompts
        curves = (
            (costs.per_token, prompts.tokens + law.decode_mean, 1.0),
            (costs.queries_only, law.decode_mean, 1.0),
            (costs.per_context, law.context_mean, 0.0),
            (costs.per_sampled, law.decode_mean + 1, 1.0),
            (costs.per_pair, prompts.pairs, 0.0),
            (costs.chunks_only, 1.0, 0.0),
        )
        self._curves = [(Convex(curve), work, own) for curve, work, own in curves]
        self._context, self._fixed_s = self._curves[2][0], costs.mixed_fixed_s
        ends = [curve.x / work for curve, work, _ in self._curves if work > 0]
        self._rates = np.unique(np.concatenate(ends))
        self._seconds = self.step_s(self._rates)
        inner = self._rates > 0
        each_s = (self._seconds[inner] + more_s) / self._rates[inner]
        self._least_s = np.append(np.inf, np.minimum.accumulate(each_s))
        self._inner, self._more_s = self._rates[inner], more_s

    def step_s(self, rate: Floats) -> Floats:
        """A step's mean."""
        found = sum((curve(rate * work) for curve, work, _ in self._curves), 0.0 * rate)
        return np.asarray(found + self._fixed_s)

    def per_prompt_s(self, rate: Floats) -> Floats:
        """A step over the rate, the least at this or any lower one: h is a line from one corner to the next."""
        here_s = (np.interp(rate, self._rates, self._seconds) + self._more_s) / rate
        least_s = self._least_s[np.searchsorted(self._inner, rate)]
        return np.asarray(np.minimum(here_s, least_s))

    def decode_s(self, rate: Floats, own_context: float) -> Floats:
        """A step's mean in which one more query decodes."""
        found = 0.0 * rate + self._fixed_s
        for curve, work, own in self._curves:
            found += curve(rate * work + (own_context if curve is self._context else own))
        return np.asarray(found)


def _below(asked: Question, model: CraModel, costs: StepCosts, more_s: float) -> _Below:
    """Made once for the stages that shapes have in common."""
    key = costs, more_s
    found = asked.below.get(key)
    if found is None:
        found = asked.below[key] = _Below(model, costs, more_s)
    assert isinstance(found, _Below)
    return found
