"""How often a knob does not do what the paper's search counts on: its Table 5, for GPT-3 39B on sixteen A40.

    python benchmarks/monotonicity.py [--quick]

Each knob is turned through its range while all others stay: RRA's B_E and N_D on the shape that the planner chooses
under FT's 70 % bound, its micro-batches M and its number of groups in tensor parallelism (a micro-batch a stage) over
all shapes; WAA's B_E (with B_D in proportion, as the paper's is) and B_D, CRA's B_D and C on their chosen shapes. A
point is not monotone if, by more than the tolerance, throughput (in per cent of what it is) or latency (in per cent of
the bound) is on the wrong side of the point before. More B_E, B_D, C, M and less N_D are to mean more of both, more
groups less of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from exegpt_planner.layout import Layout
from exegpt_planner.search import Point
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.waa import ROOM
from exegpt_planner.strategies import StrategySpace
from paper_points import Scenario, scenarios
from paper_spaces import space_on, space_with

Floats = NDArray[np.float64]

TOLERANCES = (0.02, 0.05, 0.1)
PAPER = {  # Table 5: (latency, throughput) at each tolerance, per cent
    ("S", "RRA B_E"): ((0.6, 2.3), (0.6, 0.3), (0.3, 0.0)),
    ("S", "RRA N_D"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("S", "WAA B_E"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("S", "WAA TP"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("S", "WAA B_m"): ((0.8, 0.0), (0.5, 0.0), (0.4, 0.0)),
    ("T", "RRA B_E"): ((0.2, 0.1), (0.2, 0.0), (0.2, 0.0)),
    ("T", "RRA N_D"): ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("T", "WAA B_E"): ((0.1, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ("T", "WAA TP"): ((1.2, 0.0), (0.8, 0.0), (0.4, 0.0)),
    ("T", "WAA B_m"): ((10.9, 0.0), (10.6, 0.0), (10.4, 0.0)),
}
MOST, QUICK = 64, 16  # values of a knob


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """A knob turned: what each of its values gives, in the order in which both should rise."""

    latency_s: Floats
    throughput: Floats


def wrong(turned: Sequence[Turned], bound_s: float, tolerance: float) -> tuple[float, float]:
    """Shares of the points whose latency, and throughput, falls by more than the tolerance from the one before."""
    falls_s = np.concatenate([-np.diff(each.latency_s) for each in turned])
    lost = np.concatenate([-np.diff(each.throughput) / each.throughput[:-1] for each in turned])
    return float(np.mean(falls_s > tolerance * bound_s)), float(np.mean(lost > tolerance))


def some_of(first: int, last: int, most: int = MOST) -> list[int]:
    """Whole numbers from first to last, all of them or as many as `most`, evenly."""
    return [
        int(x) for x in np.unique(np.linspace(first, last, min(most, last - first + 1)).astype(int))
    ]


def _denser_below(first: int, last: int) -> list[int]:
    return [int(x) for x in np.unique(np.geomspace(first, last, 4 * MOST).astype(int))]


class Knobs:
    """The knobs of one scenario under one bound."""

    def __init__(self, scenario: Scenario, bound_s: float, most: int) -> None:
        self.scenario, self.bound_s, self.most = scenario, bound_s, most

    def each(self) -> Iterator[tuple[str, list[Turned]]]:
        """(knob, every line along it)."""
        for strategy, names in (
            ("RRA", ("B_E", "N_D")),
            ("WAA", ("B_E", "B_D")),
            ("CRA", ("B_D", "C")),
        ):
            space = self._chosen(strategy)
            across = self._grid(space)
            for axis, name in enumerate(names):
                lines = self._along(space, across, axis, name == "N_D")
                if strategy == "WAA" and name == "B_E":
                    lines = self._rays(space, across[0])
                yield f"{strategy} {name}", lines
            if strategy == "RRA":
                few = [values[:: max(1, len(values) // 4)] for values in across]
                points = [(x, y) for x in few[0] for y in few[1]]
                yield "RRA TP", self._over_shapes(_by_degree(self.scenario.shapes), points)
                yield "RRA M", self._over_shapes(_by_layout(self.scenario.shapes), points)

    def _chosen(self, strategy: str) -> StrategySpace:
        """The space that the strategy's best schedule lies in."""
        plan = self.scenario.plan(self.bound_s, (strategy,))
        return space_with(self.scenario, plan.schedule)

    def _grid(self, space: StrategySpace) -> tuple[list[int], list[int]]:
        """Values of both knobs, up to where nothing fits any more."""
        whole = space.whole
        xs, ys = _denser_below(whole.x1, whole.x2), _denser_below(whole.y1, whole.y2)
        fits = np.array([[space.blocked((x, y)) is None for y in ys] for x in xs])
        x_end = xs[int(np.flatnonzero(fits.any(axis=1))[-1])]
        y_end = ys[int(np.flatnonzero(fits.any(axis=0))[-1])]
        return some_of(whole.x1, x_end, self.most), some_of(whole.y1, y_end, self.most)

    def _along(
        self,
        space: StrategySpace,
        across: tuple[list[int], list[int]],
        axis: int,
        is_falling: bool,
    ) -> list[Turned]:
        """Lines along one axis, one for each value of the other."""
        lines = []
        for other in across[1 - axis]:
            points = [(k, other) if axis == 0 else (other, k) for k in across[axis]]
            kept = [(space, point) for point in points if space.blocked(point) is None]
            if len(kept) > 1:
                lines.append(_turned(kept[::-1] if is_falling else kept))
        return lines

    def _rays(self, space: StrategySpace, batches: list[int]) -> list[Turned]:
        """Lines along B_E with B_D in proportion, as the paper's B_D = B_E S_D is."""
        lines = []
        for times in some_of(ROOM, int(self.scenario.law.decode_mean), self.most):
            points = [(batch, times * batch) for batch in batches]
            kept = [
                (space, (batch, pool))
                for batch, pool in points
                if pool <= space.whole.y2 and space.blocked((batch, pool)) is None
            ]
            if len(kept) > 1:
                lines.append(_turned(kept))
        return lines

    def _over_shapes(self, groups: list[list[Shape]], points: list[Point]) -> list[Turned]:
        """Lines through each group's shapes, one for each point."""
        lines = []
        for group in groups:
            spaces = [space_on(self.scenario, "RRA", shape) for shape in group]
            for point in points:
                kept = [
                    (space, point)
                    for space in spaces
                    if space.whole.x1 <= point[0] <= space.whole.x2 and space.blocked(point) is None
                ]
                if len(kept) > 1:
                    lines.append(_turned(kept))
        return lines


