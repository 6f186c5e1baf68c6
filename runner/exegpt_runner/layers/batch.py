"""One iteration's rows, packed: decode queries first, one row each, then encode chunks, one after another.

Every layer works on all rows at once, except attention, which takes each query's own keys and values; so a step costs
the sum of tokens and of contexts, never the number of queries times the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """A run of one prompt's tokens: rows `first` to `first + num_tokens`, attending to `start` tokens before them."""

    first: int
    num_tokens: int
    kv_start: int  # where the query's extent begins in the arena
    start: int  # position of the chunk's first token

    @property
    def pairs(self) -> float:
        """Query-key pairs attended."""
        return self.num_tokens * (self.start + (self.num_tokens + 1) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of an iteration. `kv_starts` and `contexts` are of the decode queries, the new token included."""

    tokens: Tensor  # (T,) int64
    positions: Tensor  # (T,) int64
    slots: Tensor  # (T,) int64: where in the arena the rows' keys and values go
    kv_starts: Ints
    contexts: Ints
    chunks: tuple[ChunkRows, ...] = ()
