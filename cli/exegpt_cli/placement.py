"""Which cores of this machine compute, and which serve: spinning or busy neighbours on one core ruin both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where workers compute, and where everything else runs."""

    worker_cores: tuple[tuple[int, ...], ...]  # of each worker
    other_cores: tuple[int, ...]

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self.worker_cores)

    @property
    def threads(self) -> int:
        """Compute threads of a worker, one a core, the same for all: they run the same plan."""
        return len(self.worker_cores[0])

    def yields(self, worker: int) -> bool:
        """Whether a worker shares a core with the gateway, and must let it go first: all others wait for that."""
        return bool(set(self.worker_cores[worker]) & set(self.other_cores))


def place(cores: Sequence[int], num_workers: int = 1) -> Placement:
    """Equal shares of all cores but the first, which is for the rest; where they are too few, of all of them.

    Then the first worker shares with the rest: in WAA an encoder, for whom it is not each token that waits.
    """
    ordered = tuple(sorted(cores))
    free = ordered[1:] if len(ordered) > num_workers else ordered
    share = max(1, len(free) // num_workers)
    return Placement(
        worker_cores=tuple(
            tuple(free[(worker * share + i) % len(free)] for i in range(share))
            for worker in range(num_workers)
        ),
        other_cores=ordered[:1],
    )


def this_machine(num_workers: int = 1) -> Placement:
    """The placement on the cores that this process may use."""
    return place(sorted(os.sched_getaffinity(0)), num_workers)


def leave_to_workers(placement: Placement) -> None:
    """Keep the calling thread, and those it starts from now on, off the workers' cores."""
    os.sched_setaffinity(0, placement.other_cores)
