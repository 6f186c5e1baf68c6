"""The search's own account of a plan's proof: its leaves as records (proof.py).

`check` recomputes it: the leaves are disjoint and cover the space, each leaf's bound is what the space gives, and it
does settle the leaf. It trusts the bounds' formulas (tests hold them against every point of a block), not the search.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exegpt_planner.proof import LeafRecord, SpaceCertificate
from exegpt_planner.search import ROUNDING, Block, Found, Leaf
from exegpt_planner.strategies import StrategySpace


def certify(space: StrategySpace, found: Found, shape: int = 0) -> SpaceCertificate:
    """The record of a search."""
    return SpaceCertificate(
        strategy=space.strategy,
        split=space.split,
        shape=shape,
        axes=space.axes,
        space=_corners(space.whole),
        num_schedules=space.whole.num_points,
        num_evaluations=found.num_evaluations,
        leaves=tuple(
            LeafRecord(block=_corners(leaf.block), reason=leaf.reason, bound=leaf.bound)
            for leaf in found.leaves
        ),
    )


def check(
    certificate: SpaceCertificate, space: StrategySpace, *, best: float | None, bound_s: float
) -> list[str]:
    """What is wrong with a certificate that says no schedule within `bound_s` has more throughput than `best`."""
    leaves = [
        Leaf(block=Block(*leaf.block), reason=leaf.reason, bound=leaf.bound)
        for leaf in certificate.leaves
    ]
    problems = _coverage(space.whole, [leaf.block for leaf in leaves])
    for leaf in leaves:
        if not _settled(leaf, space, best, bound_s):
            problems.append(f"{leaf.block} is not settled by {leaf.reason} {leaf.bound:g}")
    return problems


def _settled(leaf: Leaf, space: StrategySpace, best: float | None, bound_s: float) -> bool:
    if leaf.reason == "evaluated":
        return all(
            space.blocked(point) is not None
            or space.promised_s(point) > bound_s
            or (best is not None and space.throughput(point) <= best * (1 + ROUNDING))
            for point in leaf.block.points()
        )
    bounds = space.bound(leaf.block)
    match leaf.reason:
        case "throughput":
            return best is not None and bounds.throughput <= best * (1 + ROUNDING)
        case "latency":
            return bounds.promised_s > bound_s
        case _:
            return bounds.blocked == leaf.reason


def _coverage(whole: Block, blocks: Sequence[Block]) -> list[str]:
    times_covered = np.zeros((whole.x2 - whole.x1 + 1, whole.y2 - whole.y1 + 1), dtype=np.int64)
    for block in blocks:
        x, y = whole.x1, whole.y1
        times_covered[block.x1 - x : block.x2 - x + 1, block.y1 - y : block.y2 - y + 1] += 1
    missed, doubled = int((times_covered == 0).sum()), int((times_covered > 1).sum())
    return [
        f"{count} schedules are {what}"
        for count, what in ((missed, "in no leaf"), (doubled, "in several leaves"))
        if count
    ]


def _corners(block: Block) -> tuple[int, int, int, int]:
    return block.x1, block.x2, block.y1, block.y2
