"""What no pool that is refilled every iteration can beat on a shape, from lines alone: CRA and ORCA on many shapes.

With r prompts an iteration of a micro-batch, everything in its steps is r times what a query takes in all: r E[D]
queries decode, r (E[I] + E[D]) tokens are packed, and so on. With lines below the curves a round takes at least A + B r
for each of some lines (Jensen: whatever the laws), by its slowest stage, which serves M micro-batches, or by a pass:

    latency >= (s - 1) (A + B r - own),   X <= M r / max (A + B r),   r <= B_D / (M (1 + E[D]))

`own` is by how much the answer's own step is cheaper than a slot's mean one; memory bounds B_D; the last round of an
answer ends with its pass. X rises in r, so the largest r that memory and latency allow gives the bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CHUNKS
from exegpt_planner.layout import Layout
from exegpt_planner.memory import KV_GRANULE_TOKENS, KV_SDS
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.relaxation import MOST_LINES, few_lines
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import StepCosts, step_costs
from exegpt_planner.simulator.cra_steps import Decoding
from exegpt_planner.simulator.encode_queue import LEAST_SLACK

Floats = NDArray[np.float64]

NUMERICAL = 1e-3  # relative: the queue's laws are on grids and between pools interpolated, the bounds are not


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Below a layer's mixed steps; arrays over lines."""

    intercept_s: Floats
    rate_s: Floats  # by prompts an iteration
    own_s: Floats  # by which the answer's own step is cheaper


@dataclass(frozen=True, slots=True, kw_only=True)
class _Below:
    """Below rounds of a layout with one micro-batch; arrays over lines."""

    intercept_s: Floats
    rate_s: Floats
    own_s: Floats
    is_stage: NDArray[np.bool_]  # by the slowest stage, else by a pass


