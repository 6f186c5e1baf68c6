"""The proof that comes with a plan: what was searched, how each part was settled, and from which inputs.

`check` recomputes it: the leaves are disjoint and cover the space, each leaf's bound is what the space gives, and it
does settle the leaf. It trusts the bounds' formulas (tests hold them against every point of a block), not the search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from pydantic import Field

from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import Split
from exegpt_planner.search import ROUNDING, Block, Found, Leaf, Reason
from exegpt_planner.strategies import StrategySpace
from exegpt_planner.strict import StrictModel
from exegpt_planner.workload import Workload


class LeafRecord(StrictModel):
    """A block, both ends included, and what settled it."""

    block: tuple[int, int, int, int]  # x1, x2, y1, y2
    reason: Reason
    bound: float  # queries/s if by throughput, s if by latency, else 0


class SpaceCertificate(StrictModel):
    """The search of one strategy's space."""

    strategy: str
    split: Split | None = None  # WAA: encoders, decoders
    shape: int = Field(default=0, exclude_if=lambda value: value == 0)  # as `shapes` lists them
    axes: tuple[str, str]
    space: tuple[int, int, int, int]
    num_schedules: int
    num_evaluations: int
    leaves: tuple[LeafRecord, ...]


class InputHashes(StrictModel):
    """SHA-256 of the canonical JSON of each input."""

    table: str
    workload: str
    bound: str
    memory: str

    @classmethod
    def of(
        cls, table: ProfileTable, workload: Workload, bound: StrictModel, memory: dict[str, int]
    ) -> Self:
        """The hashes of a plan's inputs; the workload's are of its laws, not of its description."""
        return cls(
            table=_sha256(table.model_dump(mode="json")),
            workload=workload_sha256(workload),
            bound=_sha256(json.loads(bound.model_dump_json())),  # an infinite one is a string
            memory=_sha256(memory),
        )


def workload_sha256(workload: Workload) -> str:
    """The hash of a workload's laws."""
    laws = {
        "input": workload.input.pmf.tolist(),
        "output": workload.output.pmf.tolist(),
        "input_mean": workload.input_mean.tolist(),
        "input_square": workload.input_square.tolist(),
    }
    return _sha256(laws)


class Relaxed(StrictModel):
    """A shape that was not searched, as nothing in it can have more throughput than was found."""

    strategy: str
    shape: int
    throughput: float  # queries/s that it cannot exceed


class Certificate(StrictModel):
    """The proof of a plan."""

    spaces: tuple[SpaceCertificate, ...]
    relaxed: tuple[Relaxed, ...] = Field(default=(), exclude_if=lambda value: value == ())
    num_shapes: int = Field(default=1, exclude_if=lambda value: value == 1)
    inputs: InputHashes


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
            return best is not None and bounds.throughput < best
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


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