def _turned(at: Sequence[tuple[StrategySpace, Point]]) -> Turned:
    return Turned(
        latency_s=np.array([space.promised_s(point) for space, point in at]),
        throughput=np.array([space.throughput(point) for space, point in at]),
    )


def _by_degree(shapes: Sequence[Shape]) -> list[list[Shape]]:
    """Shapes with a micro-batch a stage that differ in how many groups of one degree there are, most of them first."""
    lines: dict[tuple[int, int], dict[int, Shape]] = {}
    for degree in {each.layout.degree for each in shapes} - {1}:
        for shape in shapes:
            stages = shape.layout.stages
            if shape.layout.degree in (1, degree) and shape.micro_batches == len(stages):
                line = lines.setdefault((shape.units, degree), {})
                # the first of two balances
                line.setdefault(sum(stage.degree == degree for stage in stages), shape)
    return [
        [line[k] for k in sorted(line, reverse=True)] for line in lines.values() if len(line) > 1
    ]


def _by_layout(shapes: Sequence[Shape]) -> list[list[Shape]]:
    """Shapes that differ in their micro-batches."""
    lines: dict[tuple[int, Layout], list[Shape]] = {}
    for shape in shapes:
        lines.setdefault((shape.units, shape.layout), []).append(shape)
    return [line for line in lines.values() if len(line) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a coarse grid")
    most = QUICK if parser.parse_args().quick else MOST
    table = Table(title="points that are not monotone, %: latency, throughput")
    for column in ("task", "knob", "points", *(f"{each:.0%}" for each in TOLERANCES), "paper"):
        table.add_column(column)
    for scenario in scenarios():
        if scenario.model_name != "gpt3-39b" or scenario.task not in ("S", "T"):
            continue
        bound_s = scenario.batches.bounds_s()[2]
        for knob, lines in Knobs(scenario, bound_s, most).each():
            shares = [wrong(lines, bound_s, tolerance) for tolerance in TOLERANCES]
            papers = PAPER.get((scenario.task, knob))
            table.add_row(
                scenario.task,
                knob,
                str(sum(len(line.latency_s) - 1 for line in lines)),
                *(_pair(*(100 * share for share in each)) for each in shares),
                "-" if papers is None else "; ".join(_pair(*each) for each in papers),
            )
    Console(width=120).print(table)


def _pair(latency: float, throughput: float) -> str:
    return f"{latency:.1f}, {throughput:.1f}"


if __name__ == "__main__":
    main()
