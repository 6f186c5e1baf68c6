"""What is promised of an answer of the bound's length: its high percentile, with the table's error counted in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from scipy.special import ndtri

KEPT = 0.99  # the share of such answers that keep the promise
KEPT_SDS = float(ndtri(KEPT))  # a normal law's 99th percentile, in sd


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """promised = (mean + sds sd) (1 + error)."""

    length: int  # tokens; s99 for a 99th percentile
    sds: float
    error: float  # relative error of the table, 95th percentile

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
