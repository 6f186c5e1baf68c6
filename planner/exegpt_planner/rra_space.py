"""RRA's space on one layout, B_E by N_D, and what no schedule in a block of it can beat.

For B_E in b1..b2 and N_D in N1..N2, at iteration u of a phase, the pool holds at least b1 sum_j Q(j N2 + u) queries,
Q never rising; context and variances lie between their extremes over the windows j N1 + u .. j N2 + u. With curves
that do not fall and nowhere exceed the measured ones (`Hinges.floor`), an iteration's expected time at the least pool
bounds it from below, on every stage and for a pass through all.

Throughput has a second bound, from lines below the curves: sum_u E[T_D] >= a N_D + b B_E E[D] whatever the pool's
law, as every query decodes E[D] times in all. It does not lose b1/b2; the first sees the steps of the table. The
larger one holds. Where micro-batches are fewer than stages, the last iteration of a phase overlaps with the next encode
and is left out; of a sequence that does not rise, the others are no less than their share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.adjustment import rra_adjustment
from exegpt_planner.expectation import Hinges, hinge
from exegpt_planner.schedule import Prediction, RraSchedule, Split
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.windows import Windows

Floats = NDArray[np.float64]

_BEYOND_3_SDS = (
    3.83e-4  # E[(Z - 3)+]: what of a covered normal law lies beyond the curve's end, in sd
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Envelope:
    """Bounds per query encoded, at iterations u = 1..N2 of a phase, over all N_D in N1..N2 (that reach u)."""

    queries: Floats  # at least
    queries_var_min: Floats
    queries_var_max: Floats
    context: Floats  # at least
    context_var_min: Floats
    context_var_max: Floats
    log_empty: Floats  # at most


@dataclass(frozen=True, slots=True, eq=False)
class _Below:
    """Curves and lines that lie below one stage's decode costs, or a pass's."""

    costs: StepCosts
    floors: tuple[Hinges, Hinges]
    lines: tuple[tuple[Floats, Floats], tuple[Floats, Floats]]

    @classmethod
    def of(cls, costs: StepCosts) -> Self:
        """Computed once; a space asks for them for every block."""
        curves = (costs.per_query, costs.per_context)
        return cls(
            costs,
            (curves[0].floor(), curves[1].floor()),
            (curves[0].lines(), curves[1].lines()),
        )


class RraSpace:
    """B_E from 1 to what the profile covers, N_D from 1 to the longest answer's decode iterations."""

    def __init__(
        self, model: RraModel, promise: Promise, kv_capacity: float, units: int = 1
    ) -> None:
        self.model = model
        self.units = units
        self.promise = promise
        self.kv_capacity = kv_capacity
        law, pipeline = model.law, model.pipeline
        self._number = pipeline.micro_batches
        self._whole = _Below.of(pipeline.whole)
        self._stages = (
            (self._whole,)
            if pipeline.num_stages == 1
            else tuple(_Below.of(costs) for costs in pipeline.stages)
        )
        t = np.arange(1, law.longest + 1)
        alive, own, own_var = law.one_query(law.longest)
        self._variances = Windows(alive * (1 - alive))
        self._contexts, self._context_vars = Windows(own), Windows(own_var)
        b = np.arange(1, model.max_batch + 1)
        encodes = model.encodes.times
        slowest_s, pass_s = encodes.slowest_s[1:], encodes.pass_s[1:]
        turn_s = self._number * slowest_s
        if not pipeline.is_filled:
            turn_s = pass_s + (self._number - 1) * slowest_s
        turn_s = turn_s + model.costs.dispatch_s
        self._turn_s = np.append(np.inf, turn_s)
        self._turn_share_s = np.append(np.inf, turn_s / b)
        length = promise.length
        own_encode = model.encodes.own(length)
        excess = own_encode.pass_s - pass_s
        first_s = pass_s
        if pipeline.is_filled:
            excess = own_encode.slowest_s - slowest_s
            first_s = np.maximum(pass_s, (self._number + 1) / 2 * slowest_s)
        self._own_encode_s = np.append(np.inf, first_s + excess)
        mean, self._own_var = model.encodes.own_input(length)
        d = length - 1
        self._context_shortfall = float(max(0.0, np.max(own[:d] - mean - t[:d], initial=0.0)))
        self._largest_own_var = float(np.max(own_var, initial=0.0))
        self._envelopes: dict[tuple[int, int], Envelope] = {}

    strategy = "RRA"
    axes = ("encode_batch", "encode_interval")
    split: Split | None = None

    @property
    def whole(self) -> Block:
        return Block(1, self.model.max_batch, 1, max(1, self.model.law.longest))

    @property
    def smallest(self) -> Point:
        return 1, self.whole.y2

    def blocked(self, point: Point) -> Blocked | None:
        if not self.model.covers(*point):
            return "coverage"
        return "memory" if self.model.kv_need(*point) > self.kv_capacity else None

    def throughput(self, point: Point) -> float:
        return self.units * self.model.throughput(*point)

    def promised_s(self, point: Point) -> float:
        return self.promised_for(point, self.promise.length)

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
            encode_batch=batch, encode_interval=interval, units=self.units, adjustment=adjustment
        )

    def predict(self, point: Point) -> Prediction:
        return self.model.predict(self.schedule(point), self.promise)

    def edge(self, point: Point) -> float:
        return max(point[0] / max(1, self.model.max_batch), self.model.edge(*point))

    def kv_need(self, point: Point) -> float:
        return self.model.kv_need(*point)

    def promised_for(self, point: Point, length: int) -> float:
        latency = self.model.latency(point[0], point[1], length)
        return self.promise.promised_s(latency.mean_s, latency.sd_s)

    def bound(self, block: Block) -> Bounds:
        b1, b2, n1, n2 = block.x1, block.x2, block.y1, block.y2
        envelope = self._envelope(n1, n2)
        blocked = self._blocked(b1, envelope)
        if blocked is not None:
            return Bounds(throughput=0.0, promised_s=np.inf, blocked=blocked)
        per_query_s = float(self._turn_share_s[b1 : b2 + 1].min()) + self._decode(block, envelope)
        return Bounds(
            throughput=self.units / per_query_s,
            promised_s=self.promise.at_least_s(self._latency(block, envelope)),
        )

    def _envelope(self, n1: int, n2: int) -> Envelope:
        found = self._envelopes.get((n1, n2))
        if found is None:
            found = self._exact(n1) if n1 == n2 else self._windowed(n1, n2)
            self._envelopes[n1, n2] = found
        return found

    def _exact(self, interval: int) -> Envelope:
        phase = self.model.law.phase(interval)
        return Envelope(
            queries=phase.queries,
            queries_var_min=phase.queries_var,
            queries_var_max=phase.queries_var,
            context=phase.context,
            context_var_min=phase.context_var,
            context_var_max=phase.context_var,
            log_empty=phase.log_empty,
        )

    def _windowed(self, n1: int, n2: int) -> Envelope:
        longest = self.model.law.longest
        cycles = np.arange(max(1, -(-longest // n1)))[:, None]
        u = np.arange(n2)[None, :]  # the arrays of t start at t = 1
        start, end = cycles * n1 + u, cycles * n2 + u
        low_var, high_var = self._variances.extremes(start, end)
        context, _ = self._contexts.extremes(start, end)
        low_context_var, high_context_var = self._context_vars.extremes(start, end)
        widest = self.model.law.phase(n2)
        return Envelope(
            queries=widest.queries,
            queries_var_min=low_var.sum(axis=0),
            queries_var_max=high_var.sum(axis=0),
            context=context.sum(axis=0),
            context_var_min=low_context_var.sum(axis=0),
            context_var_max=high_context_var.sum(axis=0),
            log_empty=widest.log_empty,
        )

    def _blocked(self, batch: int, envelope: Envelope) -> Blocked | None:
        costs, size = self.model.costs, batch / self._number
        query_sds = COVERED_SDS * np.sqrt(size * envelope.queries_var_min)
        context_sds = COVERED_SDS * np.sqrt(size * envelope.context_var_min)
        if (size * envelope.queries + query_sds).max() > costs.per_query.limit * (1 + 1e-12):
            return "coverage"
        if (size * envelope.context + context_sds).max() > costs.per_context.limit * (1 + 1e-12):
            return "coverage"
        context, queries = batch * envelope.context, batch * envelope.queries
        need = memory.need(context, batch * envelope.context_var_min, queries)
        return "memory" if need > self.kv_capacity * (1 + 1e-12) else None

    def _decode(self, block: Block, envelope: Envelope) -> float:
        """A lower bound on the time of a decode phase per query encoded."""
        number, n1 = self._number, block.y1
        least = max(
            max(
                number * self._by_floors(block, envelope, below, n1) / block.x2,
                self._by_lines(block, envelope, below),
            )
            for below in self._stages
        )
        if self.model.pipeline.num_stages == 1:
            return least
        last = 0 if self.model.pipeline.is_filled else 1
        by_lines = self._by_lines(block, envelope, self._whole) / number * (n1 - last) / n1
        by_floors = self._by_floors(block, envelope, self._whole, n1 - last) / block.x2
        return max(least, by_lines, by_floors)

    def _by_floors(self, block: Block, envelope: Envelope, below: _Below, n: int) -> float:
        """A lower bound on the time of n iterations of a micro-batch."""
        return float(self._any_iteration(block, envelope, below, n).sum())

    def _by_lines(self, block: Block, envelope: Envelope, below: _Below) -> float:
        """A lower bound on the time of a decode phase per query of a micro-batch, tight for wide blocks."""
        s1, s2, n1 = block.x1 / self._number, block.x2 / self._number, block.y1
        law, costs = self.model.law, below.costs
        empty = np.exp(s1 * envelope.log_empty)
        total = costs.decode_fixed_s * float((1 - empty[:n1]).sum()) / s2
        curves = (costs.per_query, costs.per_context)
        sums = (law.decode_mean, law.context_mean)
        laws = _laws(envelope, len(envelope.queries))
        for curve, lines, work, (mean, _, high) in zip(
            curves, below.lines, sums, laws, strict=True
        ):
            under = float(hinge(-s1 * mean, np.sqrt(s2 * high)).sum()) / s1
            above = float(np.sqrt(high).sum()) * _BEYOND_3_SDS / np.sqrt(s1)
            intercepts, slopes = lines
            outside = np.maximum(curve.slope - slopes, 0.0) * under
            outside = outside + np.maximum(slopes - curve.last_slope, 0.0) * above
            each = intercepts[:, None] - curve.at_zero * empty  # lines by iterations
            fixed = np.maximum(each[:, :n1], 0.0).sum(axis=1) / s2
            fixed = fixed + np.minimum(each, 0.0).sum(axis=1) / s1
            total += float((fixed + slopes * work - outside).max())
        return total

    def _latency(self, block: Block, envelope: Envelope) -> float:
        """A lower bound on the mean latency of an answer of the bound's length."""
        b1, b2, n2 = block.x1, block.x2, block.y2
        pipeline, d = self.model.pipeline, self.promise.length - 1
        own_s = float(self._own_encode_s[b1 : b2 + 1].min())
        if d == 0:
            return own_s
        turns = -(-d // n2) - 1
        turns_s = turns * float(self._turn_s[b1 : b2 + 1].min())
        reach = min(d, n2)
        pass_s = self._own_iteration(block, envelope, self._whole, reach)
        round_s = pass_s
        if pipeline.num_stages > 1 or self._number > 1:
            slowest_s = np.max(
                [self._own_iteration(block, envelope, each, reach) for each in self._stages],
                axis=0,
            )
            others_s = np.max(
                [self._any_iteration(block, envelope, each, reach) for each in self._stages],
                axis=0,
            )
            round_s = np.maximum(slowest_s + (self._number - 1) * others_s, pass_s)
        last_s = float(pass_s.min())
        if block.y1 == n2 and pipeline.is_filled:
            return own_s + turns_s + float(np.resize(round_s, d)[:-1].sum()) + last_s
        # Of a sequence that does not rise, begun anew every N <= N2 terms, any d terms average at least its first N2.
        falling = np.minimum.accumulate(round_s)
        counted = d - 1 if pipeline.is_filled else max(0, d - 1 - (-(-d // block.y1) - 1))
        return own_s + turns_s + counted * float(falling.mean()) + last_s

    def _own_iteration(self, block: Block, envelope: Envelope, below: _Below, n: int) -> Floats:
        """A lower bound on iterations of the micro-batch that holds the answer."""
        s1, s2 = block.x1 / self._number, block.x2 / self._number
        queries, context = _laws(envelope, n)
        (queries_below, context_below), (mean, low, high) = below.floors, queries
        least = np.maximum(s1 * context[1] - self._largest_own_var, 0.0)
        return np.asarray(
            below.costs.decode_fixed_s
            + queries_below.mean_at_least(
                s1 * mean, np.sqrt(np.maximum(s1 * low - 0.25, 0.0)), np.sqrt(s2 * high)
            )
            + context_below.mean_at_least(
                s1 * context[0] - self._context_shortfall,
                np.sqrt(least),
                np.sqrt(s2 * context[2] + self._own_var),
            )
        )

    def _any_iteration(self, block: Block, envelope: Envelope, below: _Below, n: int) -> Floats:
        """A lower bound on iterations of any micro-batch, which may be empty."""
        s1, s2 = block.x1 / self._number, block.x2 / self._number
        costs = below.costs
        times = np.full(n, costs.decode_fixed_s)
        for curve, (mean, low, high) in zip(below.floors, _laws(envelope, n), strict=True):
            times = times + curve.mean_at_least(s1 * mean, np.sqrt(s1 * low), np.sqrt(s2 * high))
        fixed = costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s
        return np.maximum(times - fixed * np.exp(s1 * envelope.log_empty[:n]), 0.0)


def _laws(envelope: Envelope, n: int) -> tuple[tuple[Floats, Floats, Floats], ...]:
    """(mean, least variance, largest) of queries and of context, over the first n iterations."""
    return (
        (
            envelope.queries[:n],
            envelope.queries_var_min[:n],
            envelope.queries_var_max[:n],
        ),
        (
            envelope.context[:n],
            envelope.context_var_min[:n],
            envelope.context_var_max[:n],
        ),
    )
