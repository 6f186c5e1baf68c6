"""What a plan's proof records: what was searched, how each part was settled, and from which inputs.

Records only: the search writes them (certificate.py), and what checks them (certificate_check.py) shares no code with
it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Self

from pydantic import Field

from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import Split
from exegpt_planner.strict import StrictModel
from exegpt_planner.workload import Workload

# load: CRA's chunks could not keep up; shape: WAA's pool has too few places, or more than are ever taken
Reason = Literal["throughput", "latency", "evaluated", "memory", "coverage", "load", "shape"]
Corners = tuple[int, int, int, int]  # x1, x2, y1, y2: both ends included


class LeafRecord(StrictModel):
    """A block, and what settled it."""

    block: Corners
    reason: Reason
    bound: float  # queries/s if by throughput, s if by latency, else 0


class SpaceCertificate(StrictModel):
    """The search of one strategy's space."""

    strategy: str
    split: Split | None = None  # WAA: encoders, decoders
    shape: int = Field(default=0, exclude_if=lambda value: value == 0)  # as `shapes` lists them
    axes: tuple[str, str]
    space: Corners
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
    """A shape that was not searched, as nothing in it can have more throughput than was found.

    Of WAA: all pairs of sides from this one on whose encoders take as many devices.
    """

    strategy: str
    shape: int
    number: int = Field(default=1, exclude_if=lambda value: value == 1)  # of shapes
    throughput: float  # queries/s that it cannot exceed


class Certificate(StrictModel):
    """The proof of a plan."""

    spaces: tuple[SpaceCertificate, ...]
    relaxed: tuple[Relaxed, ...] = Field(default=(), exclude_if=lambda value: value == ())
    num_shapes: int = Field(default=1, exclude_if=lambda value: value == 1)
    inputs: InputHashes


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
