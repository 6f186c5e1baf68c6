"""What is promised of an answer of the bound's length: its high percentile, with the table's error counted in."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Self

from scipy.special import ndtri

KEPT = 0.99  # the share of such answers that keep the promise
KEPT_SDS = float(ndtri(KEPT))  # a normal law's 99th percentile, in sd


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be asked of a schedule at once; infinite where nothing is."""

    answer_s: float  # an answer of the bound's length
    all_answers_s: float = math.inf  # 99 % of all answers (the paper's SLA-(a))
    first_token_s: float = math.inf
    gap_s: float = math.inf  # the longest between two tokens of an answer
    token_s: float = math.inf  # a token after the first, mean over an answer of the bound's length
    arrivals_per_s: float = 0.0  # above 0: clocks start at arrival, and all must be served

    @property
    def reference_s(self) -> float:
        """The first finite limit, in whose terms all are held against each other; infinite if there is none."""
        limits = (
            self.answer_s,
            self.all_answers_s,
            self.first_token_s,
            self.gap_s,
            self.token_s,
        )
        finite = (limit for limit in limits if math.isfinite(limit))
        return next(finite, 1.0 if self.arrivals_per_s else math.inf)

    def scaled(self, factor: float) -> Limits:
        """Every time so many times as long."""
        names = (each.name for each in fields(self) if each.name != "arrivals_per_s")
        return replace(self, **{name: factor * getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """promised = (mean + sds sd) (1 + error)."""

    length: int  # tokens; s99 for a 99th percentile
    sds: float
    error: float  # relative error of the table, 95th percentile
    # what it is held against, so that a search may leave out what cannot keep it; None: not known
    bound_s: float | None = None
    limits: Limits | None = None  # None: nothing but the answer's latency is bounded

    @property
    def answer_s(self) -> float:
        """What whole answers must keep, as far as it is known; else infinite."""
        if self.limits is not None:
            return self.limits.answer_s
        return math.inf if self.bound_s is None else self.bound_s

    @classmethod
    def full(cls, *, length: int, error: float) -> Self:
        """The pool's fluctuation and the table's error counted in."""
        return cls(length=length, sds=KEPT_SDS, error=error)

    @classmethod
    def of_mean(cls, *, length: int) -> Self:
        """The paper's: the mean latency, as if nothing fluctuated and the table were exact."""
        return cls(length=length, sds=0.0, error=0.0)

    def promised_s(self, mean_s: float, sd_s: float) -> float:
        """What is held against the bound."""
        return (mean_s + self.sds * sd_s) * (1 + self.error)

    def at_least_s(self, mean_s: float) -> float:
        """A lower bound on what is promised, from one on the mean."""
        return mean_s * (1 + self.error)


def longest_of(number: int) -> float:
    """What a deviation counts for where the longest of so many alike must keep the promise."""
    return float(ndtri(KEPT ** (1 / number))) / KEPT_SDS
