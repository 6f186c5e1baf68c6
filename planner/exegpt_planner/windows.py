"""Minimum and maximum of an array over any window, from a table of power-of-two windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Windows:
    """Range minima and maxima of `values`; beyond its end the values are 0."""

    def __init__(self, values: Floats) -> None:
        padded = np.append(values, 0.0)
        self._last = len(padded) - 1
        self._lows, self._highs = [padded], [padded]
        width = 1
        while 2 * width <= len(padded):
            low, high = self._lows[-1], self._highs[-1]
            self._lows.append(np.minimum(low[:-width], low[width:]))
            self._highs.append(np.maximum(high[:-width], high[width:]))
            width *= 2

    def least(self, start: int, end: int) -> float:
        """The minimum over start..end, ends included and inside."""
        level = (end - start + 1).bit_length() - 1
        low = self._lows[level]
        return float(min(low[start], low[end - (1 << level) + 1]))

    def extremes(self, start: Ints, end: Ints) -> tuple[Floats, Floats]:
        """(minimum, maximum) over start..end, ends included, elementwise."""
        start, end = np.minimum(start, self._last), np.minimum(end, self._last)
        level = np.frexp((end - start + 1).astype(np.float64))[1] - 1
        low, high = np.empty(start.shape), np.empty(start.shape)
        for k in np.unique(level):
            at = level == k
            a, b = start[at], end[at] - (1 << int(k)) + 1
            low[at] = np.minimum(self._lows[k][a], self._lows[k][b])
            high[at] = np.maximum(self._highs[k][a], self._highs[k][b])
        return low, high