class PoolRelaxation:
    """Upper bounds on the throughput of whole shapes."""

    def __init__(
        self, table: ProfileTable, law: CompletionLaw, prompts: PromptMoments, length: int
    ) -> None:
        """`length` is that of the answers that the bound is about, tokens."""
        self._table, self._law, self._prompts, self._length = table, law, prompts, length
        self._decoding = Decoding.of(law)
        self._lines: dict[int, _Lines] = {}
        self._layouts: dict[Layout, _Below] = {}

    def cra(self, shapes: Sequence[Shape], latency_s: float) -> Floats:
        """Queries per second that CRA cannot beat with a mean latency of at most `latency_s`, by shape."""
        need = LEAST_SLACK * self._prompts.tokens / (self._decoding.iterations + 1)
        return self._uppers(shapes, latency_s, tokens_a_place=1 + need, most_rate=np.inf)

    def orca(self, shapes: Sequence[Shape], latency_s: float) -> Floats:
        """The same of ORCA, which encodes a prompt an iteration at most."""
        return self._uppers(shapes, latency_s, tokens_a_place=1.0, most_rate=1.0)

    def _uppers(
        self,
        shapes: Sequence[Shape],
        latency_s: float,
        *,
        tokens_a_place: float,
        most_rate: float,
    ) -> Floats:
        if not shapes:
            return np.zeros(0)
        below = [self._below(shape.layout) for shape in shapes]
        most = max(len(each.intercept_s) for each in below)

        def array(name: str) -> Floats:
            """(shapes, lines), short rows filled with their first line."""
            rows = [getattr(each, name) for each in below]
            return np.array([np.append(row, np.repeat(row[:1], most - len(row))) for row in rows])

        number = np.array([float(shape.micro_batches) for shape in shapes])[:, None]
        is_stage = array("is_stage") > 0
        times = np.where(is_stage, number, 1.0)
        intercept_s, rate_s = array("intercept_s") * times, array("rate_s") * times
        rounds = np.where(is_stage, self._length - 2, self._length - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            left_s = np.where(rounds > 0, latency_s / rounds, np.inf) - intercept_s + array("own_s")
            allowed = np.where(left_s < 0, 0.0, left_s / rate_s)
        places = np.array([self._places(shape, tokens_a_place) for shape in shapes])
        rate = np.fmin.reduce(allowed, axis=1)
        rate = np.minimum(rate, places / number[:, 0] / (1 + self._decoding.iterations))
        rate = np.minimum(rate, most_rate) * (1 + NUMERICAL)
        round_s = (intercept_s + rate_s * rate[:, None]).max(axis=1)
        units = np.array([float(shape.units) for shape in shapes])
        found = units * number[:, 0] * rate / round_s * (1 + NUMERICAL)
        return np.where(places < number[:, 0], 0.0, found)

    def _places(self, shape: Shape, tokens_a_place: float) -> float:
        """The largest pool that memory may hold."""
        prompts, decoding = self._prompts, self._decoding
        kv = float(shape.room.kv_tokens)
        each = shape.room.activation_tokens / shape.micro_batches * tokens_a_place
        each += (KV_GRANULE_TOKENS - 1) / 2
        slack_var = (KV_GRANULE_TOKENS**2 - 1) / 12
        encode = prompts.tokens / CHUNKS[0] + 1, 1.0  # iterations, at most and at least
        shares = np.array([decoding.iterations / (e + decoding.iterations) for e in encode])
        square = prompts.tokens_var + prompts.tokens**2
        means = shares * decoding.context + (1 - shares) * prompts.tokens
        variances = shares * decoding.context_square + (1 - shares) * square - means**2
        found = [
            _most(mean + each, var + slack_var, kv)
            for mean, var in (
                (prompts.tokens, prompts.tokens_var),
                (float(means.min()), float(variances.min())),
            )
        ]
        return min(found)

    def _below(self, layout: Layout) -> _Below:
        found = self._layouts.get(layout)
        if found is None:
            found = self._layouts[layout] = self._layout_lines(layout)
        return found

    def _layout_lines(self, layout: Layout) -> _Below:
        stages, overhead_s = layout.stages, self._table.step_overhead_s
        degrees = sorted({stage.degree for stage in stages})
        layers = {g: [s.layers for s in stages if s.degree == g] for g in degrees}
        parts = [(self._layer_lines(g), max(layers[g]), True) for g in degrees]
        rows = [
            (
                each.intercept_s * most + overhead_s,
                each.rate_s * most,
                each.own_s * most,
                np.full(len(each.own_s), is_stage),
            )
            for each, most, is_stage in parts
        ]
        whole = [(self._layer_lines(g), sum(layers[g])) for g in degrees]
        fixed_s = len(stages) * overhead_s + self._table.dispatch_s
        rows.append(
            (
                np.asarray(fixed_s + sum(each.intercept_s * total for each, total in whole)),
                np.asarray(sum(each.rate_s * total for each, total in whole)),
                np.asarray(sum(each.own_s * total for each, total in whole)),
                np.zeros(len(whole[0][0].own_s), dtype=bool),
            )
        )
        intercept_s, rate_s, own_s, is_stage = (
            np.concatenate(column) for column in zip(*rows, strict=True)
        )
        return _Below(intercept_s=intercept_s, rate_s=rate_s, own_s=own_s, is_stage=is_stage)

    def _layer_lines(self, degree: int) -> _Lines:
        found = self._lines.get(degree)
        if found is None:
            costs = step_costs(self._table, Counter({("layer", degree): 1}))
            found = self._lines[degree] = self._lines_of(costs)
        return found

    def _lines_of(self, costs: StepCosts) -> _Lines:
        law, prompts, decode = self._law, self._prompts, self._decoding.iterations
        own_input = float(law.workload.input_mean[min(self._length, law.workload.output.max)])
        # (curve, of a prompt an iteration, of the answer's own step)
        curves = (
            (costs.queries_only, decode, 1.0),
            (costs.per_context, law.context_mean, own_input + self._length / 2),
            (costs.per_pair, prompts.pairs, 0.0),
            (costs.chunks_only, 1.0, 0.0),
        )
        rows = []
        tokens = few_lines(costs.per_token)
        for number in range(MOST_LINES):  # as many whatever the curve: those of degrees are added
            a, token_s = tokens[min(number, len(tokens) - 1)]
            for at in (0, -1):  # the flattest and the steepest of the others
                some = [(few_lines(curve)[at], work, own) for curve, work, own in curves]
                some.append(((a, token_s), prompts.tokens + decode, 1.0))
                rate_s = sum(line[1] * work for line, work, _ in some)
                own_s = sum(line[1] * own for line, _, own in some)
                rows.append(
                    (
                        sum(line[0] for line, _, _ in some),
                        rate_s,
                        max(rate_s / (1 + decode) - own_s, 0.0),
                    )
                )
        intercept_s, rates_s, owns_s = np.array(rows).T
        return _Lines(intercept_s=intercept_s, rate_s=rates_s, own_s=owns_s)


def _most(mean: float, var: float, capacity: float) -> float:
    """The largest n with n mean + KV_SDS sqrt(n var) <= capacity."""
    half = KV_SDS * np.sqrt(var) / (2 * mean)
    return float((np.sqrt(half**2 + capacity / mean) - half) ** 2)
