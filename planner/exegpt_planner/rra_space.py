"""RRA's space, B_E by N_D, and what no schedule in a block of it can beat.

For B_E in b1..b2 and N_D in N1..N2, at iteration u of a phase, the pool holds at least b1 sum_j Q(j N2 + u) queries,
Q never rising; context and variances lie between their extremes over the windows j N1 + u .. j N2 + u. With curves
that do not fall and nowhere exceed the measured ones (`Hinges.floor`), an iteration's expected time at the least pool
bounds it from below.

Throughput has a second bound, from lines below the curves: sum_u E[T_D] >= a N_D + b B_E E[D] whatever the pool's
law, as every query decodes E[D] times in all. It does not lose b1/b2; the first sees the steps of the table. The
larger one holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.adjustment import rra_adjustment
from exegpt_planner.expectation import Hinges, hinge
from exegpt_planner.schedule import Prediction, RraSchedule, Split
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.costs import COVERED_SDS
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


class RraSpace:
    """B_E from 1 to what the profile covers, N_D from 1 to the longest answer's decode iterations."""

    def __init__(
        self, model: RraModel, promise: Promise, kv_capacity: float, units: int = 1
    ) -> None:
        self.model = model
        self.units = units
        self.promise = promise
        self.kv_capacity = kv_capacity
        law, costs = model.law, model.costs
        self._floors = (costs.per_query.floor(), costs.per_context.floor())
        self._lines = (costs.per_query.lines(), costs.per_context.lines())
        t = np.arange(1, law.longest + 1)
        alive, own, own_var = law.one_query(law.longest)
        self._variances = Windows(alive * (1 - alive))
        self._contexts, self._context_vars = Windows(own), Windows(own_var)
        b = np.arange(1, model.max_batch + 1)
        turn_s = model.encode_s[1:] + costs.dispatch_s
        self._turn_s = np.append(np.inf, turn_s)
        self._turn_share_s = np.append(np.inf, turn_s / b)
        length = promise.length
        self._own_encode_s = np.append(np.inf, model.encodes.own_s(length))
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
        decodes_s = float(model.decode_s(batch, model.law.phase(interval)).sum())
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
        decode_s = max(
            self._decode_by_floors(block, envelope) / b2, self._decode_by_lines(block, envelope)
        )
        per_query_s = float(self._turn_share_s[b1 : b2 + 1].min()) + decode_s
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
        costs = self.model.costs
        queries = batch * envelope.queries
        context = batch * envelope.context
        query_sds = COVERED_SDS * np.sqrt(batch * envelope.queries_var_min)
        context_sds = COVERED_SDS * np.sqrt(batch * envelope.context_var_min)
        if (queries + query_sds).max() > costs.per_query.limit * (1 + 1e-12):
            return "coverage"
        if (context + context_sds).max() > costs.per_context.limit * (1 + 1e-12):
            return "coverage"
        need = memory.need(context, batch * envelope.context_var_min, queries)
        return "memory" if need > self.kv_capacity * (1 + 1e-12) else None

    def _decode_by_floors(self, block: Block, envelope: Envelope) -> float:
        """A lower bound on the time of a decode phase."""
        b1, b2, n1 = block.x1, block.x2, block.y1
        costs = self.model.costs
        times = np.full(n1, costs.decode_fixed_s)
        for curve, mean, low, high in self._laws(envelope, n1):
            times = times + curve.mean_at_least(b1 * mean, np.sqrt(b1 * low), np.sqrt(b2 * high))
        fixed = costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s
        times = times - fixed * np.exp(b1 * envelope.log_empty[:n1])
        return float(np.maximum(times, 0.0).sum())

    def _decode_by_lines(self, block: Block, envelope: Envelope) -> float:
        """A lower bound on the time of a decode phase per query encoded, tight for wide blocks."""
        b1, b2, n1 = block.x1, block.x2, block.y1
        law, costs = self.model.law, self.model.costs
        empty = np.exp(b1 * envelope.log_empty)
        total = costs.decode_fixed_s * float((1 - empty[:n1]).sum()) / b2
        curves = (costs.per_query, costs.per_context)
        sums = (law.decode_mean, law.context_mean)
        laws = self._laws(envelope, len(envelope.queries))
        for curve, lines, work, (_, mean, _, high) in zip(
            curves, self._lines, sums, laws, strict=True
        ):
            below = float(hinge(-b1 * mean, np.sqrt(b2 * high)).sum()) / b1
            above = float(np.sqrt(high).sum()) * _BEYOND_3_SDS / np.sqrt(b1)
            intercepts, slopes = lines
            outside = np.maximum(curve.slope - slopes, 0.0) * below
            outside = outside + np.maximum(slopes - curve.last_slope, 0.0) * above
            each = intercepts[:, None] - curve.at_zero * empty  # lines by iterations
            fixed = np.maximum(each[:, :n1], 0.0).sum(axis=1) / b2
            fixed = fixed + np.minimum(each, 0.0).sum(axis=1) / b1
            total += float((fixed + slopes * work - outside).max())
        return total

    def _laws(
        self, envelope: Envelope, n: int
    ) -> tuple[tuple[Hinges, Floats, Floats, Floats], ...]:
        return (
            (
                self._floors[0],
                envelope.queries[:n],
                envelope.queries_var_min[:n],
                envelope.queries_var_max[:n],
            ),
            (
                self._floors[1],
                envelope.context[:n],
                envelope.context_var_min[:n],
                envelope.context_var_max[:n],
            ),
        )

    def _latency(self, block: Block, envelope: Envelope) -> float:
        """A lower bound on the mean latency of an answer of the bound's length."""
        b1, b2, n2 = block.x1, block.x2, block.y2
        d = self.promise.length - 1
        encodes = max(1, -(-d // n2))
        own_s = float(self._own_encode_s[b1 : b2 + 1].min())
        turns_s = (encodes - 1) * float(self._turn_s[b1 : b2 + 1].min())
        queries, context = self._floors
        reach = min(d, n2)
        times = (
            self.model.costs.decode_fixed_s
            + queries.mean_at_least(
                b1 * envelope.queries[:reach],
                np.sqrt(np.maximum(b1 * envelope.queries_var_min[:reach] - 0.25, 0.0)),
                np.sqrt(b2 * envelope.queries_var_max[:reach]),
            )
            + context.mean_at_least(
                b1 * envelope.context[:reach] - self._context_shortfall,
                np.sqrt(
                    np.maximum(b1 * envelope.context_var_min[:reach] - self._largest_own_var, 0.0)
                ),
                np.sqrt(b2 * envelope.context_var_max[:reach] + self._own_var),
            )
        )
        if block.y1 == n2:
            return own_s + turns_s + float(np.resize(times, d).sum())
        # Of a sequence that does not rise, begun anew every N <= N2 terms, any d terms average at least its first N2.
        falling = np.minimum.accumulate(times)
        return own_s + turns_s + (d * float(falling.mean()) if d else 0.0)
