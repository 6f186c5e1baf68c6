"""How fast the machine is beside its profile: the calibration kernel's latest times against the profile's own.

Read as in the profile, so that the same machine gives 1: a reading is the median of the latest three, and a step's
clock is divided by its ratio to the kernel's time while profiling.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_READINGS = 3


class MachineSpeed:
    """The kernel's latest readings; a new one is known by its value."""

    def __init__(self, profiled_s: float) -> None:
        self._profiled_s = profiled_s
        self._readings: deque[float] = deque(maxlen=_READINGS)

    def slowdown(self, kernel_s: float) -> float:
        """Time for the same work now / while profiling; `kernel_s` is the kernel's latest time, above 0."""
        if not self._readings or self._readings[-1] != kernel_s:
            self._readings.append(kernel_s)
        return median(self._readings) / self._profiled_s
