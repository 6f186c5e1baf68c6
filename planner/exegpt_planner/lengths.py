"""Laws of lengths in tokens: truncated normal by moments, empirical, mixtures, point masses.

A length is at least 1. Truncated normals follow the reading of the ExeGPT paper's Table 3 under which all its printed
99th percentiles come out: mean and std are those of X after truncation on (0, max], and L = ceil(X), so
P(L = k) = F(k) - F(k - 1) and E[L] is about mean + 1/2. Moments that no truncated normal has are refused: at a given
mean the largest std is the truncated exponential's (the uniform's when the mean is max / 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.truncation import LONGEST, CannotTruncate, normal_cells

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthLaw:
    """A law on 1..max. `pmf[k]` is P(length = k) tokens; pmf[0] = 0 and the last entry is positive."""

    pmf: Floats

    def __post_init__(self) -> None:
        pmf = self.pmf
        problems = []
        if pmf.ndim != 1 or len(pmf) < 2 or pmf[0] != 0 or pmf[-1] <= 0:
            problems.append("pmf must have pmf[0] = 0 and a positive last entry")
        elif not (pmf >= 0).all() or abs(pmf.sum() - 1) > 1e-9:
            problems.append(f"pmf must not be negative and must sum to 1, not {pmf.sum():.12g}")
        if problems:
            raise InvalidSpec("length law", problems)

    @property
    def max(self) -> int:
        """The longest length, tokens."""
        return len(self.pmf) - 1

    @property
    def mean(self) -> float:
        """Mean length, tokens."""
        return float(np.arange(len(self.pmf)) @ self.pmf)

    @property
    def square(self) -> float:
        """E[length ** 2]."""
        return float(np.arange(len(self.pmf), dtype=np.float64) ** 2 @ self.pmf)

    @property
    def var(self) -> float:
        """Variance of the length."""
        return float((np.arange(len(self.pmf)) - self.mean) ** 2 @ self.pmf)

    @property
    def survival(self) -> Floats:
        """S[k] = P(length > k) for k = 0..max; S[0] = 1 and S[max] = 0. Sums to the mean."""
        return np.append(np.cumsum(self.pmf[:0:-1])[::-1], 0.0)

    def quantile(self, q: float) -> int:
        """The smallest length k with P(length <= k) >= q."""
        if not 0 < q <= 1:
            raise InvalidSpec("quantile", [f"q must lie in (0, 1], not {q:g}"])
        # Sums of a million terms err by less than 1e-12, and no percentile in use is finer.
        return int(np.searchsorted(np.cumsum(self.pmf), q - 1e-12))

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        """`n` independent lengths."""
        cumulative = np.cumsum(self.pmf)
        draws = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
        lengths: Ints = np.minimum(draws, self.max).astype(np.int64)
        return lengths


def truncated_normal(mean: float, std: float, longest: int) -> LengthLaw:
    """The law of ceil(X), X a normal truncated to (0, longest] that has this mean and std after truncation.

    std = 0 is the point mass at ceil(mean). Lengths less likely than e**-60 relative to the mode are left out, so the
    law's own `max` may be smaller.
    """
    try:
        cells = normal_cells(mean, std, longest)
    except CannotTruncate as error:
        raise InvalidSpec("lengths", [str(error)]) from None
    return LengthLaw(pmf=np.concatenate(([0.0], cells)))


def point(length: int) -> LengthLaw:
    """Always this length."""
    return from_histogram([length], [1])


def empirical(lengths: Sequence[int] | Ints) -> LengthLaw:
    """The law of one of these lengths, drawn at random."""
    return from_histogram(lengths, np.ones(len(lengths)))


def from_histogram(
    lengths: Sequence[int] | Ints, counts: Sequence[float] | Ints | Floats
) -> LengthLaw:
    """The law that gives each length a weight proportional to its count. Counts of equal lengths add up."""
    values, weights = np.asarray(lengths), np.asarray(counts, dtype=np.float64)
    problems = histogram_problems(values, weights)
    if problems:
        raise InvalidSpec("histogram", problems)
    pmf = np.bincount(values.astype(np.int64), weights=weights)
    pmf = np.trim_zeros(pmf, "b")
    return LengthLaw(pmf=pmf / pmf.sum())


def histogram_problems(lengths: NDArray[np.generic], counts: Floats) -> list[str]:
    """Everything that keeps these from being a histogram of lengths."""
    if lengths.ndim != 1 or lengths.shape != counts.shape:
        return [f"{lengths.size} lengths but {counts.size} counts"]
    if not lengths.size:
        return ["no lengths at all; give at least one"]
    problems = []
    if not np.issubdtype(lengths.dtype, np.integer) or not (
        1 <= lengths.min() <= lengths.max() <= LONGEST
    ):
        problems.append(f"lengths must be whole numbers from 1 to {LONGEST:,} tokens")
    if not np.isfinite(counts).all() or counts.min() < 0 or counts.sum() <= 0:
        problems.append("counts must be finite, not negative and not all 0")
    return problems


def mixture(a: LengthLaw, b: LengthLaw, share: float) -> LengthLaw:
    """`b` with probability `share`, else `a`."""
    if not 0 <= share <= 1:
        raise InvalidSpec("mixture", [f"share must lie in [0, 1], not {share:g}"])
    pmf = np.zeros(max(a.max, b.max) + 1)
    pmf[: a.max + 1] += (1 - share) * a.pmf
    pmf[: b.max + 1] += share * b.pmf
    return LengthLaw(pmf=np.trim_zeros(pmf, "b"))
