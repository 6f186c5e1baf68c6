"""How far a CRA pool's work in a window strays from its mean, as its slots are renewal processes.

A slot's life is e iterations to its encode's end and D of decode. It adds w0 + w1 I to a step when it is encoded and
a + c (I + j) in its j-th decode iteration. With R(h) the mean product of what one slot adds h iterations apart, from
the same life and from different ones (m: the mean h iterations after a renewal, from the renewal equation),

    Var(sum over H iterations) = H R(0) + 2 sum_h (H - h) R(h) - (H mean)**2     per slot.

Products of one life are tails of the law of D, summed once. Of different lives, only the weighted sum is wanted: in
generating functions, with `before` the work by iterations to a renewal and `after` that from it on, it is one
coefficient, of z**(H - 1) in before(z) after(z) / (1 - life(z)) / (1 - z)**2, read off a circle inside the unit one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len

from exegpt_planner.completion import CompletionLaw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Complexes = NDArray[np.complex128]

ALIASED = 1e-11  # of what is beyond the circle's points, folded back


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotWork:
    """What one slot adds to the steps of its life, s; of one pool or of several."""

    per_encode: Floats | float  # w0
    per_prompt_token: Floats | float  # w1
    per_query: Floats | float  # a
    per_context: Floats | float  # c

    def columns(self) -> Floats:
        """(pools, 4)."""
        parts = (self.per_encode, self.per_prompt_token, self.per_query, self.per_context)
        return np.stack([np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in parts], -1)


class SlotProcess:
    """The renewal process of one slot; what does not depend on the work is computed once."""

    def __init__(self, law: CompletionLaw) -> None:
        self.law = law
        pmf = law.workload.output.pmf[1:]  # D = 0..longest
        d = np.arange(len(pmf), dtype=np.float64)
        first, second = law.workload.input_mean[1:], law.workload.input_square[1:]
        self._chance, self._input, self._square = pmf, pmf * first, pmf * second
        self._decodes_alive = _tails(pmf * d)  # E[D; D >= t]
        self._same = self._same_life()
        self._before, self._after = self._around()
        self._circles: dict[int, _Circle] = {}

    def window_var(self, work: SlotWork, *, stay: float, iterations: int) -> float:
        """Variance of what one slot adds in a window, s**2."""
        stays, windows = np.array([stay]), np.array([iterations])
        return float(self.window_vars(work, stay=stays, iterations=windows)[0])

    def window_vars(self, work: SlotWork, *, stay: Floats, iterations: Ints) -> Floats:
        """The same of several pools, elementwise."""
        H, w = np.maximum(1, iterations), work.columns()
        life = stay + self.law.decode_mean
        last = np.minimum(H, self._same.shape[-1]) - 1
        beyond = H - 1 - last  # iterations in which nothing is left of a life
        sums, totals = self._same[0][:, :, last], self._same[1][:, :, last]
        same = np.einsum("pi,ijp,pj->p", w, sums + beyond * totals, w)
        mean = w @ self._after.sum(axis=1)
        var = (same + self._other_lives(w, stay, H)) / life - (H * mean / life) ** 2
        return np.asarray(np.maximum(var, 0.0))

    def _same_life(self) -> Floats:
        """Of products of one life h iterations apart, weighted H at h = 0 and 2 (H - h): (sums, their growth) by H - 1.

        By works (w0, w1, a, c); symmetric.
        """
        law, n = self.law, self.law.longest + 1
        t = np.arange(1.0, n)
        alive, first, second = law.alive[1:], law.input_alive[1:], law.square_alive[1:]
        h = np.arange(n)
        p = np.zeros((4, 4, n))
        q, tq, ttq, i, ti, ii = (
            np.append(_tails(each), 0.0)  # over t > h
            for each in (alive, t * alive, t * t * alive, first, t * first, second)
        )
        p[2, 2] = q
        p[2, 3] = i + tq - h * q / 2
        p[3, 3] = ii + 2 * ti - h * i + ttq - h * tq
        p[0, 2, 1:], p[0, 3, 1:] = alive / 2, (t * alive + first) / 2
        p[1, 2, 1:], p[1, 3, 1:] = first / 2, (t * first + second) / 2
        p[0, 0, 0], p[1, 1, 0] = self._chance.sum(), self._square.sum()
        p[0, 1, 0] = self._input.sum()
        p = np.maximum(p, p.transpose(1, 0, 2))
        growth = 2 * np.cumsum(p, axis=-1) - p[..., :1]
        return np.stack([np.cumsum(growth, axis=-1), growth])

    def _around(self) -> tuple[Floats, Floats]:
        """(work by iterations g before the next renewal, from the last iteration of the encode on), (works, g)."""
        law, longest = self.law, self.law.longest
        before, after = np.zeros((4, longest + 2)), np.zeros((4, longest + 1))
        g = np.arange(1.0, longest + 1)
        alive, inputs = law.alive[1:], law.input_alive[1:]
        before[0, 1:], before[1, 1:] = self._chance, self._input  # at g = D + 1
        before[2, 1:-1] = alive
        before[3, 1:-1] = (1 - g) * alive + inputs + self._decodes_alive[1:]
        after[0, 0], after[1, 0] = self._chance.sum(), self._input.sum()
        after[2, 1:], after[3, 1:] = alive, g * alive + inputs
        return before, after

    def _other_lives(self, works: Floats, stay: Floats, H: Ints) -> Floats:
        """Sums of mean products of work before a renewal and work after it, over a life, weighted 2 (H - h)."""
        circle = self._circle(int(H.max()))
        stays, at = np.unique(stay, return_inverse=True)
        whole = np.floor(stays)
        part = (stays - whole)[:, None]
        encode = circle.powers(whole - 1) * (1 - part + part * circle.z)
        renewal = encode / (1 - encode * circle.z * circle.life)  # (stays, points)
        sums = np.empty(len(stay))
        for window in np.unique(H):
            those = np.flatnonzero(window == H)
            by_works = circle.coefficients(renewal, int(window) - 1)[at[those]]
            sums[those] = 2 * np.einsum("pi,pij,pj->p", works[those], by_works, works[those])
        return sums

    def _circle(self, H: int) -> _Circle:
        size = next_fast_len(2 * H + 2, real=True)
        found = self._circles.get(size)
        if found is None:
            found = self._circles[size] = _Circle(size, self._chance, self._before, self._after)
        return found


@lru_cache(maxsize=8)
def slots_of(law: CompletionLaw) -> SlotProcess:
    """The law's, made once."""
    return SlotProcess(law)


