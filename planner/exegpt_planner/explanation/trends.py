"""Whether throughput and promise are monotone in the knobs on this table (the paper's Table 5), on a bounded sample.

Along each knob neighbours are compared, at some values of the other knob: what the paper's search relies on, and
exegpt's does not. A pair is against the trend by more than 0, 2 or 5 % of the chosen throughput, or of the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from exegpt_planner.cra_space import CraSpace
from exegpt_planner.explanation.record import TOLERANCES, SlicePoint, Trend
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.search import Point
from exegpt_planner.strategies import StrategySpace

LINES = 13  # values of the other knob, the chosen one among them
PAIRS = 120  # of neighbours along one line
SHOWN = 32  # values of a knob beside the chosen one

FALLS = ("encode_interval",)  # N_D: encoding less often


def trends(space: StrategySpace, plan: Plan) -> tuple[Trend, ...]:
    """One for each knob of the chosen schedule's space."""
    chosen = point_of(space, plan.schedule)
    return tuple(_trend(space, plan, chosen, axis) for axis in (0, 1))


def point_of(space: StrategySpace, schedule: Schedule) -> Point:
    """Where a schedule lies in its space."""
    match schedule, space:
        case RraSchedule(encode_batch=batch, encode_interval=interval), _:
            return batch, interval
        case CraSchedule(pool=pool, chunk_tokens=chunk), CraSpace():
            return pool, space.chunks.index(chunk) + 1
        case WaaSchedule(encode_batch=batch, pool=pool), _:
            return batch, pool
    raise AssertionError(schedule)


def _trend(space: StrategySpace, plan: Plan, chosen: Point, axis: int) -> Trend:
    knob = space.axes[axis]
    sign = -1 if knob in FALLS else 1
    throughput = plan.prediction.queries_per_s
    bound_s = plan.bound.seconds
    promise_s = plan.prediction.promised_s if math.isinf(bound_s) else bound_s
    steps = np.array(list(_steps(space, chosen, axis))).reshape(-1, 2)
    against = -sign * steps / (throughput, promise_s)  # above 0: the wrong way
    counts = [[int((column > each).sum()) for each in TOLERANCES] for column in against.T]
    return Trend(
        knob=knob,
        direction="falls" if sign < 0 else "rises",
        num_pairs=len(steps),
        throughput_against=tuple(counts[0]),
        promise_against=tuple(counts[1]),
        through_chosen=tuple(_through(space, chosen, axis)),
    )


def _steps(space: StrategySpace, chosen: Point, axis: int) -> Iterator[tuple[float, float]]:
    """(change of throughput, of promise) from a value of the knob to the next, where both can be had."""
    for other in _some(*_range(space, 1 - axis), chosen[1 - axis], LINES):
        for value in _some(*_range(space, axis), chosen[axis], PAIRS):
            pair = _at(axis, value, other), _at(axis, value + 1, other)
            if value < _range(space, axis)[1] and not any(map(space.blocked, pair)):
                yield (
                    space.throughput(pair[1]) - space.throughput(pair[0]),
                    space.promised_s(pair[1]) - space.promised_s(pair[0]),
                )


def _through(space: StrategySpace, chosen: Point, axis: int) -> Iterator[SlicePoint]:
    for value in _some(*_range(space, axis), chosen[axis], SHOWN):
        point = _at(axis, value, chosen[1 - axis])
        if space.blocked(point) is None:
            yield SlicePoint(
                value=_knob(space, axis, value),
                is_chosen=value == chosen[axis],
                queries_per_s=space.throughput(point),
                promised_s=space.promised_s(point),
            )


def _knob(space: StrategySpace, axis: int, value: int) -> int:
    """The knob's own value; CRA's second axis counts its chunks."""
    return space.chunks[value - 1] if isinstance(space, CraSpace) and axis == 1 else value


def _at(axis: int, value: int, other: int) -> Point:
    return (value, other) if axis == 0 else (other, value)


def _range(space: StrategySpace, axis: int) -> tuple[int, int]:
    whole = space.whole
    return (whole.x1, whole.x2) if axis == 0 else (whole.y1, whole.y2)


def _some(low: int, high: int, chosen: int, number: int) -> list[int]:
    """Whole numbers from low to high, about evenly in their logarithms, and the chosen one."""
    spread = np.geomspace(low, high, number).round().astype(int)
    return sorted({*map(int, spread), chosen})
