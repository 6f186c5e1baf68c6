"""Percentiles and exact binomial intervals of measured samples; pure functions.

A percentile is the smallest sample x with F(x) >= q, so it is always a value that occurred. The share of answers that
kept the bound comes with its Clopper-Pearson interval, which covers at least as often as it says for every n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betaincinv


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a sample is spread."""

    num: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of trials with its two-sided Clopper-Pearson interval."""

    num: int
    kept: int
    share: float
    low: float
    high: float


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value x with at least a share q of `values` at or below it; q in (0, 1]."""
    if not values:
        raise ValueError("no values to take a percentile of")
    rank = math.ceil(q * len(values) - 1e-9)  # 0.99 * 100 is 99.00000000000001 in floats
    return sorted(values)[max(rank, 1) - 1]


def summarise(values: Sequence[float]) -> Summary | None:
    """The spread of `values`; None when there are none."""
    if not values:
        return None
    return Summary(
        num=len(values),
        mean=math.fsum(values) / len(values),
        p50=percentile(values, 0.50),
        p90=percentile(values, 0.90),
        p99=percentile(values, 0.99),
    )


def clopper_pearson(kept: int, num: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a binomial share after `kept` successes in `num` trials."""
    if not 0 <= kept <= num or num == 0:
        raise ValueError(f"{kept} successes in {num} trials")
    tail = (1 - confidence) / 2
    low = 0.0 if kept == 0 else float(betaincinv(kept, num - kept + 1, tail))
    high = 1.0 if kept == num else float(betaincinv(kept + 1, num - kept, 1 - tail))
    return low, high


def share_within(values: Sequence[float], bound: float) -> Share | None:
    """The share of `values` at or below `bound`; None when there are none."""
    if not values:
        return None
    kept = sum(value <= bound for value in values)
    low, high = clopper_pearson(kept, len(values))
    return Share(num=len(values), kept=kept, share=kept / len(values), low=low, high=high)
