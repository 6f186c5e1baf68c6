"""The stationary law of CRA's encode queue for one pool and chunk, by FFT on a grid of tokens.

Each of `slots` slots frees with chance rho an iteration, so A = Binomial(slots, rho) prompts arrive, and the tokens
waiting follow W' = (W + A - C)+. W's law is that of the maximum of a random walk: by Spitzer's identity its transform
is exp(sum_k>0 c_k (z^k - 1)), c_k = sum_n P(S_n = k) / n the coefficients of -log(1 - E z^(A - C)). Under a light
load a few steps from an empty queue are cheaper. Tokens are lumped as far as prompts, C and the span allow; the lumped
lengths keep their mean, and what lumping does to the number of chunks of a prompt that never waits is taken off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import fft
from numpy.typing import NDArray
from scipy.fft import next_fast_len

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

TAIL = 10  # the grid reaches this many decay lengths: e**-10 of the law is left out
FINEST = 256  # grid points beyond which tokens are lumped,
CHUNK_UNITS = 16  # but C keeps this many
PROMPT_UNITS = 8  # and the mean prompt this many
MOST_STEPS = 60
CALLS = 500  # grid points that take as long as the calls of a step from an empty queue
SPITZER_STEPS = 2.5  # steps that take as long as Spitzer's identity on the same grid


class Prompts:
    """A law of prompt lengths, for one C."""

    def __init__(self, pmf: Floats, chunk: int) -> None:
        self.pmf, self.chunk = pmf, chunk
        tokens = np.arange(len(pmf), dtype=np.float64)
        self.mean = float(tokens @ pmf)
        self._heavy = float(tokens**2 @ pmf) / self.mean  # tokens of a prompt met at random
        self.common = int(np.gcd.reduce(np.append(np.flatnonzero(pmf), chunk)))
        self._grids: dict[tuple[int, int], Grid] = {}

    def grid(self, rate: float) -> tuple[Grid, int]:
        """(the grid for this many prompts an iteration, steps from an empty queue to the law; 0: Spitzer)."""
        arriving = rate * self.mean
        load = min(arriving / self.chunk, 0.98)
        reach = TAIL * load * self._heavy / (2 * (1 - load))
        reach += 2 * (self.chunk + len(self.pmf)) + arriving
        # From an empty queue, what n steps have not seen of the law is about exp(-n decay).
        decay = self.chunk / self._heavy * (np.log(1 / load) - (1 - load))
        num_steps = int(np.ceil(TAIL / decay))
        if num_steps <= 2 * SPITZER_STEPS or self._forgotten < 1e-6:
            return self._grid(reach), num_steps
        # Below 0, the walk's c_k fall only as it forgets its position within C tokens.
        span = max(reach, self.chunk * TAIL / (rate * self._forgotten))
        cost = num_steps * (CALLS + self._shape(reach)[1])
        if num_steps > MOST_STEPS or cost > SPITZER_STEPS * (2 * CALLS + self._shape(span)[1]):
            return self._grid(span), 0
        return self._grid(reach), num_steps

    @cached_property
    def _forgotten(self) -> float:
        """How much of its position within C tokens the walk forgets with a prompt."""
        pmf, period = self.pmf[:: self.common], self.chunk // self.common
        folded = np.bincount(np.arange(len(pmf)) % period, weights=pmf)
        return 1 - float(fft.fft(folded, period)[1:].real.max(initial=0.0))

    def _grid(self, span: float) -> Grid:
        shape = self._shape(span)
        found = self._grids.get(shape)
        if found is None:
            found = self._grids[shape] = Grid(self, *shape)
        return found

    def _shape(self, span: float) -> tuple[int, int]:
        """(unit, number of points)."""
        unit = self._unit(span)
        return unit, 1 << int(np.ceil(np.log2(2 * span / unit)))

    def _unit(self, span: float) -> int:
        unit, chunk = self.common, self.chunk
        while (
            span / unit > FINEST
            and chunk % (2 * unit) == 0
            and chunk >= 2 * unit * CHUNK_UNITS
            and self.mean >= 2 * unit * PROMPT_UNITS
        ):
            unit *= 2
        return unit


class Grid:
    """Token counts in units, and the transforms of laws on them."""

    def __init__(self, prompts: Prompts, unit: int, size: int) -> None:
        self.unit, self.size = unit, size
        self.prompts, self.chunk = lump(prompts.pmf, unit), prompts.chunk // unit
        self.mean = prompts.mean / unit
        self.prompt_hat = fft.rfft(self.prompts, size)
        angle = 2j * np.pi * np.arange(size // 2 + 1) / size
        self.served_hat = np.exp(angle * self.chunk)  # the transform of -C
        drift_hat = 1 - np.exp(angle)  # has the same zero at angle 0 as 1 - E z^(A - C)
        drift_hat[0] = 1.0
        self.per_drift = 1 / drift_hat
        # of what is lumped into a point, the share beyond it: half, but for what is there itself
        self.beyond = (1 - prompts.common / unit) / 2
        self.alone = self.num_chunks(self.prompts)
        most = -(-(len(self.prompts) + self.chunk) // self.chunk)
        tail = np.append(self.more_than(self.prompts), np.zeros((most + 1) * self.chunk))
        self.chunks = np.arange(1, most + 1)
        # P(more than n chunks | begins at), (n, at)
        self.longer = tail[self.chunks[:, None] * self.chunk - np.arange(self.chunk)]

    def more_than(self, law: Floats) -> Floats:
        """P(> k units)."""
        return np.append(np.cumsum(law[:0:-1])[::-1], 0.0) + self.beyond * law

    def num_chunks(self, law: Floats) -> float:
        """E[ceil(tokens / C)] of tokens > 0."""
        return 1 + float(self.more_than(law)[self.chunk :: self.chunk].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Begins:
    """Law of where in a step a prompt begins, in units, and the moments of its number of chunks."""

    law: Floats
    chunks: float
    chunks_var: float


class Walk:
    """The stationary law of the tokens waiting, fed by a number of slots."""

    def __init__(self, grid: Grid, num_steps: int, slots: int, rho: float) -> None:
        self.grid, self.slots, self.rho = grid, slots, rho
        self._rest = rho * (1 - grid.prompt_hat)
        self._base = 1 - self._rest
        self.arriving_hat = power(self._base, slots)
        self._waiting_hat = self._waiting(num_steps, slots * rho * grid.mean)
        self._ahead_hat = self._waiting_hat * self._sooner_hat()

    def _waiting(self, num_steps: int, arriving: float) -> Complexes:
        grid = self.grid
        if arriving == 0:
            return np.ones_like(grid.prompt_hat)
        if num_steps:
            return self._waiting_by_steps(num_steps)
        ratio = (1 - self.arriving_hat * grid.served_hat) * grid.per_drift
        ratio[0] = grid.chunk - arriving
        coefficients = -fft.irfft(np.log(ratio), grid.size)
        coefficients[0] = 0.0
        coefficients[grid.size // 2 :] = 0.0  # negative powers
        return np.asarray(np.exp(fft.rfft(coefficients) - coefficients.sum()))

    def _waiting_by_steps(self, num_steps: int) -> Complexes:
        """W's transform under a light load, where a few steps from an empty queue reach its law."""
        grid = self.grid
        waiting_hat = np.ones_like(self.arriving_hat)
        for _ in range(num_steps):
            law = self._law(waiting_hat * self.arriving_hat)
            waiting = law[grid.chunk :].copy()
            waiting[0] += law[: grid.chunk].sum()
            waiting_hat = fft.rfft(waiting, grid.size)
        return np.asarray(waiting_hat)

    def _law(self, transform: Complexes) -> Floats:
        law = np.maximum(fft.irfft(transform, self.grid.size), 0.0)
        return np.asarray(law / law.sum())

    def _sooner_hat(self) -> Complexes:
        """Of the tokens of prompts of the same iteration that come before a prompt.

        Its place among these is uniform: the mean of (1 - theta rest)**slots over theta in [0, 1].
        """
        rest = self._rest
        sooner = np.ones_like(rest)
        numerator, denominator = 1 - self.arriving_hat * self._base, (self.slots + 1) * rest
        np.divide(numerator, denominator, out=sooner, where=np.abs(rest) > 1e-12)
        return sooner

    def waited(self) -> float:
        """E[ceil((W + ahead + I) / C) - ceil(I / C)]: iterations that waiting adds to a prompt's stay."""
        law = self._law(self._ahead_hat * self.grid.prompt_hat)
        return max(self.grid.num_chunks(law) - self.grid.alone, 0.0)

    def begins(self) -> Begins:
        """Where in a step's C tokens a prompt begins, and what follows for its chunks."""
        grid = self.grid
        ahead = self._law(self._ahead_hat)
        padded = np.zeros(-(-len(ahead) // grid.chunk) * grid.chunk)
        padded[: len(ahead)] = ahead
        law = padded.reshape(-1, grid.chunk).sum(axis=0)
        longer = grid.longer @ law
        # what is lumped into the beginning of a step but begins at the end of the one before
        longer[0] += grid.beyond * (law[0] - ahead[0])
        mean = 1 + float(longer.sum())
        square = 1 + float((2 * grid.chunks + 1) @ longer)
        return Begins(law=law, chunks=mean, chunks_var=max(square - mean**2, 0.0))

    def step_tokens(self) -> Floats:
        """Law of min(W + A, C), in units."""
        chunk = self.grid.chunk
        law = self._law(self._waiting_hat * self.arriving_hat)
        return np.append(law[:chunk], law[chunk:].sum())


def arrivals(pmf: Floats, slots: int, rho: float, *, unit: int, reach: float) -> Floats:
    """Law of the tokens of Binomial(slots, rho) prompts, in units, where it hardly passes `reach` tokens."""
    size = next_fast_len(int(reach / unit) + 2, real=True)
    folded = lump(pmf, unit)
    if len(folded) > size:
        size = next_fast_len(len(folded), real=True)
    law = np.maximum(fft.irfft(power(1 - rho * (1 - fft.rfft(folded, size)), slots), size), 0.0)
    return np.asarray(law / law.sum())


def power(base: Complexes, n: int) -> Complexes:
    """`base` ** n by squaring: numpy's complex power takes logarithms and is slow."""
    result = np.ones_like(base)
    while n:
        if n & 1:
            result = result * base
        base = base * base
        n >>= 1
    return result


def lump(pmf: Floats, unit: int) -> Floats:
    """The law in units of tokens, of the same mean and, where no weight turns negative, the same variance."""
    tokens = np.arange(len(pmf))
    near = (tokens + unit // 2) // unit
    off = tokens / unit - near
    n = len(pmf) // unit + 3
    lumped = np.zeros(n + 1)  # from -1 on
    for at, share in ((0, off * (off - 1) / 2), (1, 1 - off * off), (2, off * (off + 1) / 2)):
        lumped += np.bincount(near + at, weights=pmf * share, minlength=n + 1)
    if lumped[0] == 0 and lumped.min() >= 0:
        return lumped[1:]
    return spread(tokens / unit, pmf, n)


def spread(at: Floats, weights: Floats, n: int) -> Floats:
    """Weights at real numbers 0 <= at <= n - 1, shared between the whole numbers on both sides."""
    low = np.minimum(at.astype(np.int64), n - 2)
    part = weights * (at - low)
    return np.asarray(
        np.bincount(low, weights=weights - part, minlength=n)
        + np.bincount(low + 1, weights=part, minlength=n)
    )
