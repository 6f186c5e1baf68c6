"""Lines below what WAA's encoders and decoders take, by the layers of their stages alone; of one instance, all at once.

Lines below one layer's times on a group of each degree are found once. A stage takes its layers' and its overhead at
least, an instance as long as its slowest stage or, where a pass counts, as all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.expectation import Hinges
from exegpt_planner.layout import Bill
from exegpt_planner.memory import KV_GRANULE_TOKENS, KV_SDS
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import StepCosts, hand_over_of, step_costs

Floats = NDArray[np.float64]

MOST_LINES = 4  # of a curve's: any of them is a bound
SAMPLED = 16  # pools at which lines are compared


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodeLines:
    """Below the encoders of a side; arrays are of lines."""

    units: int
    most_batch: float  # B_E that memory allows
    interval: tuple[Floats, Floats]  # (s, s more a query) from encode to encode
    first: tuple[Floats, Floats]  # of an encode
    shorter_s: float  # by which the answer's own prompt makes it shorter

    def fed_per_s(self, batches: Floats) -> Floats:
        """Queries/s of all encoders, at most."""
        a, b = self.interval
        interval_s = (a + b * batches[:, None]).max(axis=1)
        return np.asarray(self.units * batches / interval_s)

    def first_s(self, batches: Floats | float) -> Floats:
        """An encode, at least."""
        a, b = self.first
        least_s = (a + b * np.asarray(batches)[..., None]).max(axis=-1)
        return np.asarray(np.maximum(least_s - self.shorter_s, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeLines:
    """Below the rounds of a side's decoders; arrays are of lines."""

    a: Floats
    b: Floats
    most_queries: float  # that memory allows, of a decoder
    per_query: float  # y / E[D]
    lacking: int  # rounds that an answer may lack of as many as it has iterations
    lacking_s: float

    def round_s(self, queries: float) -> float:
        """A round, at least."""
        return float((self.a + self.b * queries).max())

    def most_per_s(self, round_s: Floats) -> Floats:
        """Queries/s of all decoders in mean rounds of so many seconds, at most."""
        found = np.full(round_s.shape, self.most_queries / self.round_s(self.most_queries))
        with np.errstate(divide="ignore"):
            per_s = 1 / round_s
        for a, b in zip(self.a.tolist(), self.b.tolist(), strict=True):
            if b > 0:
                np.minimum(found, (1 - a * per_s) / b, out=found)
            elif a > 0:
                found[a * per_s > 1] = 0.0
        return np.asarray(np.maximum(found, 0.0) * self.per_query)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """Below one layer."""

    decode: tuple[Floats, Floats]
    encode: tuple[Floats, Floats]
    steepest_s: float  # more a prompt token of an encode, at most


