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
from exegpt_planner.expectation import Hinges, hinge
from exegpt_planner.rra_envelopes import Envelope, envelopes_of
from exegpt_planner.rra_lines import EncodeBounds, LineBounds
from exegpt_planner.rra_rounds import Rounds
from exegpt_planner.search import Block, Blocked, Bounds
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.promise import Limits, Promise
from exegpt_planner.simulator.rra import RraModel

Floats = NDArray[np.float64]

_BEYOND_3_SDS = (
    3.83e-4  # E[(Z - 3)+]: what of a covered normal law lies beyond the curve's end, in sd
)
HALF_ARE_SLOWER = 0.98  # of lengths: answers beyond it, half of them, are the slowest 1 %


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


class RraBounds:
    """The bounds of one space."""

    def __init__(self, model: RraModel, promise: Promise, kv_capacity: float) -> None:
        self.model, self.promise, self.kv_capacity = model, promise, kv_capacity
        law, pipeline = model.law, model.pipeline
        self._number = pipeline.micro_batches
        self._whole = _Below.of(pipeline.whole)
        self._stages = (
            (self._whole,)
            if pipeline.num_stages == 1
            else tuple(_Below.of(costs) for costs in pipeline.stages)
        )
        t = np.arange(1, law.longest + 1)
        _, own, own_var = law.one_query(law.longest)
        b = np.arange(1, model.max_batch + 1)
        encodes = model.encodes.times
        slowest_s, pass_s = encodes.slowest_s[1:], encodes.pass_s[1:]
        longest_s, longer_s = (
            (pass_s - slowest_s) / pass_s * sds * encodes.pass_sd_s[1:]
            for sds in (pipeline.excess_sds, pipeline.excess_mean_sds)
        )
        spread_s = pass_s + longest_s + (self._number - 1) * slowest_s + model.costs.dispatch_s
        self._spread_s = np.append(np.inf, spread_s)
        turn_s = spread_s
        if pipeline.is_filled:
            turn_s = self._number * slowest_s + model.costs.dispatch_s
        self._turn_s = np.append(np.inf, turn_s)
        self._turn_share_s = np.append(np.inf, turn_s / b)
        self._spread_share_s = np.append(np.inf, spread_s / b)
        length = promise.length
        own_encode = model.encodes.own(length)
        excess = own_encode.pass_s - pass_s
        if pipeline.is_filled:
            excess = own_encode.slowest_s - slowest_s
        first_s = pass_s + longer_s + (self._number - 1) / 2 * slowest_s
        self._own_encode_s = np.append(np.inf, first_s + excess)
        mean, self._own_var = model.encodes.own_input(length)
        d = length - 1
        self._context_shortfall = float(max(0.0, np.max(own[:d] - mean - t[:d], initial=0.0)))
        encodes_s = EncodeBounds(
            own_s=self._own_encode_s, turn_s=self._turn_s, spread_s=self._spread_s
        )
        self._lines = LineBounds(pipeline, law, length, encodes_s, self._context_shortfall)
        self._largest_own_var = float(np.max(own_var, initial=0.0))
        contexts = (below.costs.per_context for below in (self._whole, *self._stages))
        self._falls = any(curve.least_slope < 0 for curve in contexts)
        self._least_vars = self._encode_vars()
        self._envelopes = envelopes_of(law)
        self._shorter: RraBounds | None = None
        if promise.limits is not None and np.isfinite(promise.limits.all_answers_s):
            shorter = Promise.of_mean(length=law.workload.output.quantile(HALF_ARE_SLOWER))
            self._shorter = RraBounds(model, shorter, kv_capacity)

    def of(self, block: Block, units: int) -> Bounds:
        """What no schedule in a block can beat on so many units; of throughput, none that keeps the bound."""
        envelope = self._envelopes.of(block.y1, block.y2)
        blocked = self._blocked(block.x1, envelope)
        if blocked is not None:
            return Bounds(throughput=0.0, promised_s=np.inf, blocked=blocked)
        rough, part = self._lines.of(block, self.promise, units)
        if not part.num_points:
            return rough
        throughput = min(rough.throughput, self._throughput(part, units))
        if self.promise.bound_s == np.inf:
            return Bounds(throughput=throughput, promised_s=0.0)
        if self.promise.limits is not None:
            promised_s = self._held_s(block, envelope, self.promise.limits, throughput, units)
        else:
            latency_s = self._latency(block, envelope)
            promised_s = self.promise.promised_s(latency_s, self._sd_s(block))
        return Bounds(throughput=throughput, promised_s=max(promised_s, rough.promised_s))

    def roughly(self, block: Block, units: int) -> Bounds:
        """The same, less tight, and some ten times as quick; memory and coverage are not looked at."""
        return self._lines.of(block, self.promise, units)[0]

    def _throughput(self, block: Block, units: int) -> float:
        envelope = self._envelopes.of(block.y1, block.y2)
        part = slice(block.x1, block.x2 + 1)
        per_query_s = float(self._turn_share_s[part].min()) + self._decode(block, envelope)
        if self.model.pipeline.is_filled and self._number > 1:
            # cycle >= w_e + (M - 1) t_e + M (sum of t over u > 1) + t(1), whichever of the two is longer
            spread_s = float(self._spread_share_s[part].min())
            per_query_s = max(
                per_query_s, spread_s + self._slowest(block, envelope, 1 / self._number)
            )
        return units / per_query_s

    def _held_s(
        self, block: Block, envelope: Envelope, limits: Limits, throughput: float, units: int
    ) -> float:
        """The same where more than whole answers are bounded (simulator/limits.py).

        A cycle takes units B_E / X, and arrivals wait for half of it at least. More than 2 % of the answers are longer
        than the 98th percentile, of which half take longer than its mean: so it bounds that of all answers.
        """
        b1, b2, promise, d = block.x1, block.x2, self.promise, self.promise.length - 1
        latency_s = self._latency(block, envelope)
        wait_s = units * b1 / throughput / 2 if limits.arrivals_per_s else 0.0
        first_s = float(self.model.encodes.times.pass_s[b1 : b2 + 1].min())
        shares = [
            promise.promised_s(latency_s + wait_s, self._sd_s(block)) / limits.answer_s,
            promise.at_least_s(first_s + wait_s) / limits.first_token_s,
            limits.arrivals_per_s / throughput,
        ]
        if d > 0:
            own_s = float(self.model.encodes.own(1).pass_s[b1 - 1 : b2].max())
            shares.append(promise.at_least_s((latency_s - own_s) / d) / limits.token_s)
        if -(-d // block.y2) > 1:
            turn_s = float(self._turn_s[b1 : b2 + 1].min())
            shares.append(promise.at_least_s(turn_s) / limits.gap_s)
        if self._shorter is not None:
            all_s = self._shorter._latency(block, envelope)
            shares.append(promise.at_least_s(all_s + wait_s) / limits.all_answers_s)
        return max(shares) * limits.reference_s

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
        need += self.model.pipeline.activation_tokens * size * self.model.prompts.tokens
        return "memory" if need > self.kv_capacity * (1 + 1e-12) else None

    def _decode(self, block: Block, envelope: Envelope) -> float:
        """A lower bound on the time of a decode phase per query encoded."""
        number, n1 = self._number, block.y1
        least = self._slowest(block, envelope, 1.0)
        if self.model.pipeline.num_stages == 1:
            return least
        floors = self._rounds(block, envelope, n1)
        if self.model.pipeline.is_filled:  # the first round is part of the turn
            by_floors, by_lines = floors[1:], self._by_lines(block, envelope, self._whole, 0.0)
        else:
            by_lines = self._by_lines(block, envelope, self._whole) * (n1 - 1) / n1
            by_floors = floors[:-1]
        return max(least, by_lines / number, float(by_floors.sum()) / block.x2)

    def _rounds(self, block: Block, envelope: Envelope, n: int) -> Floats:
        """A lower bound on rounds by their longest pass."""
        s1, s2 = block.x1 / self._number, block.x2 / self._number
        costs = self._whole.costs
        fixed = costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s
        times = self._any_iteration(block, envelope, self._whole, n)
        times = times - fixed * np.exp(block.x1 * envelope.log_empty[:n])
        sds = self.model.pipeline.excess_sds
        for curve, (mean, low, high) in zip(
            (costs.per_query, costs.per_context), _laws(envelope, n), strict=True
        ):
            low_sd, high_sd = np.sqrt(s1 * low), np.sqrt(s2 * high)
            times = times + sds * curve.slope_at_least(s1 * mean, low_sd, high_sd) * low_sd
        return np.asarray(np.maximum(times, 0.0))

    def _slowest(self, block: Block, envelope: Envelope, first: float) -> float:
        """A lower bound on the slowest stage's time per query encoded; of its first round only a share counts.

        Of the last one, only a micro-batch's counts where they are fewer than stages.
        """
        last = 1.0 if self.model.pipeline.is_filled else 1 / self._number
        found = []
        for below in self._stages:
            times = self._by_floors(block, envelope, below)
            by_floors = float(times.sum() - (1 - first) * times[0] - (1 - last) * times[-1])
            by_lines = self._by_lines(block, envelope, below, first)
            found += [
                self._number * by_floors / block.x2,
                by_lines * (1 - (1 - last) / block.y1),
            ]
        return max(found)

    def _by_floors(self, block: Block, envelope: Envelope, below: _Below) -> Floats:
        """A lower bound on the iterations of a micro-batch in every phase."""
        costs, size, n = below.costs, block.x1 / self._number, block.y1
        fixed = costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s
        times = self._any_iteration(block, envelope, below, n)
        return np.maximum(times - fixed * np.exp(size * envelope.log_empty[:n]), 0.0)

    def _by_lines(
        self, block: Block, envelope: Envelope, below: _Below, first: float = 1.0
    ) -> float:
        """A lower bound on the time of a decode phase per query of a micro-batch, tight for wide blocks.

        Of its first iteration only a share `first` counts.
        """
        s1, s2, n1 = block.x1 / self._number, block.x2 / self._number, block.y1
        law, costs = self.model.law, below.costs
        empty = np.exp(s1 * envelope.log_empty)
        counts = np.ones(len(empty))
        counts[0] = first
        total = costs.decode_fixed_s * float(((1 - empty) * counts)[:n1].sum()) / s2
        curves = (costs.per_query, costs.per_context)
        sums = (
            law.decode_mean - (1 - first) * envelope.first_queries,
            law.context_mean - (1 - first) * envelope.first_context,
        )
        laws = _laws(envelope, len(envelope.queries))
        for curve, lines, work, (mean, _, high) in zip(
            curves, below.lines, sums, laws, strict=True
        ):
            under = float(hinge(-s1 * mean, np.sqrt(s2 * high)).sum()) / s1
            above = float(np.sqrt(high).sum()) * _BEYOND_3_SDS / np.sqrt(s1)
            intercepts, slopes = lines
            outside = np.maximum(curve.slope - slopes, 0.0) * under
            outside = outside + np.maximum(slopes - curve.last_slope, 0.0) * above
            each = (intercepts[:, None] - curve.at_zero * empty) * counts  # lines by iterations
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
        reach = min(d, n2)
        pass_s = self._own_iteration(block, envelope, self._whole, reach)
        if pipeline.num_stages == 1 and self._number == 1:
            alone_s = others_s = round_s = pass_s
        else:
            alone_s = np.max(
                [self._own_iteration(block, envelope, each, reach) for each in self._stages],
                axis=0,
            )
            others_s = np.max(
                [self._any_iteration(block, envelope, each, reach) for each in self._stages],
                axis=0,
            )
            round_s = np.maximum(alone_s + (self._number - 1) * others_s, pass_s)
            if self._number > 1:
                round_s = np.maximum(round_s, self._rounds(block, envelope, reach))
        turn_s, spread_s = (
            float(values[b1 : b2 + 1].min()) for values in (self._turn_s, self._spread_s)
        )
        seen = Rounds(
            round_s=round_s,
            alone_s=alone_s,
            others_s=others_s,
            number=self._number,
            decodes=d,
            intervals=(block.y1, block.y2),
        )
        if pipeline.num_stages == 1 and self._number == 1:
            return own_s + seen.on_one_stage(turn_s)
        if pipeline.is_filled:
            return own_s + seen.where_filled(turn_s, spread_s)
        return own_s + seen.where_unfilled(turn_s)

    def _sd_s(self, block: Block) -> float:
        """A lower bound on the deviation of that latency: what is encoded with the answer differs in length."""
        if self.promise.length == 1 or self._falls:
            return 0.0
        encodes = -(-(self.promise.length - 1) // block.y2)
        return float(np.sqrt(encodes * self._least_vars[block.x1 : block.x2 + 1].min()))

    def _encode_vars(self) -> Floats:
        """By B_E, the least variance that the prompts of one encode give a latency."""
        model, number = self.model, self._number
        sizes = np.arange(model.max_batch + 1) / number
        pmf = model.law.workload.output.pmf
        lengths = model.law.workload.input_square - model.law.workload.input_mean**2
        each = float(pmf @ np.maximum(lengths, 0.0))

        def slopes(costs: StepCosts) -> Floats:
            token_s = model.encodes.slopes(costs, np.maximum(sizes, 1.0)).token_s
            return np.maximum(token_s, 0.0)

        by_slowest = np.min([slopes(below.costs) for below in self._stages], axis=0)
        others = np.maximum(np.arange(model.max_batch + 1) - 1.0, 0.0)
        least = others * by_slowest**2
        if model.pipeline.num_stages > 1:
            own = np.maximum(sizes - 1.0, 0.0) * slopes(self._whole.costs) ** 2
            least = np.minimum(least, own)
        return np.asarray(each * least)

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
        """A lower bound on iterations of any micro-batch that is not empty."""
        s1, s2 = block.x1 / self._number, block.x2 / self._number
        times = np.full(n, below.costs.decode_fixed_s)
        for curve, (mean, low, high) in zip(below.floors, _laws(envelope, n), strict=True):
            times = times + curve.mean_at_least(s1 * mean, np.sqrt(s1 * low), np.sqrt(s2 * high))
        return times


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
