"""How long one micro-batch's step stays on one pipeline stage: all that the event simulation knows of a machine.

Times come from a profile table's curves and nothing else. Beyond its last knot a curve goes on as it ended: a long run
meets sums that no plan reaches on average (`Run.steps_beyond` says how often).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.profile_table import Curve, LayerCurves, ProfileTable, StepShape


class Stages(Protocol):
    """The devices of one model instance, as a pipeline."""

    @property
    def num_stages(self) -> int:
        """P."""
        ...

    @property
    def dispatch_s(self) -> float:
        """From a step's end, or a cycle's, to the conductor's next message."""
        ...

    def stage_s(self, stage: int, shape: StepShape) -> float:
        """Seconds of a step of this shape on a stage, its send to the next one included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantStages:
    """Stages that take the same time for every encode and for every decode."""

    encode_s: Sequence[float]  # by stage
    decode_s: Sequence[float]
    dispatch_s: float = 0.0

    @property
    def num_stages(self) -> int:
        """P."""
        return len(self.encode_s)

    def stage_s(self, stage: int, shape: StepShape) -> float:
        """A step that both encodes and decodes takes the time of both."""
        encode_s = self.encode_s[stage] if shape.encode_chunks else 0.0
        return encode_s + (self.decode_s[stage] if shape.decode_queries else 0.0)


class EvenStages:
    """A table's layers over stages, as even as whole layers allow; embedding on the first, head on the last."""

    def __init__(self, table: ProfileTable, num_stages: int) -> None:
        self.num_stages, self.dispatch_s = num_stages, table.dispatch_s
        _check(table, num_stages)
        edges = [table.num_layers * stage // num_stages for stage in range(num_stages + 1)]
        self._layers = [b - a for a, b in pairwise(edges)]
        self._layer_s = _layer(table.layer)
        self._embedding_s = extended(table.outside.tokens)
        self._head_s = extended(table.outside.sampled)
        self._send_s = None if table.parallel is None else extended(table.parallel.send_inside)
        self._overhead_s = table.step_overhead_s

    def stage_s(self, stage: int, shape: StepShape) -> float:
        """Seconds of a step of this shape on a stage, its send to the next one included."""
        time_s = self._overhead_s + self._layers[stage] * self._layer_s(shape)
        if stage == 0:
            time_s += self._embedding_s(shape.tokens)
        if stage == self.num_stages - 1:
            return time_s + self._head_s(shape.sampled)
        assert self._send_s is not None, self.num_stages  # _check
        return time_s + self._send_s(shape.tokens)


class TableStages(EvenStages):
    """One worker that holds all layers: a step takes the table's `step_s`."""

    def __init__(self, table: ProfileTable) -> None:
        super().__init__(table, 1)


def _check(table: ProfileTable, num_stages: int) -> None:
    problems = []
    if not 1 <= num_stages <= table.num_layers:
        problems.append(f"{table.num_layers} layers cannot be held by {num_stages} stages")
    if table.encoder is not None:
        problems.append("these stages are of a decoder-only model, and the profile has an encoder")
    if problems:
        raise InvalidSpec("stages", problems)
    if num_stages > 1 and table.parallel is None:
        raise IncompleteProfile(
            "the profile holds no times of sending activations from stage to stage, without which a pipeline cannot be "
            "simulated. Profile two devices or more."
        )


def _layer(curves: LayerCurves) -> Callable[[StepShape], float]:
    tokens, queries, context, chunks, pairs = (
        extended(curve)
        for curve in (
            curves.tokens,
            curves.decode_queries,
            curves.decode_context,
            curves.encode_chunks,
            curves.encode_pairs,
        )
    )

    def time_s(shape: StepShape) -> float:
        return (
            tokens(shape.tokens)
            + queries(shape.decode_queries)
            + context(shape.decode_context)
            + chunks(shape.encode_chunks)
            + pairs(shape.encode_pairs)
        )

    return time_s


def extended(curve: Curve) -> Callable[[float], float]:
    """A curve that goes on beyond its last knot as its last piece; quick for single points."""
    knots, seconds = curve.x, curve.seconds
    slopes = [
        (seconds[i + 1] - seconds[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1)
    ]
    last = len(slopes) - 1

    def time_s(x: float) -> float:
        piece = min(bisect_right(knots, x) - 1, last)
        return seconds[piece] + slopes[piece] * (x - knots[piece])

    return time_s