class SideLines:
    """Those of any side."""

    def __init__(
        self, table: ProfileTable, law: CompletionLaw, prompts: PromptMoments, length: int
    ) -> None:
        """`length` is that of the answers that the bound is about, tokens."""
        self._table, self._law, self._prompts = table, law, prompts
        self._layers: dict[int, _Layer] = {}
        self._context = law.context_mean / law.decode_mean
        self._context_var = max(law.context_square / law.decode_mean - self._context**2, 0.0)
        own = float(law.workload.input_mean[min(length, law.workload.output.max)])
        self._shorter = max(0.0, prompts.tokens - own)
        sent = Hinges.through(
            *_corners(hand_over_of(table).sent.x, hand_over_of(table).sent.seconds)
        )
        self._sent_steepest_s = _steepest(sent)

    def encode(self, side: Shape) -> EncodeLines:
        """Of encoders."""
        most, total = _layers(side, encodes=self._table.encoder is not None)
        overhead_s, stages = self._table.step_overhead_s, len(side.layout.stages)
        lines = {degree: self._layer(degree) for degree in most}
        each = [
            (number * lines[g].encode[0] + overhead_s, number * lines[g].encode[1])
            for g, number in most.items()
        ]
        a, b = (np.concatenate(some) for some in zip(*each, strict=True))
        passing = [sum(n * lines[g].encode[i] for g, n in total.items()) for i in range(2)]
        tokens = self._prompts.tokens
        shorter = sum(n * lines[g].steepest_s for g, n in total.items()) + self._sent_steepest_s
        return EncodeLines(
            units=side.units,
            most_batch=side.room.kv_tokens / (tokens * (1 + side.room.activation_tokens)),
            interval=(a + self._table.dispatch_s, b),
            first=(np.asarray(passing[0]) + stages * overhead_s, np.asarray(passing[1])),
            shorter_s=self._shorter * shorter,
        )

    def decode(self, side: Shape) -> DecodeLines:
        """Of decoders."""
        most, total = _layers(side, encodes=False)
        table, number, stages = self._table, side.micro_batches, len(side.layout.stages)
        lines = {degree: self._layer(degree) for degree in most}
        passing = [sum(n * lines[g].decode[i] for g, n in total.items()) for i in range(2)]
        fixed_s = stages * table.step_overhead_s + table.dispatch_s
        found = [(np.asarray(passing[0]) + fixed_s, np.asarray(passing[1]) / number)]
        if stages > 1:
            found += [
                (
                    number * (layers * lines[g].decode[0] + table.step_overhead_s),
                    layers * lines[g].decode[1],
                )
                for g, layers in most.items()
            ]
        a, b = (np.concatenate(some) for some in zip(*found, strict=True))
        a, b = _highest(a[b >= 0], b[b >= 0], side.room.kv_tokens / self._prompts.tokens)
        held = self._context + (KV_GRANULE_TOKENS - 1) / 2 + side.room.activation_tokens / number
        return DecodeLines(
            a=a,
            b=b,
            most_queries=self._most_queries(side.room.kv_tokens, held),
            per_query=side.units / self._law.decode_mean,
            lacking=0 if stages == 1 else 1,
            lacking_s=table.dispatch_s if stages == 1 else 0.0,
        )

    def _most_queries(self, kv_tokens: float, held: float) -> float:
        """The mean pool q with q held + KV_SDS sd = `kv_tokens` (memory.py)."""
        sd = KV_SDS * np.sqrt(self._context_var + (KV_GRANULE_TOKENS**2 - 1) / 12)
        return float(((np.sqrt(sd**2 + 4 * held * kv_tokens) - sd) / (2 * held)) ** 2)

    def _layer(self, degree: int) -> _Layer:
        found = self._layers.get(degree)
        if found is None:
            bill: Bill = Counter({("layer", degree): 1})
            if self._table.encoder is not None:
                bill["encoder_layer", degree] = 1
            found = self._layers[degree] = self._below(step_costs(self._table, bill))
        return found

    def _below(self, costs: StepCosts) -> _Layer:
        prompts = self._prompts
        (qa, qb), (ca, cb) = (_few(*each) for each in _decode_curves(costs))
        curves = (costs.per_token.minorant(), costs.per_pair.minorant(), costs.per_chunk.lines())
        units = (prompts.tokens, prompts.pairs, 1.0)
        ends = [0, -1]  # the flattest and the steepest
        return _Layer(
            decode=(
                (qa[:, None] + ca + costs.decode_fixed_s).ravel(),
                (qb[:, None] + cb * self._context).ravel(),
            ),
            encode=(
                sum((a[ends] for a, _ in curves), np.full(2, costs.encode_fixed_s)),
                sum(
                    (b[ends] * unit for (_, b), unit in zip(curves, units, strict=True)),
                    np.zeros(2),
                ),
            ),
            steepest_s=_steepest(costs.per_token)
            + _steepest(costs.per_pair) * max(prompts.pairs_per_token, 0.0),
        )


def _decode_curves(costs: StepCosts) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    return costs.per_query.lines(), costs.per_context.minorant()


def _layers(side: Shape, *, encodes: bool) -> tuple[dict[int, int], dict[int, int]]:
    """By degree: (the most layers of a stage, all layers), of those that a step of the side passes."""
    most: dict[int, int] = {}
    total: dict[int, int] = {}
    for stage in side.layout.stages:
        number = stage.encoder_layers if encodes else stage.layers
        most[stage.degree] = max(most.get(stage.degree, 0), number)
        total[stage.degree] = total.get(stage.degree, 0) + number
    return most, total


def _few(intercepts: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """So many of the lines that sides of several degrees can be added line by line."""
    some = np.linspace(0, len(slopes) - 1, MOST_LINES).round().astype(int)
    return intercepts[some], slopes[some]


def _highest(a: Floats, b: Floats, most: float) -> tuple[Floats, Floats]:
    """Those of the lines that are the highest somewhere from 1 to `most`, and the steepest; any of them is a bound."""
    if most <= 1:
        return a, b
    at = most ** (np.arange(SAMPLED) / (SAMPLED - 1))
    kept = np.unique(np.append((a + b * at[:, None]).argmax(axis=1), b.argmax()))
    return a[kept], b[kept]


def _steepest(curve: Hinges) -> float:
    return max(0.0, curve.slope, curve.slope + float(np.max(np.cumsum(curve.changes), initial=0.0)))


def _corners(x: tuple[float, ...], seconds: tuple[float, ...]) -> tuple[Floats, Floats]:
    return np.array(x), np.array(seconds)
