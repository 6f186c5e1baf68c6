"""How fast the machine is beside its profile: the calibration kernel's latest times against the profile's own.

Read as in the profile, so that the same machine gives 1: a reading is the median of the latest three, and a step is as
much slower as its sensitivity says.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from exegpt_planner.profile_table import ProfileTable

_READINGS = 3


class MachineSpeed:
    """The kernel's latest readings; a new one is known by its value."""

    def __init__(self, table: ProfileTable) -> None:
        self._table = table
        self._readings: deque[float] = deque(maxlen=_READINGS)

    def slowdown(self, tokens: float, kernel_s: float) -> float:
        """Time of a step of `tokens` now / while profiling; `kernel_s` is the kernel's latest time, above 0."""
        if not self._readings or self._readings[-1] != kernel_s:
            self._readings.append(kernel_s)
        ratio = median(self._readings) / self._table.kernel_s
        return self._table.sensitivity.slowdown(tokens, ratio)
