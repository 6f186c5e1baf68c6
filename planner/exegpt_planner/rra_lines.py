"""Cheap bounds on a block of RRA's space: lines below the curves, and sums that are known for every N_D.

The reckoning is relaxation.py's, of one shape and one block: a round with n queries and c KV tokens in all takes at
least A + B n + C c for every line, and what an answer's rounds meet, or a cycle's, are exact multiples of B_E. Some
microseconds where the bounds of rra_bounds.py, which see the curves' own shape and the pool's spread, take hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cycles import FILLED, ONE_STAGE, UNFILLED, Cycles
from exegpt_planner.search import Block, Bounds
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.limits import held_at_least_s
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise

Floats = NDArray[np.float64]


@lru_cache(maxsize=16)
def cycles_of(law: CompletionLaw, length: int) -> Cycles:
    """Of one workload and one length of answers, made once."""
    return Cycles(law, length)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodeBounds:
    """What encodes take at least, by B_E; [0] is unused."""

    own_s: Floats  # before the first round of an answer
    turn_s: Floats  # what another encode adds to a cycle
    spread_s: Floats  # and what it adds with its first round, where micro-batches fill the stages


class LineBounds:
    """Of decode rounds; what encodes take is known exactly."""

    def __init__(
        self,
        pipeline: Pipeline,
        law: CompletionLaw,
        length: int,
        encodes: EncodeBounds,
        shortfall: float,
    ) -> None:
        """`shortfall`: KV tokens by which the answer's own context may be less than the mean."""
        self._cycles, self._number = cycles_of(law, length), pipeline.micro_batches
        self._decodes = length - 1
        self._kind = ONE_STAGE
        if pipeline.num_stages > 1:
            self._kind = FILLED if pipeline.is_filled else UNFILLED
        number = float(self._number)
        rows = [row for costs in pipeline.stages for row in _lines(costs, number, 1.0)]
        self._num_slowest = len(rows)
        if pipeline.num_stages > 1:
            rows += _lines(pipeline.whole, 1.0, 1 / number)
        self._intercept_s, self._query_s, self._context_s, self._zero_s = np.array(rows).T
        self._seen_s = self._intercept_s - self._context_s * shortfall
        self._work_s = self._query_s * law.decode_mean + self._context_s * law.context_mean
        self._share_s = encodes.turn_s / np.maximum(np.arange(len(encodes.turn_s)), 1)
        self._spread_share_s = encodes.spread_s / np.maximum(np.arange(len(encodes.turn_s)), 1)
        self._own_s, self._turn_s = _from_here_on(encodes.own_s), _from_here_on(encodes.turn_s)

    def of(self, block: Block, promise: Promise, units: int) -> tuple[Bounds, Block]:
        """Bounds, and the part of the block that may keep the bound: its smaller encodes."""
        bound_s = promise.bound_s
        if bound_s == math.inf:
            return Bounds(throughput=units / self.per_query_s(block), promised_s=0.0), block

        def held_s(batch: int, queries_per_s: float = math.inf) -> float:
            promised_s = promise.at_least_s(self.latency_s(batch, block))
            return held_at_least_s(promise, promised_s, queries_per_s)

        low, high = block.x1, block.x2
        most_s = math.inf if bound_s is None else bound_s
        if bound_s is None:
            low = high
        elif held_s(low) > most_s:
            return Bounds(throughput=0.0, promised_s=held_s(low)), replace(block, x2=low - 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if held_s(middle) > most_s else (middle, high)
        part = replace(block, x2=low)
        throughput = units / self.per_query_s(part)
        least_s = held_s(block.x1) if bound_s is None else held_s(block.x1, throughput)
        return Bounds(throughput=throughput, promised_s=least_s), part

    def latency_s(self, batch: int, block: Block) -> float:
        """The mean latency of an answer of the length, of the block's schedules with at least this B_E."""
        own_s = float(self._own_s[batch])
        if self._decodes == 0:
            return own_s
        rounds, queries, context = self._cycles.seen(self._kind, block.y1, block.y2)
        each_s = rounds * self._seen_s
        each_s = each_s + batch * (queries * self._query_s + context * self._context_s)
        turns_s = (self._cycles.encodes(block.y2) - 1) * float(self._turn_s[batch])
        return own_s + turns_s + float(each_s.max())

    def per_query_s(self, block: Block) -> float:
        """A cycle's time per query encoded."""
        n1, n2 = block.y1, block.y2
        part = slice(block.x1, block.x2 + 1)
        spread_s, size = self._zero_s - self._intercept_s, block.x1 / self._number
        alone = [
            self._zero_s * self._cycles.alone(size, n) - spread_s * n for n in (n1, n2)
        ]  # concave in N_D: least at an end
        chance = 1 - np.exp(-size * self._cycles.fewest(n1, n2))
        all_along = self._zero_s * chance - spread_s
        fixed_s = np.maximum(np.minimum(*alone), np.minimum(all_along * n1, all_along * n2))
        each_s = np.maximum(_per(fixed_s, block) + self._work_s, 0.0)
        encode_s = float(self._share_s[part].min())
        if self._kind == ONE_STAGE:
            return encode_s + float(each_s.max())
        if self._kind == UNFILLED:
            return encode_s + float(each_s.max()) * (1 - 1 / n1)
        slowest = slice(self._num_slowest)
        first = 1 - 1 / self._number  # of the first round, what is part of the spread
        queries, context = self._cycles.largest(n1)
        without_s = self._work_s - first * (queries * self._query_s + context * self._context_s)
        without_s = without_s + _per(fixed_s - first * self._zero_s, block)
        spread_share_s = float(self._spread_share_s[part].min())
        return max(
            encode_s + float(each_s[slowest].max()),
            spread_share_s + float(without_s[slowest].max()),
        )


def _per(fixed_s: Floats, block: Block) -> Floats:
    """Of a cycle's fixed times, what falls to a query at least."""
    return np.where(fixed_s > 0, fixed_s / block.x2, fixed_s / block.x1)


def _from_here_on(values: Floats) -> Floats:
    """The least of each value and all after it."""
    return np.minimum.accumulate(values[::-1])[::-1]


def _lines(costs: StepCosts, number: float, part: float) -> list[tuple[float, ...]]:
    """(intercept, by queries, by KV tokens, at zero) of `number` steps that hold all queries, or a `part` of them."""
    fixed_s = costs.decode_fixed_s
    zero_s = number * (costs.per_query.at_zero + costs.per_context.at_zero + fixed_s)
    queries, context = (
        zip(*(values.tolist() for values in curve.lines_everywhere()), strict=True)
        for curve in (costs.per_query, costs.per_context)
    )
    by_context: Sequence[tuple[float, float]] = list(context)
    return [
        (number * (a + b + fixed_s), part * by_query, part * by_kv, zero_s)
        for a, by_query in queries
        for b, by_kv in by_context
    ]
