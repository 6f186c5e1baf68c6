"""The decode pool: every query whose prompt is encoded, a row of arrays each, so that bookkeeping is vectorised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from exegpt_runner.sampler import Bools, Ints, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A query that joins the pool."""

    query: int
    sampling: Sampling
    length: int  # KV tokens it holds
    num_generated: int
    token: int = 0  # its latest token, whose KV is not yet computed


def _ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Pool:
    """Row i of every array belongs to query `ids[i]`."""

    ids: list[int] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    lengths: Ints = field(default_factory=_ints)
    num_generated: Ints = field(default_factory=_ints)
    tokens: Ints = field(default_factory=_ints)
    ended: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.ids)

    def join(self, queries: Iterable[Encoded]) -> None:
        """Appends `queries`."""
        queries = list(queries)
        self.ids += [each.query for each in queries]
        self.samplings += [each.sampling for each in queries]
        self.lengths = _append(self.lengths, [each.length for each in queries])
        self.num_generated = _append(self.num_generated, [each.num_generated for each in queries])
        self.tokens = _append(self.tokens, [each.token for each in queries])
        self.ended = np.concatenate((self.ended, np.zeros(len(queries), np.bool_)))

    def keep(self, mask: Bools) -> None:
        """Drops the rows where `mask` is false."""
        self.ids = [each for each, kept in zip(self.ids, mask, strict=True) if kept]
        self.samplings = [each for each, kept in zip(self.samplings, mask, strict=True) if kept]
        self.lengths = self.lengths[mask]
        self.num_generated = self.num_generated[mask]
        self.tokens = self.tokens[mask]
        self.ended = self.ended[mask]


def _append(array: Ints, values: list[int]) -> Ints:
    return np.concatenate((array, np.array(values, np.int64)))
