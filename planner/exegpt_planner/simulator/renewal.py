"""How far a CRA pool's work in a window strays from its mean, as its slots are renewal processes.

A slot's life is e iterations to its encode's end and D of decode. It adds w0 + w1 I to a step when it is encoded and
a + c (I + j) in its j-th decode iteration. With R(h) the mean product of what one slot adds h iterations apart, from
the same life and from different ones (m: the mean h iterations after a renewal, from the renewal equation),

    Var(sum over H iterations) = H R(0) + 2 sum_h (H - h) R(h) - (H mean)**2     per slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from exegpt_planner.completion import CompletionLaw

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWork:
    """What one slot adds to the steps of its life, s."""

    per_encode: float  # w0
    per_prompt_token: float  # w1
    per_query: float  # a
    per_context: float  # c


class SlotProcess:
    """The renewal process of one slot; what does not depend on the work is computed once."""

    def __init__(self, law: CompletionLaw) -> None:
        self.law = law
        pmf = law.workload.output.pmf[1:]  # D = 0..longest
        d = np.arange(len(pmf), dtype=np.float64)
        first, second = law.workload.input_mean[1:], law.workload.input_square[1:]
        self._chance, self._input, self._square = pmf, pmf * first, pmf * second
        self._decodes_alive = _tails(pmf * d)  # E[D; D >= t]
        self._pairs = self._decode_pairs()

    def window_var(self, work: SlotWork, *, stay: float, iterations: int) -> float:
        """Variance of what one slot adds in a window, s**2."""
        H = max(1, iterations)
        same, mean = self._same_life(work, H), self._mean_life(work)
        life = stay + self.law.decode_mean
        product = (same + self._other_lives(work, stay, H)) / life
        weights = 2.0 * (H - np.arange(H))
        weights[0] = H
        return max(float(weights @ product) - (H * mean / life) ** 2, 0.0)

    def _decode_pairs(self) -> tuple[Floats, Floats, Floats]:
        """Coefficients of a*a, a*c, c*c in E[sum of products of decode work h iterations apart], for each h."""
        law = self.law
        t = np.arange(1, law.longest + 1, dtype=np.float64)
        alive, first, second = law.alive[1:], law.input_alive[1:], law.square_alive[1:]
        aa, ac, cc = (np.zeros(law.longest + 1) for _ in range(3))
        for h in range(law.longest):
            later, q, i, ii = t[h:], alive[h:], first[h:], second[h:]
            earlier = later - h
            aa[h] = q.sum()
            ac[h] = 2 * i.sum() + (earlier + later) @ q
            cc[h] = ii.sum() + (earlier + later) @ i + (earlier * later) @ q
        return aa, ac, cc

    def _same_life(self, work: SlotWork, H: int) -> Floats:
        a, c, w0, w1 = work.per_query, work.per_context, work.per_encode, work.per_prompt_token
        aa, ac, cc = self._pairs
        products = a * a * aa + a * c * ac + c * c * cc
        t = np.arange(1, self.law.longest + 1)
        decode = a + c * t
        alive, first, second = (
            tail[1:] for tail in (self.law.alive, self.law.input_alive, self.law.square_alive)
        )
        products[1:] += w0 * decode * alive + (w0 * c + w1 * decode) * first + w1 * c * second
        products[0] += (
            w0 * w0 + 2 * w0 * w1 * float(self._input.sum()) + w1 * w1 * float(self._square.sum())
        )
        return _fit(products, H)

    def _mean_life(self, work: SlotWork) -> float:
        return (
            work.per_encode
            + work.per_prompt_token * float(self._input.sum())
            + work.per_query * self.law.decode_mean
            + work.per_context * self.law.context_mean
        )

    def _other_lives(self, work: SlotWork, stay: float, H: int) -> Floats:
        """Mean products of work before a renewal and work after it, summed over a life, h iterations apart."""
        a, c = work.per_query, work.per_context
        longest = self.law.longest
        encode = work.per_encode * self._chance + work.per_prompt_token * self._input
        g = np.arange(1, longest + 1)
        before = np.zeros(longest + 2)  # by iterations g before the next renewal
        before[1 : longest + 1] = (a + c * (1 - g)) * self.law.alive[1:] + c * (
            self.law.input_alive[1:] + self._decodes_alive[1:]
        )
        before[1:] += encode  # at g = D + 1
        whole = int(stay)
        part = stay - whole
        t = np.arange(1, longest + 1)
        after = np.zeros(longest + 1)  # from the last iteration of the encode on
        after[0] = float(encode.sum())
        after[1:] = (a + c * t) * self.law.alive[1:] + c * self.law.input_alive[1:]
        life, first = np.zeros(H), np.zeros(H)
        for e, weight in ((whole, 1 - part), (whole + 1, part)):
            life += weight * _fit(np.append(np.zeros(e), self._chance), H)
            first += weight * _fit(np.append(np.zeros(e - 1), after), H)
        recursion = -life
        recursion[0] += 1.0
        mean = lfilter([1.0], recursion, first)
        return np.asarray(np.convolve(before, mean)[:H])


def _tails(values: Floats) -> Floats:
    return np.asarray(np.cumsum(values[::-1])[::-1])


def _fit(values: Floats, n: int) -> Floats:
    fitted = np.zeros(n)
    fitted[: min(n, len(values))] = values[:n]
    return fitted
