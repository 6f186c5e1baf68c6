"""What no schedule of a shape can beat, from lines alone: bounds for thousands of shapes at once.

Of the curves only lines below them are kept, so a round of a pipeline's micro-batches with n queries and c KV tokens in
all takes at least A + B n + C c for each of some lines (Jensen: whatever the law), by its slowest stage or by a pass
through all. With N_D in a block and B_E queries encoded a cycle, e s of encode a query and P(D >= t) = Q(t), all exact:

    queries seen by an answer of d iterations   sum_{t <= d} n = B_E ((q - 1) E[D] + sum_{u <= r} n_N(u))
    latency >= q e B_E + d A + B sum n + C sum c,                   B_E <= what memory holds
    1 / X   >= e + A U / B_E + B E[D] + C E[c],                     U: rounds of a cycle in which anybody decodes

The first two bound B_E, the last falls in B_E. U is at least that of queries that came with the last encode alone, and
N_D times the chance that one is there when the pool is smallest. On more stages than one the first iteration of an
answer closes a gap, and with fewer micro-batches than stages that of every phase overlaps with an encode
(simulator/rra.py): these are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cycles import FILLED, GROWTH, ONE_STAGE, UNFILLED, Cycles
from exegpt_planner.expectation import Hinges
from exegpt_planner.layout import Bill
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import StepCosts, step_costs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Line = TypeVar("Line", bound=tuple[float, ...])

MOST_LINES = 4  # kept of a curve's: any of them is a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerLines:
    """Lines below one layer's times, everywhere: of a decode by queries and context, of an encode by prompts."""

    decode: list[tuple[float, float, float]]  # intercept, by queries, by context
    at_zero_s: float
    encode: list[tuple[float, float]]
    shorter_s: float  # by which the answer's own prompt, where it is shorter than the mean, is cheaper at most


@dataclass(frozen=True, slots=True, eq=False)
class _Below:
    """Lines below the rounds and encodes of some shapes; arrays (shapes, lines)."""

    intercept_s: Floats
    query_s: Floats
    context_s: Floats
    at_zero_s: Floats  # the curves' own
    counts: Floats  # 0 for lines that say nothing of a cycle: of a pass, whose first is part of the turn where M >= P
    turn_s: Floats
    turn_query_s: Floats
    own_s: Floats
    own_query_s: Floats


