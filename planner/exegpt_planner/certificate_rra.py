"""RRA's schedules on a shape, for checking a certificate: those that no bound settles.

The bounds are Jensen's alone: below every curve of costs lies a convex one that does not fall, so whatever law a pool
has, an iteration takes at least that curve at the pool's mean. With t and w of the slowest stage and of a pass through
all (simulator/rra.py), t_e and w_e of encodes,

    cycle   >= M t_e + M sum t,  w_e + (M - 1) t_e + sum w but the first                           M >= P
               w_e + (M - 1) t_e + sum of M t or w, but the last                                   M < P
    latency >= w_e + (M - 1) / 2 t_e + its first round + (q - 1) encodes + the other rounds        M >= P
               the same with (M + 1) / 2 M of its first round, without those before an encode      M < P

Sums over a phase are bounded by lines, as pools sum to B_E E[D] queries and B_E E[c] tokens whatever N_D. An answer's
rounds, each a run of a phase, average at least as much as the whole of the longest phase, made not to rise. Where
M < P, a turn takes back no more than the round before it, which is left out: with M > 1 that is in the simulator's own
maximum, with M = 1 it is the answer's own round, which has a query more than chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.certificate_convex import Convex
from exegpt_planner.certificate_spaces import SAME, Point, Question
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.proof import Corners
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.limits import held_at_least_s, held_s

Floats = NDArray[np.float64]
Pool = tuple[Floats, Floats]  # queries and context of a micro-batch at least, by iteration

TAIL = 4e-4  # E[(Z - 3)+], rounded up: pools lie in the table up to mean + 3 sd


class Rra:
    """All schedules on a shape of M micro-batches."""

    def __init__(self, asked: Question, shape: Shape) -> None:
        self.asked, self.room, self.units = asked, shape.room.kv_tokens, shape.units
        self.model, self.number, self.simulated = asked.rra(shape), shape.micro_batches, 0
        self.whole: Corners = (self.number, self.model.max_batch, 1, max(1, asked.law.longest))
        pipeline, encodes, length = self.model.pipeline, self.model.encodes, asked.promise.length
        t, w, own = encodes.times.slowest_s[1:], encodes.times.pass_s[1:], encodes.own(length)
        longer_s = own.slowest_s - t if pipeline.is_filled else own.pass_s - w
        # by B_E - 1: M encodes on the slowest stage; until the last is through; until the answer's is
        self.busy_s = self.number * t + self.model.costs.dispatch_s
        self.spread_s = w + (self.number - 1) * t + self.model.costs.dispatch_s
        self.own_s = w + (self.number - 1) / 2 * t + longer_s if length > 1 else own.pass_s
        workload = asked.law.workload
        each_context = float(workload.input.max + workload.output.max)
        self.stages = [_Decode(costs, each_context) for costs in pipeline.stages]
        self.through = _Decode(pipeline.whole, each_context)
        others = asked.law.one_query(length - 1)[1]  # context whose place the answer's own takes
        lacking = others - encodes.own_input(length)[0] - np.arange(1, length)
        self.shortfall = float(np.max(lacking, initial=0.0))

    def fits(self, x: int, y: int) -> bool:
        """Whether the table covers the schedule and memory holds it."""
        return self.model.covers(x, y) and self.model.kv_need(x, y) <= self.room

    def rate(self, x: int, y: int) -> float:
        """Queries/s."""
        return self.units * self.model.throughput(x, y)

    def promised_s(self, x: int, y: int) -> float:
        """What is held against the bound."""
        return held_s(self.model, (x, y), self.asked.promise, self.rate(x, y), self.units)

    def ends(self, block: Corners) -> set[Point]:
        """Its corners, as far as they fit."""
        x1, x2, y1, y2 = block
        return {(x, y) for x in (x1, x2) for y in (y1, y2) if self.fits(x, y)}

    def unsettled(self, block: Corners, best: float, bound_s: float) -> Iterator[Point]:
        """Schedules of the block but for those shown not to fit, to break the bound or to have at most `best`."""
        todo = [block]
        while todo:
            x1, x2, y1, y2 = todo.pop()
            if x1 == x2 and y1 == y2:
                self.simulated += 1
                yield x1, y1
            elif self._may((x1, x2, y1, y2), best, bound_s):
                x, y = (min(int((a * b) ** 0.5), b - 1) for a, b in ((x1, x2), (y1, y2)))
                if x2 * y1 > y2 * x1:
                    todo += [(x1, x, y1, y2), (x + 1, x2, y1, y2)]
                else:
                    todo += [(x1, x2, y1, y), (x1, x2, y + 1, y2)]

    def _may(self, block: Corners, best: float, bound_s: float) -> bool:
        (b1, b2, n1, n2), law = block, self.asked.law
        queries, context = _per_query(law, n1, n2)
        # what a schedule needs rises with B_E
        if not (self._fits(b1, queries, context) if n1 < n2 else self.fits(b1, n1)):
            return False
        size, most = b1 / self.number, b2 / self.number * float(law.phase(n1).queries[0])
        pool = size * queries, np.maximum(size * context - self.shortfall, 0.0)
        if self.units <= best * self._per_query_s(block, pool, most):
            return False
        if np.isinf(bound_s):
            return True
        mean_s = self._latency_s(block, pool, most) * (1 - SAME)
        promise = self.asked.promise
        return held_at_least_s(promise, promise.at_least_s(mean_s), np.inf) <= bound_s

    def _fits(self, batch: int, queries: Floats, context: Floats) -> bool:
        costs, pipeline, size = self.model.costs, self.model.pipeline, batch / self.number
        need = memory.need(batch * context, 0 * context, batch * queries)
        need += pipeline.activation_tokens * size * self.asked.prompts.tokens
        covered = size * queries.max() <= costs.per_query.limit
        covered = covered and size * context.max() <= costs.per_context.limit
        return bool(covered and need <= self.room)

    def _per_query_s(self, block: Corners, pool: Pool, most: float) -> float:
        """A lower bound on a cycle's time per query."""
        (b1, b2, n1, n2), law, is_filled = block, self.asked.law, self.model.pipeline.is_filled
        sizes, found = np.arange(b1, b2 + 1), []
        first, last = _ends(law)[:, :, n1 - 1 : n2].max(axis=2)
        for costs in (*self.stages, self.through):
            times = 1 if costs is self.through else self.number  # that a round counts it
            turn_s, out = self.spread_s, first if is_filled else last
            is_whole = is_filled and costs is not self.through  # no iteration is part of the turn
            if is_whole:
                turn_s, out = self.busy_s, np.zeros(2)
            at_zero_s, slopes, lost_s = costs.line(pool, most)
            empty = np.exp(b1 / times * law.phase(n2).log_empty)
            each_s = at_zero_s - costs.at_zero_s * empty - lost_s
            fixed_s = each_s[:n1].sum() + np.minimum(each_s[n1:], 0.0).sum()
            fixed_s -= 0.0 if is_whole else max(at_zero_s, 0.0)
            work_s = slopes @ (np.array([law.decode_mean, law.context_mean]) - out) / self.number
            decode_s = times * (fixed_s / (b2 if fixed_s > 0 else b1) + work_s)
            found.append(decode_s + (turn_s[b1 - 1 : b2] / sizes).min())
        return float(max(found))

    def _latency_s(self, block: Corners, pool: Pool, most: float) -> float:
        """A lower bound on the mean latency of an answer of the bound's length."""
        (b1, b2, n1, n2), number, d = block, self.number, self.asked.promise.length - 1
        own_s, busy_s, spread_s = (
            float(each[b1 - 1 : b2].min()) for each in (self.own_s, self.busy_s, self.spread_s)
        )
        if d == 0:
            return own_s
        slowest_s = np.max([each.least_s(pool, most) for each in self.stages], axis=0)
        round_s = np.maximum(number * slowest_s, self.through.least_s(pool, most))
        least, turns = -(-d // n2) - 1, -(-d // n1) - 1  # encodes that follow, at most
        kept_s = max(d - 1 - turns, 0) * _average(round_s, d)
        if not self.model.pipeline.is_filled:
            first_s = (number + 1) / (2 * number) * float(round_s[0])
            return own_s + first_s + least * spread_s + kept_s
        others_s = (number - 1) * float(slowest_s[0])
        first_s = float(slowest_s[0]) + min(others_s, others_s / 2)
        all_s = (d - 1) * _average(number * slowest_s, d)
        return (
            own_s
            + first_s
            + least * busy_s
            + max(all_s, kept_s + least * number * float(slowest_s[0]))
        )


def _average(times_s: Floats, reach: int) -> float:
    """Of rounds after an answer's first, at least: a run of any phase averages more than of the longest."""
    start = min(1, len(times_s) - 1)
    return float(np.minimum.accumulate(times_s)[start : max(reach, 2)].mean())


@lru_cache(maxsize=10_000)
def _per_query(law: CompletionLaw, n1: int, n2: int) -> Pool:
    """A pool per query encoded at iterations 1..n2, at least, for any N_D in n1..n2: Q never rises, c has one peak."""
    if n1 == n2:
        return law.phase(n1).queries, law.phase(n1).context
    c, longest = np.append(law.one_query(law.longest)[1], 0.0), law.longest
    peak = int(c.argmax())
    c[:peak] = np.minimum.accumulate(c[peak::-1])[:0:-1]
    c[peak:] = np.minimum.accumulate(c[peak:])
    cycle, u = np.arange(-(-longest // n1))[:, None], np.arange(n2)
    ends = (c[np.minimum(cycle * n + u, longest)] for n in (n1, n2))
    return law.phase(n2).queries, np.minimum(*ends).sum(axis=0)


@lru_cache(maxsize=8)
def _ends(law: CompletionLaw) -> Floats:
    """Queries and context per query encoded at the first and at the last iteration of a phase; (2, 2, N_D)."""
    sums = law.one_query(law.longest)[:2]
    intervals = range(1, max(1, law.longest) + 1)
    first = [[values[::n].sum() for n in intervals] for values in sums]
    return np.array([first, [[values[n - 1 :: n].sum() for n in intervals] for values in sums]])


class _Decode:
    """What iterations of a micro-batch take on some stages, at least."""

    def __init__(self, costs: StepCosts, each_context: float) -> None:
        curves = costs.per_query, costs.per_context
        self._curves, self._fixed_s = [Convex(each) for each in curves], costs.decode_fixed_s
        self._each = 1.0, each_context  # of a query at most
        self.at_zero_s = costs.decode_fixed_s + sum(each.at_zero for each in curves)

    def least_s(self, pool: Pool, most: float) -> Floats:
        """Of pools that hold at least this, and `most` queries in the mean at most."""
        least = sum(np.interp(n, f.x, f.y) for f, n in zip(self._curves, pool, strict=True))
        return np.asarray(least + self._fixed_s - self._lost_s(pool, most))

    def line(self, pool: Pool, most: float) -> tuple[float, Floats, Floats]:
        """(intercept, slopes by queries and context, what may be lost) of a plane below."""
        lines = [f.line(float(n.mean())) for f, n in zip(self._curves, pool, strict=True)]
        at_zero, slopes = np.array(lines).T
        return self._fixed_s + float(at_zero.sum()), slopes, self._lost_s(pool, most)

    def _lost_s(self, pool: Pool, most: float) -> Floats:
        """By how much a normal law's mean cost may be below the curves', for the tails beyond their ends."""
        sd, lost_s = (most + 1) ** 0.5, np.zeros(len(pool[0]))  # no more than of a Poisson number
        for f, n, each in zip(self._curves, pool, self._each, strict=True):
            below = 0.4 * f.drop * np.exp(-0.5 * (n / (each * sd)) ** 2)  # 0.4 > 1 / sqrt(2 pi)
            lost_s += each * (sd * (below + TAIL * f.rise) + f.rise)
        return lost_s
