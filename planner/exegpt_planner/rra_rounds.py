"""What the rounds of an answer take at least, from bounds on each: what rra_bounds.py knows of a block of N_D.

Rounds of a phase do not rise, so any of them, begun anew every N <= N2 rounds, average at least their first N2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounds:
    """Lower bounds for u = 1, 2, ... of a phase; arrays alike."""

    round_s: Floats
    alone_s: Floats  # of it, what the slowest stage spends on the answer's own micro-batch
    others_s: Floats  # and on each of the others
    number: int  # M
    decodes: int  # d >= 1, rounds of the answer
    intervals: tuple[int, int]  # N1, N2

    @property
    def turns(self) -> int:
        """Encodes after the answer's own, at least."""
        return -(-self.decodes // self.intervals[1]) - 1

    @property
    def most_turns(self) -> int:
        """And at most."""
        return -(-self.decodes // self.intervals[0]) - 1

    def on_one_stage(self, turn_s: float) -> float:
        """P = M = 1."""
        total_s = self.decodes * _average(self.round_s)
        if self._is_exact:
            total_s = float(np.resize(self.round_s, self.decodes).sum())
        return self.turns * turn_s + total_s

    def where_filled(self, turn_s: float, spread_s: float) -> float:
        """M >= P; a turn is M t_e at least, and with its first round w_e + (M - 1) t_e + t (`spread_s` without t).

        The clock starts with the own micro-batch, half of the others before it, which close up as they decode.
        """
        d = self.decodes
        first_s = float(self.alone_s[0]) + self._before * float(self.others_s[0])
        if self._is_exact:
            rounds_s, alone_s = np.resize(self.round_s, d), np.resize(self.alone_s, d)
            again = np.arange(
                self.intervals[1], d, self.intervals[1]
            )  # rounds after another encode
            total_s = float(rounds_s[1:].sum())
            less_s = float((rounds_s - alone_s)[again].sum())
        else:
            each_s = _average(self.round_s[1:])
            total_s, less_s = (d - 1) * each_s, self.most_turns * each_s
        by_turn = self.turns * turn_s + total_s
        return first_s + max(by_turn, self.turns * spread_s + total_s - less_s)

    def where_unfilled(self, turn_s: float) -> float:
        """M < P: the last round of each full phase overlaps with the encode after it, and does not count."""
        d, interval = self.decodes, self.intervals[1]
        first_s = float(self.round_s[0]) * (1 - self._before / self.number)
        if self._is_exact:
            t = np.arange(1, d)
            counted = t[((t + 1) % interval != 0) | (t >= self.turns * interval)]
            later_s = float(np.resize(self.round_s, d)[counted].sum())
        else:
            later_s = max(0, d - 1 - self.most_turns) * _average(self.round_s[1:])
        return self.turns * turn_s + first_s + later_s

    @property
    def _before(self) -> float:
        return (self.number - 1) / 2

    @property
    def _is_exact(self) -> bool:
        return self.intervals[0] == self.intervals[1]


def _average(times: Floats) -> float:
    return float(np.minimum.accumulate(times).mean()) if times.size else 0.0
