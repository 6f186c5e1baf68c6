"""What cycles of a workload hold, for every N_D: exact sums that bounds by lines are made of.

Of an answer of d iterations and of a cycle, per query encoded; for blocks of N_D, and by any range of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.windows import Windows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GROWTH = 1.15  # of N_D from block to block
ONE_STAGE, FILLED, UNFILLED = range(3)  # pipelines of one stage, of M >= P, of M < P


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """What a cycle of N_D iterations holds per query encoded, at least, by blocks of N_D; arrays alike."""

    first: Ints  # N_D from ..
    last: Ints  # .. to
    encodes: Ints  # q
    rounds_seen: Floats  # by an answer; (kinds of pipelines, blocks), as are the two below
    queries_seen: Floats  # sum of n over them
    context_seen: Floats
    context_held: Floats  # just after an encode
    fewest: Floats  # queries at a phase's end


class Cycles:
    """The phases of one workload, and of answers of one length."""

    def __init__(self, law: CompletionLaw, length: int) -> None:
        longest, d = max(1, law.longest), length - 1
        alive, context, _ = law.one_query(longest)
        self._alive = alive
        n = np.arange(1, longest + 1)
        encodes = np.maximum(1, -(-d // n))
        self._first, self._last = first, last = _blocks(longest)

        def seen(values: Floats) -> list[Windows]:
            """A query's values summed over an answer's rounds, for each kind of pipeline, by N_D."""
            sums = np.append(0.0, np.cumsum(values))
            at_ends = (encodes - 1) * np.array([values[each - 1 :: each].sum() for each in n])
            first = np.array([values[::each].sum() for each in n])
            whole = (encodes - 1) * sums[-1] + _folded(sums, n, d - (encodes - 1) * n)
            filled = np.maximum(whole - first, 0.0)
            unfilled = np.maximum(filled - at_ends, 0.0)
            return [Windows(each) for each in (whole, filled, unfilled)]

        rounds = (np.full(longest, d), np.full(longest, max(d - 1, 0)), np.maximum(d - encodes, 0))
        self._encodes = encodes
        self._rounds = [Windows(each.astype(np.float64)) for each in rounds]
        self._queries, self._context = seen(alive), seen(context)
        self._fewest = Windows(np.array([alive[each - 1 :: each].sum() for each in n]))
        context_held = np.array([context[::each].sum() for each in n])
        held = Windows(context_held)
        self._stay = np.array([alive[::each].sum() for each in n]).tolist()
        # of a longer N_D it may be more
        self._held_most = np.maximum.accumulate(context_held[::-1])[::-1].tolist()

        def least(values: Windows) -> Floats:
            return values.extremes(first - 1, last - 1)[0]

        self.phases = Phases(
            first=first,
            last=last,
            encodes=encodes[last - 1],
            rounds_seen=np.array([least(each) for each in self._rounds]),
            queries_seen=np.array([least(each) for each in self._queries]),
            context_seen=np.array([least(each) for each in self._context]),
            context_held=least(held),
            fewest=least(self._fewest),
        )

    def encodes(self, interval: int) -> int:
        """Q of an answer of the length."""
        return int(self._encodes[interval - 1])

    def seen(self, kind: int, n1: int, n2: int) -> tuple[float, float, float]:
        """(rounds, queries, context) that an answer meets at least with N_D in n1..n2, per query encoded."""
        rounds, queries, context = (
            each[kind].least(n1 - 1, n2 - 1)
            for each in (self._rounds, self._queries, self._context)
        )
        return rounds, queries, context

    def fewest(self, n1: int, n2: int) -> float:
        """Queries at a phase's end, per query encoded, at least."""
        return self._fewest.least(n1 - 1, n2 - 1)

    def largest(self, interval: int) -> tuple[float, float]:
        """(queries, context) just after an encode, per query encoded: no more with a longer N_D in the first."""
        return self._stay[interval - 1], self._held_most[interval - 1]

    def alone(self, size: float, interval: int) -> float:
        """Rounds of a phase in which one of the last `size` queries encoded is still there, at least."""
        sizes, busy = self._busy
        at = int(np.searchsorted(sizes, size, side="right")) - 1
        return 0.0 if at < 0 else float(busy[at, interval - 1])

    @cached_property
    def _busy(self) -> tuple[Floats, Floats]:
        """(sizes, rounds with anybody of the last encode's by N_D, for each size)."""
        sizes: Floats = np.exp2(np.arange(-4.0, 14.0))
        with np.errstate(divide="ignore"):
            log_dead = np.log1p(-self._alive)
        there = 1 - np.exp(sizes[:, None] * log_dead)
        return sizes, np.asarray(np.cumsum(there, axis=1))

    def rounds(self, sizes: Floats) -> Floats:
        """U at least, for micro-batches that `sizes` queries enter a cycle; the last axis is of the blocks."""
        grid, every = self._busy
        busy = every[:, self.phases.first - 1]
        at = np.clip(np.searchsorted(grid, sizes, side="right") - 1, 0, len(grid) - 1)
        alone = np.take_along_axis(busy, at.reshape(-1, busy.shape[1]), axis=0).reshape(sizes.shape)
        alone = np.where(sizes < grid[0], 0.0, alone)
        all_along = self.phases.first * (1 - np.exp(-sizes * self.phases.fewest))
        return np.asarray(np.maximum(alone, all_along))


def _folded(sums: Floats, n: Ints, rest: Ints) -> Floats:
    """The sum over u = 1..rest of sum_j f(jN + u), for each N, from the sums of f."""
    last = len(sums) - 1
    return np.array(
        [
            (sums[np.minimum(starts + r, last)] - sums[starts]).sum()
            for each, r in zip(n.tolist(), rest.tolist(), strict=True)
            for starts in [np.arange(0, last, each)]
        ]
    )


def _blocks(longest: int) -> tuple[Ints, Ints]:
    """(first, last) of blocks that cover 1..longest, narrow where N_D is small."""
    first = [1]
    while first[-1] < longest:
        first.append(max(first[-1] + 1, int(first[-1] * GROWTH)))
    first = [each for each in first if each <= longest]
    last = [each - 1 for each in first[1:]] + [longest]
    return np.array(first), np.array(last)
