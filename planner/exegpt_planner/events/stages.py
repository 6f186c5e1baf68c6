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
from exegpt_planner.layout import Bill, Layout, StageLayout, bills
from exegpt_planner.profile_table import (
    Curve,
    LayerCurves,
    ProfileTable,
    StepShape,
)

DOES_BOTH = "the profile has an encoder: stages that both encode and decode are not simulated"


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


class LayoutStages:
    """The stages of a layout, times from a table."""

    def __init__(
        self, table: ProfileTable, layout: Layout, *, units: int = 1, start: int = 0
    ) -> None:
        """One of `units` instances, which lie one behind the other from device `start` on."""
        self.num_stages, self.dispatch_s = len(layout.stages), table.dispatch_s
        _check(table, layout)
        self._stages = [_stage(table, bill) for bill in bills(layout, table, units, start).stages]

    def stage_s(self, stage: int, shape: StepShape) -> float:
        """Seconds of a step of this shape on a stage, its send to the next one included."""
        return self._stages[stage](shape)


class EvenStages(LayoutStages):
    """A table's layers over stages of a device each, as even as whole layers allow."""

    def __init__(self, table: ProfileTable, num_stages: int) -> None:
        if not 1 <= num_stages <= table.num_layers:
            problem = f"{table.num_layers} layers cannot be held by {num_stages} stages"
            raise InvalidSpec("stages", [problem])
        if table.encoder is not None:
            raise InvalidSpec("stages", [DOES_BOTH])
        edges = [table.num_layers * stage // num_stages for stage in range(num_stages + 1)]
        stages = [StageLayout(degree=1, layers=b - a) for a, b in pairwise(edges)]
        super().__init__(table, Layout(stages=tuple(stages)))


class TableStages(EvenStages):
    """One worker that holds all layers: a step takes the table's `step_s`."""

    def __init__(self, table: ProfileTable) -> None:
        super().__init__(table, 1)


def _check(table: ProfileTable, layout: Layout) -> None:
    if layout.has_head and any(stage.encoder_layers for stage in layout.stages):
        raise InvalidSpec("stages", [DOES_BOTH])
    if len(layout.stages) > 1 and table.parallel is None:
        raise IncompleteProfile(
            "the profile holds no times of sending activations from stage to stage, without which a pipeline cannot be "
            "simulated. Profile two devices or more."
        )


def _stage(table: ProfileTable, bill: Bill) -> Callable[[StepShape], float]:
    """The time of what a step passes through on one stage."""
    parts: list[Callable[[StepShape], float]] = []
    by_tokens: list[Callable[[float], float]] = []
    for (what, degree), number in bill.items():
        on = table.on(degree)
        if what in ("layer", "encoder_layer") and number:
            parts.append(_times(number, _layer(on.layer if what == "layer" else on.encode_layer)))
            by_tokens += [_scaled(number, extended(each)) for each in on.sync]
        elif what == "embedding":
            by_tokens.append(extended(on.outside.tokens))
        elif what == "head":
            parts.append(_of_sampled(extended(on.outside.sampled)))
        elif what.startswith("send"):
            assert table.parallel is not None, "checked"
            by_tokens.append(extended(getattr(table.parallel, what)))
    overhead_s = table.step_overhead_s

    def time_s(shape: StepShape) -> float:
        time_s = overhead_s + sum(part(shape) for part in parts)
        return time_s + sum(part(shape.tokens) for part in by_tokens)

    return time_s


def _times(number: int, part: Callable[[StepShape], float]) -> Callable[[StepShape], float]:
    return lambda shape: number * part(shape)


def _scaled(number: int, part: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: number * part(x)


def _of_sampled(part: Callable[[float], float]) -> Callable[[StepShape], float]:
    return lambda shape: part(shape.sampled)


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
