"""CRA's encode queue in plain tokens, nothing lumped and nothing interpolated: one law for each pool and C.

By Spitzer's identity, and under a light load by steps from an empty queue; slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

TAIL = 16  # the grid reaches this many decay lengths: e**-16 of the law is left out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactQueue:
    """The stationary encode queue of a pool."""

    completions: float  # rho: chance that a slot frees in an iteration
    stay: float  # E[e]: iterations from a slot's refill to the end of its encode
    span: float  # E[e']: of them, those in which it is encoded: its number of chunks
    span_var: float
    offset: Floats  # law of where in a step's C tokens a prompt begins
    step_tokens: Floats  # law of the tokens encoded in a step
    step_tokens_beside: (
        Floats  # the same in a step of one slot fewer: what a decoding query sees beside itself
    )


class ExactQueues:
    """Encode queues of one workload; pools and chunks to be asked for."""

    def __init__(self, workload: Workload) -> None:
        self._prompts = workload.input.pmf
        self._decode_mean = workload.output.mean - 1
        self._tokens = workload.input.mean
        self._square = float(np.arange(len(self._prompts)) ** 2.0 @ self._prompts)
        self._found: dict[tuple[int, int], ExactQueue] = {}

    def alone(self, chunk: int) -> float:
        """E[ceil(I / C)]: the stay of a prompt that never waits."""
        chunks = -(-np.arange(len(self._prompts)) // chunk)
        return float(chunks @ self._prompts)

    def load(self, pool: int, chunk: int) -> float:
        """Tokens of encode an iteration at most, those of prompts that never wait, as a share of C."""
        return pool * self._tokens / (self.alone(chunk) + self._decode_mean) / chunk

    def queue(self, pool: int, chunk: int) -> ExactQueue:
        """The stationary queue; the load must be below 1."""
        found = self._found.get((pool, chunk))
        if found is None:
            found = self._solve(pool, chunk)
            self._found[pool, chunk] = found
        return found

    def _solve(self, pool: int, chunk: int) -> ExactQueue:
        most = 1 / (self.alone(chunk) + self._decode_mean)
        grid = self._grid(pool, chunk, most)

        def rate_after(rho: float) -> float:
            return 1 / (grid.walk(pool - 1, rho).stay() + self._decode_mean)

        # the stay grows with rho, so what the highest rho leads to is the lowest
        least, rho = rate_after(most), most
        if least < most * (1 - 1e-9):
            rho = float(
                brentq(
                    lambda rho: rho - rate_after(rho), least * (1 - 1e-9), most, xtol=1e-7 * most
                )
            )
        beside, whole = grid.walk(pool - 1, rho), grid.walk(pool, rho)
        span, span_var = beside.span()
        return ExactQueue(
            completions=rho,
            stay=beside.stay(),
            span=span,
            span_var=span_var,
            offset=beside.offset(),
            step_tokens=whole.step_tokens(),
            step_tokens_beside=beside.step_tokens(),
        )

    def _grid(self, pool: int, chunk: int, rho: float) -> Grid:
        rate = pool * rho
        arriving = rate * self._tokens
        load = min(arriving / chunk, 0.98)
        heavy = self._square / self._tokens  # tokens of a prompt met at random
        reach = TAIL * load * heavy / (2 * (1 - load)) + 2 * (chunk + len(self._prompts)) + arriving
        # From an empty queue, what n steps have not seen of the law is about exp(-n decay).
        decay = chunk / heavy * (np.log(1 / load) - (1 - load))
        num_steps = int(np.ceil(TAIL / decay))
        # Below 0, the walk's c_k fall only as it forgets its position within C tokens.
        folded = np.bincount(np.arange(len(self._prompts)) % chunk, weights=self._prompts)
        forgotten = 1 - np.fft.fft(folded, chunk)[1:].real.max(initial=0.0)
        below = chunk * TAIL / (rate * forgotten) if forgotten > 1e-6 else np.inf
        by_steps = num_steps * reach < 2 * max(reach, below)
        span = reach if by_steps else max(reach, below)
        return Grid(
            self._prompts,
            chunk,
            size=1 << int(np.ceil(np.log2(2 * span))),
            num_steps=num_steps if by_steps else 0,
        )


class Grid:
    """The transforms of laws on a grid of tokens."""

    def __init__(self, prompts: Floats, chunk: int, *, size: int, num_steps: int) -> None:
        self.prompts, self.chunk, self.size = prompts, chunk, size
        self.num_steps = num_steps  # from an empty queue to the law; 0: Spitzer
        self.prompt_hat = np.fft.rfft(prompts, size)
        angle = 2j * np.pi * np.arange(size // 2 + 1) / size
        self.served_hat = np.exp(angle * chunk)  # the transform of -C
        self.drift_hat = 1 - np.exp(angle)  # has the same zero at angle 0 as 1 - E z^(A - C)
        self.mean = float(np.arange(len(prompts)) @ prompts)

    def walk(self, slots: int, rho: float) -> Walk:
        """The queue fed by `slots` slots."""
        return Walk(self, slots, rho)


class Walk:
    """The stationary law of the tokens waiting, fed by a number of slots."""

    def __init__(self, grid: Grid, slots: int, rho: float) -> None:
        self.grid = grid
        rest = rho * (1 - grid.prompt_hat)
        base = 1 - rest
        self.arriving_hat = _power(base, slots)
        self.waiting_hat = self._waiting(slots * rho * grid.mean)
        # a prompt's place among those of its iteration is uniform: the mean of
        # (1 - theta rest)**slots over theta in [0, 1]
        ahead = np.ones_like(base)
        some = np.abs(rest) > 1e-12
        ahead[some] = (1 - (self.arriving_hat * base)[some]) / ((slots + 1) * rest[some])
        self.ahead_hat = self.waiting_hat * ahead

    def _waiting(self, arriving: float) -> Complexes:
        grid = self.grid
        if arriving == 0:
            return np.ones_like(grid.prompt_hat)
        if grid.num_steps:
            return self._waiting_by_steps()
        left = 1 - self.arriving_hat * grid.served_hat
        log_ratio = np.empty_like(left)
        log_ratio[0] = np.log(grid.chunk - arriving)
        log_ratio[1:] = np.log(left[1:]) - np.log(grid.drift_hat[1:])
        coefficients = -np.fft.irfft(log_ratio, grid.size)
        coefficients[0] = 0.0
        coefficients[grid.size // 2 :] = 0.0  # negative powers
        return np.asarray(np.exp(np.fft.rfft(coefficients) - coefficients.sum()))

    def _waiting_by_steps(self) -> Complexes:
        """W's transform under a light load, where a few steps from an empty queue reach its law."""
        waiting = np.zeros(self.grid.size)
        waiting[0] = 1.0
        for _ in range(self.grid.num_steps):
            law = self._law(np.fft.rfft(waiting) * self.arriving_hat)
            waiting[:] = 0.0
            waiting[: self.grid.size - self.grid.chunk] = law[self.grid.chunk :]
            waiting[0] += law[: self.grid.chunk].sum()
        return np.fft.rfft(waiting)

    def _law(self, transform: Complexes) -> Floats:
        law = np.maximum(np.fft.irfft(transform, self.grid.size), 0.0)
        return np.asarray(law / law.sum())

    def stay(self) -> float:
        """E[ceil((W + ahead + I) / C)]."""
        law = self._law(self.ahead_hat * self.grid.prompt_hat)
        tail = np.append(np.cumsum(law[::-1])[::-1][1:], 0.0)  # P(> k)
        return float(max(1.0, tail[:: self.grid.chunk].sum()))

    def offset(self) -> Floats:
        """Law of where in a step's C tokens a prompt begins."""
        chunk, law = self.grid.chunk, self._law(self.ahead_hat)
        padded = np.zeros(-(-len(law) // chunk) * chunk)
        padded[: len(law)] = law
        return np.asarray(padded.reshape(-1, chunk).sum(axis=0))

    def span(self) -> tuple[float, float]:
        """(mean, variance) of the number of chunks of a prompt, from where in a step it begins."""
        chunk, prompts, offset = self.grid.chunk, self.grid.prompts, self.offset()
        tail = np.append(np.cumsum(prompts[::-1])[::-1][1:], 0.0)  # P(I > k)
        most = -(-(len(prompts) + chunk) // chunk)
        at = np.arange(1, most + 1)[:, None] * chunk - np.arange(chunk)[None, :]
        longer = np.where(at < len(tail), tail[np.minimum(at, len(tail) - 1)], 0.0) @ offset
        mean = 1 + float(longer.sum())
        square = 1 + float((2 * np.arange(1, most + 1) + 1) @ longer)
        return mean, max(square - mean**2, 0.0)

    def step_tokens(self) -> Floats:
        """Law of min(W + A, C)."""
        chunk = self.grid.chunk
        law = self._law(self.waiting_hat * self.arriving_hat)
        return np.append(law[:chunk], law[chunk:].sum())


def _power(base: Complexes, n: int) -> Complexes:
    """`base` ** n by squaring: numpy's complex power takes logarithms and is slow."""
    power = np.ones_like(base)
    while n:
        if n & 1:
            power = power * base
        base = base * base
        n >>= 1
    return power
