"""Laws of lengths fitted to some requests, and how far they are from others.

Every law is of L = ceil(X) on 1..longest, P(L = k) = F(k) - F(k - 1), made to sum to 1 there. Fits are by maximum
likelihood, X taken half a token below L; but for the truncated normal's, it is that of the law before the cut.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, ndtr, polygamma, psi

from exegpt_planner.lengths import LengthLaw, empirical, truncated_normal
from exegpt_planner.truncation import largest_std

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 200  # of expectation and maximisation
STEADY = 1e-9  # relative change of the likelihood at which they end


def ks_distance(law: LengthLaw, lengths: Ints) -> float:
    """The largest distance of the two cumulative laws."""
    seen = np.bincount(lengths, minlength=len(law.pmf)).astype(np.float64)
    pmf = np.zeros(len(seen))
    pmf[: len(law.pmf)] = law.pmf
    return float(np.abs(np.cumsum(pmf) - np.cumsum(seen) / len(lengths)).max())


def of_cdf(cdf: Callable[[Floats], Floats], longest: int) -> LengthLaw:
    """The law of ceil(X) for X of this law, given that it is at most `longest`."""
    cells = np.maximum(np.diff(cdf(np.arange(longest + 1, dtype=np.float64))), 0.0)
    cells = np.trim_zeros(cells, "b")
    return LengthLaw(pmf=np.append(0.0, cells / cells.sum()))


def log_normal(lengths: Ints, longest: int) -> LengthLaw:
    logs = np.log(_inside(lengths))
    mean, std = float(logs.mean()), max(float(logs.std()), 1e-6)
    return of_cdf(lambda x: _log_normal_cdf(x, mean, std), longest)


def gamma(lengths: Ints, longest: int) -> LengthLaw:
    """Newton's iteration for the shape, from Minka's start."""
    x = _inside(lengths)
    gap = np.log(x.mean()) - np.log(x).mean()
    if gap <= 0:
        return empirical(lengths)  # all alike
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(20):
        shape -= (np.log(shape) - psi(shape) - gap) / (1 / shape - polygamma(1, shape))
    scale = x.mean() / shape
    return of_cdf(lambda at: gammainc(shape, at / scale), longest)


def two_log_normals(lengths: Ints, longest: int) -> LengthLaw:
    """A mixture of two, by expectation and maximisation from the halves below and above the median."""
    logs = np.log(_inside(lengths))
    is_above = (logs > np.median(logs)).astype(np.float64)
    weights = np.stack([1 - is_above, is_above])
    last = -np.inf
    for _ in range(ROUNDS):
        shares = np.maximum(weights.mean(axis=1), 1e-12)
        means = weights @ logs / np.maximum(weights.sum(axis=1), 1e-12)
        vars_ = (weights * (logs - means[:, None]) ** 2).sum(axis=1) / np.maximum(
            weights.sum(axis=1), 1e-12
        )
        stds = np.sqrt(np.maximum(vars_, 1e-4))
        z = (logs - means[:, None]) / stds[:, None]
        density = shares[:, None] * np.exp(-0.5 * z**2) / stds[:, None]
        total = np.maximum(density.sum(axis=0), 1e-300)
        weights = density / total
        likelihood = float(np.log(total).mean())
        if abs(likelihood - last) < STEADY * abs(likelihood):
            break
        last = likelihood

    def cdf(x: Floats) -> Floats:
        parts = [_log_normal_cdf(x, m, s) for m, s in zip(means, stds, strict=True)]
        return np.asarray(shares @ np.array(parts) / shares.sum())

    return of_cdf(cdf, longest)


def normal(lengths: Ints, longest: int) -> LengthLaw:
    """The paper's: a normal truncated to (0, longest].

    Likeliest is the one of the lengths' own mean and std; where they spread more than any has, its limit of that mean,
    the truncated exponential.
    """
    x = _inside(lengths)
    mean, std = float(x.mean()), float(x.std())
    return truncated_normal(mean, min(std, largest_std(mean, longest)), longest)


def of_lengths(lengths: Ints, longest: int) -> LengthLaw:
    """The lengths themselves; `longest` is not needed."""
    assert lengths.max() <= longest, (lengths.max(), longest)
    return empirical(lengths)


FITS: dict[str, Callable[[Ints, int], LengthLaw]] = {
    "empirical": of_lengths,
    "truncated normal": normal,
    "log-normal": log_normal,
    "gamma": gamma,
    "two log-normals": two_log_normals,
}


def _inside(lengths: Ints) -> Floats:
    """X whose ceiling is L: half a token below, where its cell's middle is."""
    return np.asarray(lengths - 0.5, dtype=np.float64)


def _log_normal_cdf(x: Floats, mean: float, std: float) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(ndtr((np.log(x) - mean) / std))
