"""The joint law of a service's input and output lengths, in the form planning needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.lengths import LengthLaw

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Input and output lengths, tokens. Arrays are indexed by output length k = 0..output.max.

    `input_mean[k]` and `input_square[k]` are E[I | L = k] and E[I**2 | L = k]; under independence they are constant.
    Entries where P(L = k) = 0 are the overall means.
    """

    input: LengthLaw
    output: LengthLaw
    input_mean: Floats
    input_square: Floats
    source: str  # in words, e.g. "truncated normal", "trace of 7473 requests", "prior"
