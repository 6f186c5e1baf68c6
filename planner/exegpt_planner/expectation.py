"""Expectations of piecewise linear curves under a normal law, and bounds on them.

A curve is written as a line plus hinges, f(x) = at_zero + slope x + sum_i change_i (x - knot_i)+, so that

    E[f(X)] = at_zero + slope m + sum_i change_i E[(X - knot_i)+],   E[(X - k)+] = d Phi(d/s) + s phi(d/s),  d = m - k

is closed, and exact for an affine curve whatever the law. E[(X - k)+] rises in m and in s, from which the interval
bounds follow without any assumption on the curve. Refuses nothing: staying inside a curve's `limit` is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from exegpt_planner.profile_table import Curve

Floats = NDArray[np.float64]

TINY = 1e-12  # a standard deviation of zero, without a special case: hinges are then exact to 1e-12


def hinge(distance: ArrayLike, sd: ArrayLike) -> Floats:
    """E[(distance + sd Z)+] for a standard normal Z."""
    d = np.asarray(distance, dtype=np.float64)
    s = np.maximum(sd, TINY)
    z = d / s
    return np.asarray(d * ndtr(z) + s * _density(z))


def _density(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z * z) * 0.3989422804014327)  # 1 / sqrt(2 pi)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hinges:
    """A piecewise linear curve on [0, limit], extended beyond both ends by lines (not downwards at the right one)."""

    at_zero: float
    slope: float  # left of the first knot
    knots: Floats
    changes: Floats  # of slope, at each knot
    limit: float  # measured up to here

    @property
    def last_slope(self) -> float:
        """The slope beyond the last knot."""
        return self.slope + float(self.changes.sum())

    @property
    def least_slope(self) -> float:
        """The least slope anywhere."""
        return self.slope + float(np.minimum.accumulate(np.append(0.0, self.changes.cumsum()))[-1])

    @classmethod
    def through(cls, x: Floats, y: Floats) -> Self:
        """The curve through the points (x, y), x[0] = 0 and rising."""
        slopes = np.diff(y) / np.diff(x)
        end = max(slopes[-1], 0.0)  # what goes on falling beyond the last knot would turn negative
        changes = np.diff(np.append(slopes, end))
        bends = changes != 0
        return cls(
            at_zero=float(y[0]),
            slope=float(slopes[0]),
            knots=x[1:][bends],
            changes=changes[bends],
            limit=float(x[-1]),
        )

    def __call__(self, x: ArrayLike) -> Floats:
        """Seconds at `x`."""
        at = np.asarray(x, dtype=np.float64)
        return np.asarray(
            self.at_zero
            + self.slope * at
            + np.maximum(at[..., None] - self.knots, 0.0) @ self.changes
        )

    def mean(self, mean: Floats, sd: Floats) -> Floats:
        """E[f(X)] elementwise for X with these means and standard deviations."""
        hinges = hinge(mean[..., None] - self.knots, sd[..., None])
        return np.asarray(self.at_zero + self.slope * mean + hinges @ self.changes)

    def slope_mean(self, mean: Floats, sd: Floats) -> Floats:
        """The derivative of E[f(X)] by the mean, elementwise: the slope that a small fluctuation meets."""
        z = (mean[..., None] - self.knots) / np.maximum(sd[..., None], TINY)
        return np.asarray(self.slope + ndtr(z) @ self.changes)

    def slope_at_least(self, mean: Floats, sd_min: Floats, sd_max: Floats) -> Floats:
        """A lower bound on `slope_mean` over all sd in [sd_min, sd_max] and all larger means, not below 0."""
        distance = mean[..., None] - self.knots
        up = self.changes > 0
        sds = np.where(distance > 0, sd_max[..., None], sd_min[..., None])
        chance = ndtr(distance[..., up] / np.maximum(sds[..., up], TINY))
        least = self.slope + chance @ self.changes[up] + float(self.changes[~up].sum())
        return np.asarray(np.maximum(least, 0.0))

    def mean_at_least(self, mean: Floats, sd_min: Floats, sd_max: Floats) -> Floats:
        """A lower bound on E[f(X)] over all sd in [sd_min, sd_max] and, if f does not fall, over all larger means."""
        distance = mean[..., None] - self.knots
        up = self.changes > 0
        low = hinge(distance[..., up], sd_min[..., None]) @ self.changes[up]
        high = hinge(distance[..., ~up], sd_max[..., None]) @ self.changes[~up]
        return np.asarray(self.at_zero + self.slope * mean + low + high)

    def points(self) -> tuple[Floats, Floats]:
        """The curve's corners on [0, limit]."""
        x = np.unique(np.concatenate([[0.0], self.knots[self.knots < self.limit], [self.limit]]))
        return x, self(x)

    def floor(self) -> Hinges:
        """The largest curve that does not fall and nowhere exceeds this one, on the whole line."""
        x, y = _suffix_minimum(*self.points())
        floor = Hinges.through(x, y)
        if self.slope <= floor.slope:
            return floor
        # left of 0 this curve falls away by its own slope; the floor must stay below it there too
        return Hinges(
            at_zero=floor.at_zero,
            slope=self.slope,
            knots=np.concatenate([[0.0], floor.knots]),
            changes=np.concatenate([[floor.slope - self.slope], floor.changes]),
            limit=floor.limit,
        )

    def lines(self) -> tuple[Floats, Floats]:
        """(intercepts, slopes) of lines of intercept >= 0 below the curve on [0, limit], the best at each x."""
        hull = _lower_hull(*self.points())
        x, y = np.array(hull).T
        slopes = np.diff(y) / np.diff(x)
        intercepts = y[1:] - slopes * x[1:]
        ray = float(np.min(y[1:] / x[1:]))  # the steepest line through the origin
        keep = intercepts >= 0
        return np.append(intercepts[keep], 0.0), np.append(slopes[keep], min(ray, np.inf))

    def lines_everywhere(self) -> tuple[Floats, Floats]:
        """(intercepts, slopes) of lines below the curve on the whole line, none falling; or the axis alone."""
        if self.last_slope < self.slope:
            return np.zeros(1), np.zeros(1)
        x, y = np.append(0.0, self.knots), np.append(self.at_zero, self(self.knots))
        least = max(self.slope, 0.0)
        inner = np.append(least, self.slope + np.cumsum(self.changes))
        slopes = np.unique(np.clip(inner, least, max(least, self.last_slope)))
        return (y - slopes[:, None] * x).min(axis=1), slopes

    def minorant(self) -> tuple[Floats, Floats]:
        """(intercepts, slopes) of lines of intercept >= 0 below the curve on the whole line, the best at each x >= 0.

        None falls; where the curve ends flatter than it begins, the axis alone.
        """
        if self.last_slope < self.slope:
            return np.zeros(1), np.zeros(1)
        x, y = np.append(0.0, self.knots), np.append(self.at_zero, self(self.knots))
        hull = np.array(_lower_hull(x, y))
        chords = np.diff(hull[:, 1]) / np.diff(hull[:, 0])
        least = max(self.slope, 0.0)
        ends = np.array([least, max(least, self.last_slope)])
        slopes = np.unique(np.clip(np.append(chords, ends), *ends))
        intercepts = (y - slopes[:, None] * x).min(axis=1)
        ray = float(
            np.min(y[1:] / x[1:], initial=self.last_slope)
        )  # the steepest through the origin
        keep = intercepts >= 0
        return np.append(intercepts[keep], 0.0), np.append(
            slopes[keep], ray if ray >= self.slope else 0.0
        )