class Relaxation:
    """Upper bounds on the throughput of whole shapes."""

    def __init__(
        self, table: ProfileTable, law: CompletionLaw, prompts: PromptMoments, length: int
    ) -> None:
        """`length` is that of the answers that the bound is about, tokens."""
        self._table, self._law, self._prompts = table, law, prompts
        self._lines: dict[int, _LayerLines] = {}
        self.cycles = Cycles(law, length)
        t = np.arange(1, length)
        own = law.one_query(length - 1)[1]
        mean = float(law.workload.input_mean[min(length, law.workload.output.max)])
        self._shorter = max(0.0, prompts.tokens - mean)
        self._shortfall = float(max(0.0, np.max(own - mean - t, initial=0.0)))

    def rra(self, shapes: Sequence[Shape], latency_s: float) -> Floats:
        """Queries per second that RRA cannot beat with a mean latency of at most `latency_s`: (shapes, N_D blocks)."""
        below, phases, law = self._below(shapes), self.cycles.phases, self._law
        kinds = np.array([_kind(shape) for shape in shapes])
        room = np.array([float(shape.room.kv_tokens) for shape in shapes])
        batch = room[:, None] / np.maximum(phases.context_held, 1e-9)
        batch = np.minimum(batch, self._allowed(below, kinds, latency_s))
        number = np.array([shape.micro_batches for shape in shapes])[:, None]
        rounds = self.cycles.rounds(batch / number)[:, None, :]
        spread_s = below.at_zero_s - below.intercept_s
        fixed_s = below.at_zero_s[:, :, None] * rounds - spread_s[:, :, None] * phases.last
        work_s = below.query_s * law.decode_mean + below.context_s * law.context_mean
        share = np.where((kinds == UNFILLED)[:, None], 1 - 1 / phases.first, 1.0)[:, None, :]
        some = np.maximum(batch, 1e-9)[:, None, :]
        share = share * below.counts[:, :, None]
        decode_s = ((fixed_s / some + work_s[:, :, None]) * share).max(axis=1)
        encode_s = (below.turn_s[:, :, None] / some + below.turn_query_s[:, :, None]).max(axis=1)
        units = np.array([shape.units for shape in shapes])[:, None]
        return np.where(batch < number, 0.0, units / (decode_s + encode_s))

    def static(self, shapes: Sequence[Shape], latency_s: float) -> Floats:
        """The same of static batches without early termination, which keep the latency with the longest answer."""
        below, law = self._below(shapes), self._law
        inputs, longest = law.workload.input, law.longest
        less = np.array([_kind(shape) for shape in shapes])[:, None]  # rounds that a turn may hide
        room = np.array([float(shape.room.kv_tokens) for shape in shapes])
        most = room / (inputs.max + law.workload.output.max)
        t = np.arange(1, longest + 1)
        round_s = below.query_s + below.context_s * inputs.mean  # of a query
        fixed_s = below.turn_s + below.intercept_s * np.maximum(longest - less, 0)
        each_s = below.turn_query_s + round_s * np.maximum(longest - less, 0)
        each_s = each_s + below.context_s * t[: max(longest - 2, 0)].sum()
        allowed = np.where(fixed_s > latency_s, 0.0, (latency_s - fixed_s) / each_s)
        most = np.minimum(most, allowed.min(axis=1))
        sizes = GROWTH ** np.arange(np.log(max(most.max(), 2.0)) / np.log(GROWTH) + 1)
        with np.errstate(divide="ignore"):
            there = 1 - np.exp(sizes[:-1, None] * np.log1p(-law.alive[1:]))
        rounds = np.maximum(there.sum(axis=1) - less, 0.0)[:, None, :]  # (shapes, 1, sizes)
        ends = np.minimum(sizes[1:], np.maximum(most, 1e-9)[:, None])[:, None, :]
        cost_s = (below.turn_s[:, :, None] + below.intercept_s[:, :, None] * rounds) / ends
        cost_s += below.turn_query_s[:, :, None] + round_s[:, :, None] * rounds
        cost_s += below.context_s[:, :, None] * (there[:, :-2] @ t[:-2] if longest > 2 else 0.0)
        units = np.array([float(shape.units) for shape in shapes])[:, None]
        found = np.where(sizes[:-1] <= most[:, None], units / cost_s.max(axis=1), 0.0)
        number = np.array([shape.micro_batches for shape in shapes])
        return np.where(most < number, 0.0, found.max(axis=1))

    def _allowed(self, below: _Below, kinds: Ints, latency_s: float) -> Floats:
        """The largest B_E that latency allows: (shapes, N_D blocks)."""
        phases = self.cycles.phases
        rounds, queries, context = (
            seen[kinds][:, None, :]
            for seen in (phases.rounds_seen, phases.queries_seen, phases.context_seen)
        )
        turns = phases.encodes - 1
        intercept_s = below.intercept_s - below.context_s * self._shortfall
        left_s = latency_s - below.own_s[:, :, None] - rounds * intercept_s[:, :, None]
        left_s = left_s - below.turn_s[:, :, None] * turns
        each_s = (
            below.own_query_s[:, :, None]
            + below.turn_query_s[:, :, None] * turns
            + below.query_s[:, :, None] * queries
            + below.context_s[:, :, None] * context
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            allowed = np.where(left_s < 0, 0.0, left_s / each_s)
        return np.asarray(np.fmin.reduce(allowed, axis=1))

    def _below(self, shapes: Sequence[Shape]) -> _Below:
        rows = [self._shape_lines(shape) for shape in shapes]
        most = max(len(row) for row in rows)
        full = np.array([row + [row[0]] * (most - len(row)) for row in rows])
        return _Below(*np.moveaxis(full, 2, 0))

    def _shape_lines(self, shape: Shape) -> list[tuple[float, ...]]:
        stages, number = shape.layout.stages, shape.micro_batches
        degrees = sorted({stage.degree for stage in stages})
        lines = {degree: self._layer_lines(degree) for degree in degrees}
        most = {g: max(s.layers for s in stages if s.degree == g) for g in degrees}
        total = {g: sum(s.layers for s in stages if s.degree == g) for g in degrees}
        overhead_s = self._table.step_overhead_s
        encodes = self._encode_lines(shape, lines)
        found: list[tuple[float, ...]] = []
        for g in degrees:
            scale = most[g]
            zero = number * (scale * lines[g].at_zero_s + overhead_s)
            for a, b, c in lines[g].decode:
                intercept = number * (scale * a + overhead_s)
                found += [
                    (intercept, scale * b, scale * c, zero, 1.0, *encode) for encode in encodes
                ]
        if len(stages) > 1:
            zero = sum(total[g] * lines[g].at_zero_s for g in degrees) + len(stages) * overhead_s
            for some in _alike([lines[g].decode for g in degrees]):
                a, b, c = (
                    sum(total[g] * line[i] for g, line in zip(degrees, some, strict=True))
                    for i in range(3)
                )
                intercept = a + len(stages) * overhead_s
                counts = 0.0 if number >= len(stages) else 1.0
                found += [
                    (intercept, b / number, c / number, zero, counts, *encode) for encode in encodes
                ]
        return found

    def _encode_lines(
        self,
        shape: Shape,
        lines: dict[int, _LayerLines],
    ) -> list[tuple[float, float, float, float]]:
        """(a turn's seconds, more a query; those of the answer's own encode), each below all there are."""
        number, num_stages = shape.micro_batches, len(shape.layout.stages)
        is_apart = self._table.encoder is not None
        layers = [
            (each.degree, each.encoder_layers if is_apart else each.layers)
            for each in shape.layout.stages
        ]
        most = {g: max(count for degree, count in layers if degree == g) for g in lines}
        total = {g: sum(count for degree, count in layers if degree == g) for g in lines}
        overhead_s, dispatch_s = self._table.step_overhead_s, self._table.dispatch_s
        less_s = sum(total[g] * lines[g].shorter_s for g in lines)
        found = []
        for some in _alike([lines[g].encode for g in lines]):
            by = dict(zip(lines, some, strict=True))
            pass_s = sum(total[g] * by[g][0] for g in lines) + num_stages * overhead_s
            pass_query_s = sum(total[g] * by[g][1] for g in lines) / number
            for g in lines:
                slowest_s = most[g] * by[g][0] + overhead_s
                slowest_query_s = most[g] * by[g][1] / number
                turn = number * slowest_s, number * slowest_query_s
                if number < num_stages:
                    turn = (
                        pass_s + (number - 1) * slowest_s,
                        pass_query_s + (number - 1) * slowest_query_s,
                    )
                found.append((turn[0] + dispatch_s, turn[1], pass_s - less_s, pass_query_s))
        return found

    def _layer_lines(self, degree: int) -> _LayerLines:
        found = self._lines.get(degree)
        if found is None:
            bill: Bill = Counter({("layer", degree): 1})
            if self._table.encoder is not None:
                bill["encoder_layer", degree] = 1
            found = self._lines[degree] = self._lines_of(step_costs(self._table, bill))
        return found

    def _lines_of(self, costs: StepCosts) -> _LayerLines:
        prompts = self._prompts
        decode = [
            (a + b + costs.decode_fixed_s, by_query, by_context)
            for a, by_query in few_lines(costs.per_query)
            for b, by_context in few_lines(costs.per_context)[:: MOST_LINES - 1]
        ]
        by_curve = [few_lines(each) for each in (costs.per_token, costs.per_pair, costs.per_chunk)]
        units = (prompts.tokens, prompts.pairs, 1.0)
        encode = [
            (
                sum(lines[at][0] for lines in by_curve) + costs.encode_fixed_s,
                sum(lines[at][1] * each for lines, each in zip(by_curve, units, strict=True)),
            )
            for at in (0, -1)  # the flattest and the steepest
        ]
        return _LayerLines(
            decode=decode,
            at_zero_s=costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s,
            encode=encode,
            shorter_s=self._shorter
            * (costs.per_token.last_slope + costs.per_pair.last_slope * prompts.pairs_per_token),
        )


def _kind(shape: Shape) -> int:
    num_stages = len(shape.layout.stages)
    if num_stages == 1:
        return ONE_STAGE
    return FILLED if shape.micro_batches >= num_stages else UNFILLED


def _alike(lines: Sequence[Sequence[Line]]) -> Iterator[tuple[Line, ...]]:
    """A line of each, the flattest together, the steepest together: any choice is a bound."""
    for at in range(max(map(len, lines))):
        yield tuple(each[min(at, len(each) - 1)] for each in lines)


def few_lines(curve: Hinges) -> list[tuple[float, float]]:
    """A few (intercept, slope) of lines that lie below the curve everywhere; at least the axis."""
    intercepts, slopes = curve.lines_everywhere()
    some = np.unique(np.linspace(0, len(slopes) - 1, MOST_LINES).round().astype(int))
    return [(float(intercepts[i]), float(slopes[i])) for i in some]
