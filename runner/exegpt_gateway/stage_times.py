"""How much a stage's time strays: standard deviation over mean, of encodes and of decodes, as in the paper's Table 7.

A stage's time is that of one step: of its encode, or of its decode iterations divided by their number, so that the
planned fall of the pool within a phase does not count; an iteration that does both is a stage of its own, `mixed`.
Only steps that left queries waiting count: without a backlog a step is as small as its work. Times are as given, that
is without the machine's slowdown where it is known.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import fmean
from typing import Literal

Stage = Literal["encode", "decode", "mixed"]

REMEMBERED = 200  # steps; some minutes of RRA on a CPU, seconds on a GPU
FEWEST = 20  # a deviation of fewer says little


class StageTimes:
    """The latest stages of all workers, by kind."""

    def __init__(self) -> None:
        self._latest: dict[Stage, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._decoding: dict[int, list[float]] = defaultdict(
            list
        )  # iterations under way, by worker

    def note(
        self, kind: Stage, seconds: float, *, worker: int, is_last: bool, counts: bool
    ) -> None:
        """One iteration of a worker; `is_last` of its step, which `counts` if it left queries waiting."""
        if kind == "decode":
            self._decoding[worker].append(seconds)
        elif counts:
            self._latest[kind].append(seconds)
        if is_last and (decodes := self._decoding.pop(worker, [])) and counts:
            self._latest["decode"].append(fmean(decodes))

    def variation(self, kind: Stage) -> float | None:
        """Standard deviation over mean of the latest stages; None while there are few."""
        latest = self._latest[kind]
        if len(latest) < FEWEST or not (mean := fmean(latest)):
            return None
        return math.sqrt(fmean([(each - mean) ** 2 for each in latest])) / mean

    def clear(self) -> None:
        """Forgets all: another schedule's stages take other times."""
        self._latest.clear()
