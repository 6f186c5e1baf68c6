"""The normal law truncated to (0, longest] that has a given mean and std after truncation.

With t = x / longest its density is proportional to exp(b t - a t**2) on (0, 1], a >= 0: an exponential family in which
nothing goes wrong when the parent normal lies far outside or is nearly flat (a = 0: the truncated exponential, and the
uniform at b = 0). At fixed a the mean rises with b; at fixed mean the variance falls with a, from the exponential's.
So a bracketed root in b inside one in a finds the pair. Integrals are Gauss-Legendre over the part that matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Floats = NDArray[np.float64]

LONGEST = 2**21  # tokens; twice the longest context of any model, and laws are arrays
DROP = 60.0  # density below e**-DROP of its peak is left out: 1e-26, below a double's resolution
FINEST_STD = 0.01  # tokens; a smaller one is a point mass written in a confusing way
NODES, WEIGHTS = np.polynomial.legendre.leggauss(96)  # on a drop of 60: error below 1e-14
CELL_NODES, CELL_WEIGHTS = np.polynomial.legendre.leggauss(8)  # on panels of 1/64 of that
PANELS = 64


class CannotTruncate(ValueError):
    """No truncated normal has these moments; the message says which are possible."""


@dataclass(frozen=True, slots=True)
class Tilt:
    """The density exp(b t - a t**2) on (0, 1], up to a constant."""

    a: float
    b: float

    @property
    def peak(self) -> float:
        """Where the density is largest."""
        if self.b <= 0:
            return 0.0
        return min(1.0, self.b / (2 * self.a)) if self.a > 0 else 1.0

    def log_density(self, t: Floats) -> Floats:
        """Logarithm of the density, 0 at the peak."""
        away = t - self.peak
        return (self._slope - self.a * away) * away

    @property
    def window(self) -> tuple[float, float]:
        """The interval outside which the density is below e**-DROP of its peak."""
        slope = abs(self._slope)
        reach = 2 * DROP / max(slope + math.sqrt(slope**2 + 4 * self.a * DROP), 1e-9)
        return max(0.0, self.peak - reach), min(1.0, self.peak + reach)

    @property
    def _slope(self) -> float:
        peak = self.peak
        return 0.0 if 0 < peak < 1 else self.b - 2 * self.a * peak

    def moments(self) -> tuple[float, float]:
        """Mean and variance of t."""
        low, high = self.window
        t = low + (high - low) * (NODES + 1) / 2
        weight = WEIGHTS * np.exp(self.log_density(t))
        mean = float(t @ weight / weight.sum())
        return mean, float((t - mean) ** 2 @ weight / weight.sum())


def largest_std(mean: float, longest: int) -> float:
    """The least upper bound of std over truncated normals on (0, longest] with this mean: the exponential's."""
    return longest * math.sqrt(_with_mean(0.0, mean / longest).moments()[1])


def problem(mean: float, std: float, longest: int) -> str | None:
    """Why no truncated normal on (0, longest] has this mean and std, or None."""
    if longest > LONGEST:
        return f"max {longest} is above {LONGEST:,} tokens, more than any context holds"
    if not 0 < mean < longest and not (std == 0 and mean == longest):
        return f"mean {mean:g} must lie between 0 and max {longest}"
    if not std >= 0:
        return f"std {std:g} must not be negative"
    if 0 < std < FINEST_STD:
        return f"std {std:g} is below {FINEST_STD} tokens; write 0 for a fixed length"
    if std > 0 and std > (limit := largest_std(mean, longest)) * (1 + 1e-9):
        return (
            f"no truncated normal on (0, {longest}] with mean {mean:g} has std {std:g}: after truncation std lies "
            f"between 0 and {limit:.1f}. Lower std, raise max, or give a histogram of the lengths"
        )
    return None


def moment_parent(mean: float, std: float, longest: int) -> tuple[float, float]:
    """Mean and std of the parent normal, before truncation; std infinite for an exponential or uniform law."""
    if reason := problem(mean, std, longest):
        raise CannotTruncate(reason)
    tilt = _solve(mean / longest, std / longest)
    if tilt.a == 0:
        return math.copysign(math.inf, tilt.b), math.inf
    return longest * tilt.b / (2 * tilt.a), longest / math.sqrt(2 * tilt.a)


def normal_cells(mean: float, std: float, longest: int) -> Floats:
    """P(k - 1 < X <= k) for k = 1.. up to the last cell that has mass; at most `longest` of them."""
    if reason := problem(mean, std, longest):
        raise CannotTruncate(reason)
    if std == 0:
        return np.append(np.zeros(math.ceil(mean) - 1), 1.0)
    return _cells(_solve(mean / longest, std / longest), longest)


def _with_mean(a: float, mean: float) -> Tilt:
    """The tilt of this `a` whose mean is `mean`, in (0, 1)."""

    def excess(b: float) -> float:
        return Tilt(a, b).moments()[0] - mean

    middle = 2 * a * mean
    step = 1 / min(mean, 1 - mean)  # the exponential's scale
    low = high = middle
    while excess(low) > 0:
        low, step = low - step, 2 * step
    while excess(high) < 0:
        high, step = high + step, 2 * step
    return Tilt(a, brentq(excess, low, high, xtol=1e-13, rtol=1e-14) if low < high else middle)


def _solve(mean: float, std: float) -> Tilt:
    """The tilt with these moments of t, known to exist."""

    def excess(log_a: float) -> float:
        variance = _with_mean(math.expm1(log_a), mean).moments()[1]
        return math.sqrt(variance) / std - 1

    # Truncation narrows, so the parent's variance 1 / (2 a) is at least std**2.
    high = math.log1p(1 / (2 * std**2) * (1 + 1e-9)) + 1e-9
    if excess(0.0) <= 0:  # the largest std itself, to rounding
        return _with_mean(0.0, mean)
    if excess(high) >= 0:  # narrow and far from both ends: the parent itself, to rounding
        return _with_mean(math.expm1(high), mean)
    return _with_mean(math.expm1(brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-14)), mean)


def _cells(tilt: Tilt, longest: int) -> Floats:
    low, high = (longest * end for end in tilt.window)
    first, last = math.floor(low), math.ceil(high)
    panels = math.ceil(PANELS / (high - low))  # a cell
    edges = np.clip(np.linspace(first, last, (last - first) * panels + 1), low, high)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (CELL_NODES + 1)
    mass = (np.exp(tilt.log_density(x / longest)) @ CELL_WEIGHTS) * half[:, 0]
    cells = np.zeros(last)
    cells[first:] = mass.reshape(-1, panels).sum(axis=1)
    return np.trim_zeros(cells / cells.sum(), "b")