class _Circle:
    """Points z of a circle of radius below 1, and what generating functions are there, up to half as many terms."""

    def __init__(self, size: int, chance: Floats, before: Floats, after: Floats) -> None:
        self._size = size
        self._log_z = np.log(ALIASED) / size - 2j * np.pi * np.arange(size // 2 + 1) / size
        self.z = np.exp(self._log_z)
        self.life, self.before, self.after = (self._at(each) for each in (chance, before, after))
        self._weights = np.full(len(self.z), 2.0 / size)  # of a point and its conjugate
        self._weights[0] = 1.0 / size
        if size % 2 == 0:
            self._weights[-1] = 1.0 / size

    def _at(self, terms: Floats) -> Complexes:
        terms = terms[..., : self._size]
        scale = np.exp(np.log(ALIASED) / self._size * np.arange(terms.shape[-1]))
        return np.asarray(np.fft.rfft(terms * scale, self._size))

    def powers(self, exponents: Floats) -> Complexes:
        """The points to each of these; (exponents, points)."""
        distinct, index = np.unique(exponents, return_inverse=True)
        return np.asarray(np.exp(distinct[:, None] * self._log_z)[index])

    def coefficients(self, renewal: Complexes, n: int) -> Floats:
        """The n-th of before(z) after(z) / (1 - z)**2 times functions of these values, (functions, works, works)."""
        kernel = self._weights * np.exp(-n * self._log_z) / (1 - self.z) ** 2
        pairs = (self.before[:, None] * self.after * kernel).reshape(16, -1)
        return np.asarray((renewal @ pairs.T).real.reshape(-1, 4, 4))


def _tails(values: Floats) -> Floats:
    return np.asarray(np.cumsum(values[::-1])[::-1])
