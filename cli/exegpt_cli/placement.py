"""Which cores of this machine compute, and which serve: spinning or busy neighbours on one core ruin both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a worker computes, and where everything else runs."""

    worker_cores: tuple[int, ...]
    other_cores: tuple[int, ...]

    @property
    def threads(self) -> int:
        """Compute threads of the worker, one a core."""
        return len(self.worker_cores)


def place(cores: Sequence[int]) -> Placement:
    """The worker gets all cores but the first, which is for the rest; a single core is shared."""
    ordered = tuple(sorted(cores))
    return Placement(worker_cores=ordered[1:] or ordered, other_cores=ordered[:1])


def this_machine() -> Placement:
    """The placement on the cores that this process may use."""
    return place(sorted(os.sched_getaffinity(0)))


def leave_to_worker(placement: Placement) -> None:
    """Keep the calling thread, and those it starts from now on, off the worker's cores."""
    os.sched_setaffinity(0, placement.other_cores)