def add(parts: Sequence[tuple[float, Curve]]) -> Hinges:
    """The weighted sum of curves, up to the least of their last knots."""
    limit = min(curve.x[-1] for _, curve in parts)
    x = np.unique(np.concatenate([np.array(curve.x) for _, curve in parts]))
    x = x[x <= limit]
    y = sum(weight * np.interp(x, curve.x, curve.seconds) for weight, curve in parts)
    return Hinges.through(x, np.asarray(y, dtype=np.float64))


def on_counts(curve: Hinges) -> Hinges:
    """The curve with its piece beyond 1 extended back to 0.

    A count is never between 0 and 1, so the two agree at every whole number but 0, where a step does not happen. What
    a first query costs over and above a further one thereby is a fixed cost, and a curve that is affine from 1 on is
    averaged exactly.
    """
    x, y = curve.points()
    beyond = x[x > 1]
    if beyond.size == 0:
        return curve
    one = float(curve(1.0))
    second = float(curve(beyond[0]))
    start = one - (second - one) / (beyond[0] - 1)
    if start < 0:
        return curve
    return Hinges.through(np.append(0.0, beyond), np.append(start, y[x > 1]))


def _suffix_minimum(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Corners of min over x' >= x of the curve through (x, y)."""
    lowest = float(y[-1])
    corners = [(float(x[-1]), lowest)]
    for i in range(len(x) - 2, -1, -1):
        if y[i] < lowest:
            rise = (lowest - y[i]) / (y[i + 1] - y[i])
            if rise < 1:  # the curve goes above what it comes down to later
                corners.append((float(x[i] + rise * (x[i + 1] - x[i])), lowest))
            lowest = float(y[i])
        corners.append((float(x[i]), lowest))
    corners.sort()
    distinct = [p for i, p in enumerate(corners) if i == 0 or p[0] - corners[i - 1][0] > 0]
    return np.array([p[0] for p in distinct]), np.array([p[1] for p in distinct])


def _lower_hull(x: Floats, y: Floats) -> list[tuple[float, float]]:
    """Corners of the greatest convex curve below the points."""
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(hull) >= 2 and _cross(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def _cross(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
