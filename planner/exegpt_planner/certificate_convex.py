"""The largest convex curve below one of costs: by Jensen its value at a mean is below the mean of the costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.expectation import Hinges

Floats = NDArray[np.float64]


class Convex:
    """The largest convex curve below one of costs that does not fall."""

    def __init__(self, curve: Hinges) -> None:
        hull: list[tuple[float, float]] = []
        for x, y in zip(*(each.tolist() for each in curve.points()), strict=True):
            while len(hull) > 1 and _slope(*hull[-2:]) >= _slope(hull[-1], (x, y)):
                hull.pop()
            hull.append((x, y))
        self.x, values = np.array(hull).T
        self.y = np.minimum.accumulate(values[::-1])[::-1]
        self.slopes = np.diff(self.y) / np.diff(self.x)
        # by how much it may rise faster than the curve beyond the end, or fall slower below 0
        self.drop = max(curve.slope - float(self.slopes[0]), 0.0)
        self.rise = max(float(self.slopes[-1]) - curve.last_slope, 0.0)

    def __call__(self, at: Floats) -> Floats:
        """Seconds at least; beyond the end as at it."""
        return np.interp(at, self.x, self.y)

    def line(self, at: float) -> tuple[float, float]:
        """(at 0, slope) of a line below it."""
        i = int(np.clip(np.searchsorted(self.x, at) - 1, 0, len(self.slopes) - 1))
        return float(self.y[i] - self.slopes[i] * self.x[i]), float(self.slopes[i])


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
