"""Search beside exhaustive search on boxes of the paper's own scenarios: their tables, shapes and bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from exegpt_planner.exhaustive import best_of_all
from exegpt_planner.search import Block, Blocked, Bounds, Point, search
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.strategies import Site, StrategySpace, unplannable
from exegpt_planner.waa_sites import WaaSites
from paper_points import CLUSTERS, Scenario, scenarios
from planner.spaces import assert_as_good

POINTS = 250  # of a box: every schedule of it is evaluated
NAMES = [
    f"{model} {devices}x{device} {task}"
    for model, device, devices, tasks in CLUSTERS
    for task in tasks
]
FAST = {"opt-13b 4xa40 S"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of a space."""

    space: StrategySpace
    whole: Block

    @property
    def few(self) -> int:
        return self.space.few

    def roughly(self, block: Block) -> Bounds | None:
        return self.space.roughly(block)

    def bound(self, block: Block) -> Bounds:
        return self.space.bound(block)

    def blocked(self, point: Point) -> Blocked | None:
        return self.space.blocked(point)

    def throughput(self, point: Point) -> float:
        return self.space.throughput(point)

    def promised_s(self, point: Point) -> float:
        return self.space.promised_s(point)


def box_of(space: StrategySpace, rng: np.random.Generator) -> Box:
    """About so many points around one that is drawn evenly in the knobs' logarithms."""
    whole = space.whole
    x, y = (
        int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
        for low, high in ((whole.x1, whole.x2), (whole.y1, whole.y2))
    )
    x, y = min(max(x, whole.x1), whole.x2), min(max(y, whole.y1), whole.y2)
    width = int(np.exp(rng.uniform(0, np.log(POINTS))))
    height = max(1, POINTS // max(1, width))
    block = type(whole)(
        max(whole.x1, x - width // 2),
        min(whole.x2, x + width // 2),
        max(whole.y1, y - height // 2),
        min(whole.y2, y + height // 2),
    )
    return Box(space=space, whole=block)


def a_space(where: Scenario, strategy: str, promise: Promise, seed: int) -> StrategySpace | None:
    """On one of the shapes, or pairs of them."""
    rng = np.random.default_rng((seed, 7))
    if unplannable(strategy, where.table, where.law, where.devices) is not None:
        return None
    if strategy == "WAA":
        pairs = WaaSites.all(where.table, where.law, where.devices, (where.model, where.memory))
        return pairs[int(rng.integers(len(pairs)))].space(promise) if len(pairs) else None
    number = int(rng.integers(len(where.shapes)))
    site = Site(
        strategy=strategy,
        shape=where.shapes[number],
        number=number,
        table=where.table,
        law=where.law,
    )
    return site.space(promise)


@pytest.mark.parametrize("strategy", ["RRA", "CRA", "WAA"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in NAMES]
)
def test_search_finds_the_best_of_a_box_of_every_scenario(name: str, strategy: str) -> None:
    where = next(each for each in scenarios() if each.name == name)
    length = where.law.workload.output.quantile(0.99)
    for seed, bound_s in enumerate(where.batches.bounds_s()):
        mode = (
            Promise.of_mean(length=length) if seed % 2 else Promise.full(length=length, error=0.0)
        )
        promise = replace(mode, bound_s=bound_s)
        space = a_space(where, strategy, promise, seed)
        if space is None:
            return
        box = box_of(space, np.random.default_rng((seed, 8)))
        assert_as_good(search(box, bound_s).best, best_of_all(box, bound_s))
