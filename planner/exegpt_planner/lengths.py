"""Laws of lengths in tokens: truncated normal by moments, empirical, point masses.

A length is at least 1. Truncated normals follow paper.md's reading of the ExeGPT paper (Table 3): the moments are those
after truncation on (0, max], and L = ceil(X), so P(L = k) = F(k) - F(k - 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthLaw:
    """A law on 1..max. `pmf[k]` is P(length = k) tokens; pmf[0] = 0 and the last entry is positive."""

    pmf: Floats

    @property
    def max(self) -> int:
        """The longest length, tokens."""
        return len(self.pmf) - 1

    @property
    def mean(self) -> float:
        """Mean length, tokens."""
        return float(np.arange(len(self.pmf)) @ self.pmf)

    def quantile(self, q: float) -> int:
        """The smallest length k with P(length <= k) >= q."""
        return int(np.searchsorted(np.cumsum(self.pmf), q - 1e-12))
