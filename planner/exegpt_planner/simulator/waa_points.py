"""What WAA does at every point of a split: the table that its search looks things up in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Every schedule of some encode batches (rows) at pools from 1 on (columns)."""

    in_shape: Bools
    covered: Bools
    kv_tokens: Floats
    queries_per_s: Floats
    latency_s: Floats  # mean, of an answer of the bound's length
    latency_sd_s: Floats
