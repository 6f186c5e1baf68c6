"""Clocks of the worker, and the calibration kernel that says how fast the machine is at this moment.

Neighbours and frequency changes move a core's speed by tens of percent. A fixed kernel of a few milliseconds, of the
engine's own products over weights that change from one to the next, and of reads of memory, runs now and then outside
the step clocks; a time measured while the kernel took k seconds is normalised to the profile by

    seconds * kernel_s(profile) / k

With one thread the clock is the process's CPU time, blind to preemption; with more it is wall time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from exegpt_runner.layers.linear import Linear

# A neighbour on the same core slows arithmetic most, neighbours elsewhere slow memory; steps are both, encodes more of
# the first. A third of the kernel's time each: products of few rows with weights from memory, products with a weight
# that a cache holds, and plain reads (trials: decisions/0013).
_STREAMED, _STREAMED_ROWS = 6, 32  # with distinct weights, 11 MB of them
_CACHED, _CACHED_ROWS = 5, 64
_FEATURES, _OUTPUTS = 576, 1536
_READ_FLOATS = 4 * 1024 * 1024  # 16 MiB


@dataclass(frozen=True, slots=True)
class Instant:
    """One reading of both clocks, seconds."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Instant:
        return cls(time.monotonic(), time.process_time())


class StepClock:
    """Splits the time of one stream into laps, with the pauses left out."""

    def __init__(self) -> None:
        self._last = Instant.now()
        self._paused_wall_s = 0.0
        self._paused_cpu_s = 0.0

    def pause(self, since: Instant) -> float:
        """Leaves the time from `since` to now out of the lap; returns its wall seconds."""
        now = Instant.now()
        self._paused_wall_s += now.wall_s - since.wall_s
        self._paused_cpu_s += now.cpu_s - since.cpu_s
        return now.wall_s - since.wall_s

    def lap(self) -> tuple[float, float]:
        """Wall and CPU seconds since the last lap ended, without the pauses."""
        now = Instant.now()
        wall_s = now.wall_s - self._last.wall_s - self._paused_wall_s
        cpu_s = now.cpu_s - self._last.cpu_s - self._paused_cpu_s
        self._last, self._paused_wall_s, self._paused_cpu_s = now, 0.0, 0.0
        return wall_s, cpu_s


class CalibrationKernel:
    """The fixed kernel (2 to 4 ms on one core of a server of the 2020s) and its latest time."""

    def __init__(self, *, threads: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator).to(torch.bfloat16)

        self._by_cpu = threads == 1
        self._few_rows = matrix(_STREAMED_ROWS, _FEATURES)
        self._streamed = [Linear(matrix(_OUTPUTS, _FEATURES)) for _ in range(_STREAMED)]
        self._rows = matrix(_CACHED_ROWS, _FEATURES)
        self._cached = Linear(matrix(_OUTPUTS, _FEATURES))
        self._memory = torch.randn(_READ_FLOATS, generator=generator)
        self._ran_s = float("-inf")
        self.latest_s = 0.0

    def is_due(self, every_s: float) -> bool:
        """Whether `every_s` seconds have passed since it last ran; 0 means never."""
        return every_s > 0 and time.monotonic() - self._ran_s >= every_s

    def run(self) -> float:
        """Seconds the kernel takes now; also kept in `latest_s`."""
        self._work()  # off the clock: what earlier steps left in the caches is not the machine's speed
        begin = self._read()
        self._work()
        self.latest_s = self._read() - begin
        self._ran_s = time.monotonic()
        return self.latest_s

    def _work(self) -> None:
        for product in self._streamed:
            product(self._few_rows)
        for _ in range(_CACHED):
            self._cached(self._rows)
        self._memory.sum()

    def _read(self) -> float:
        return time.process_time() if self._by_cpu else time.monotonic()
