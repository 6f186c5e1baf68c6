"""Rounds of one WAA decoder by the queries in its pool, and lines below them.

A decoder is a pipeline through which the pool passes in M micro-batches; a round gives every query a token. With the
slowest stage's time t and a pass w, both at n / M queries, and the longest micro-batch's excess as in `pipeline.py`,

    tau_D(n) = max(M t, w + dispatch),   of one stage t + dispatch

With lines A + B n below tau_D (A, B >= 0), Little's law binds rate and time, whatever the pool's law: at
X' = X E[D] / y tokens a second, q = E[n] and a mean round T,

    X' <= q / (A + B q),   T >= A / (1 - B X')
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.pipeline import Pipeline

Floats = NDArray[np.float64]

FINE = 16.0  # nodes in sqrt(n): a pool strays by about as much, so beyond 256 queries not each needs one
LEAST_SPREAD = 0.05  # v of lengths that hardly vary: the law stays wider than the grid


class DecoderCosts:
    """Rounds at the mean context of n queries; arrays are by the nodes `n`."""

    def __init__(self, pipeline: Pipeline, law: CompletionLaw, most: int | None = None) -> None:
        """`most` is the largest pool of interest, where the profile covers more."""
        self.law, self.pipeline = law, pipeline
        self.dispatch_s = pipeline.whole.dispatch_s
        self.decode_mean = law.decode_mean
        self.context = law.context_mean / law.decode_mean if law.decode_mean else 0.0
        square = law.context_square / law.decode_mean if law.decode_mean else 0.0
        self.context_var = max(square - self.context**2, 0.0)
        alive = law.alive[1:]
        self.own_var = float((alive * (1 - alive)).sum())
        self.fed_var = float((alive**2).sum())
        self.line_s, self.line_query_s = self._lines()
        number = pipeline.micro_batches
        limit = int(number * pipeline.whole.per_query.limit)
        every = np.arange((limit if most is None else min(limit, most)) + 1, dtype=np.float64)
        nodes = _nodes(len(every))
        each = every / number
        times = pipeline.times(lambda costs: self._step_s(costs, each), self._sds(each))
        passing_s = times.pass_s + pipeline.excess_sds * times.pass_sd_s + self.dispatch_s
        filled_s = number * times.slowest_s if pipeline.num_stages > 1 else 0.0 * passing_s
        rounds_s = np.maximum(filled_s, passing_s)
        self.n = every[nodes]
        self.steps = np.append(1.0, np.diff(self.n))
        self.times = rounds_s[nodes]
        self.lacks_s = np.maximum(rounds_s - times.pass_s, 0.0)[nodes]  # a last iteration
        self.slopes = (np.gradient(rounds_s) if len(every) > 1 else np.zeros(1))[nodes]
        by_pass = (passing_s >= filled_s)[nodes]
        self.context_slopes = self._context_slopes(by_pass)
        self.beside = np.where(by_pass, 1 / number, 1.0)  # share of the pool whose context is seen
        self._every = every
        self._integral = np.append(0.0, np.cumsum((rounds_s[1:] + rounds_s[:-1]) / 2))

    @property
    def whole_iterations(self) -> tuple[int, float]:
        """(iterations, seconds) that an answer's decode may lack of as many rounds as it has tokens."""
        return (0, self.dispatch_s) if self.pipeline.num_stages == 1 else (1, 0.0)

    def smoothed(self, width: float) -> Floats:
        """Times averaged over pools within half a `width` of n: the saw that joins of whole batches make."""
        low = np.maximum(self.n - width / 2, 0.0)
        high = np.minimum(self.n + width / 2, self._every[-1])
        area = np.interp(high, self._every, self._integral)
        area = area - np.interp(low, self._every, self._integral)
        # near the grid's end the window is lopsided
        return np.asarray(np.maximum(area / (high - low), self.least_s(self.n)))

    def spread(self, decoders: int, fed: float) -> float:
        """The v of the decoders' mean pool, which they share as batches go to the one with most room."""
        own = self.own_var + fed * self.fed_var
        return max(own / self.decode_mean, LEAST_SPREAD) / decoders

    def least_s(self, queries: Floats) -> Floats:
        """A round at a mean pool, at least."""
        return np.asarray((self.line_s + self.line_query_s * queries[..., None]).max(axis=-1))

    def most_per_s(self, queries: Floats) -> Floats:
        """X': what a decoder can do with this mean pool at most."""
        return np.asarray(queries / self.least_s(queries))

    def least_at_s(self, per_s: Floats) -> Floats:
        """A mean round at this X', at least."""
        left = 1 - self.line_query_s * per_s[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(left > 0, self.line_s / left, np.where(self.line_s > 0, np.inf, 0.0))
        return np.asarray(found.max(axis=-1))

    def most_within(self, round_s: Floats) -> Floats:
        """X' of a mean round of so many seconds, at most."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (1 - self.line_s / round_s[..., None]) / self.line_query_s
        return np.asarray(np.where(np.isnan(found), np.inf, np.maximum(found, 0.0)).min(axis=-1))

    def _step_s(self, costs: StepCosts, each: Floats) -> Floats:
        return np.asarray(
            costs.per_query(each)
            + costs.per_context.mean(each * self.context, np.sqrt(each * self.context_var))
            + costs.decode_fixed_s
        )

    def _sds(self, each: Floats) -> Callable[[StepCosts], Floats]:
        def of(costs: StepCosts) -> Floats:
            sds = np.sqrt(each * self.context_var)
            return np.maximum(costs.per_context.slope_mean(each * self.context, sds), 0.0) * sds

        return of

    def _context_slopes(self, by_pass: NDArray[np.bool_]) -> Floats:
        each = self.n / self.pipeline.micro_batches
        sds = np.sqrt(each * self.context_var)

        def slope(costs: StepCosts) -> Floats:
            return costs.per_context.slope_mean(each * self.context, sds)

        slowest = np.max([slope(costs) for costs in self.pipeline.stages], axis=0)
        return np.where(by_pass, slope(self.pipeline.whole), slowest)

    def _lines(self) -> tuple[Floats, Floats]:
        """Of a round: (A, B)."""
        pipeline, number = self.pipeline, self.pipeline.micro_batches
        found = [self._step_lines(pipeline.whole, self.dispatch_s, 1, 1 / number)]
        if pipeline.num_stages > 1:
            found += [self._step_lines(costs, 0.0, number, 1.0) for costs in pipeline.stages]
        a, b = (np.concatenate(each) for each in zip(*found, strict=True))
        return a, b

    def _step_lines(
        self, costs: StepCosts, more_s: float, times: int, share: float
    ) -> tuple[Floats, Floats]:
        (qa, qb), (ca, cb) = costs.per_query.lines(), costs.per_context.minorant()
        a = (qa[:, None] + ca + costs.decode_fixed_s + more_s).ravel()
        b = (qb[:, None] + cb * self.context).ravel()
        rising = b >= 0
        return times * a[rising], share * b[rising]


def _nodes(size: int) -> NDArray[np.int64]:
    """Of 0..size - 1, all to FINE**2 and then some sqrt(n) / FINE apart; first and last among them."""
    exact = int(FINE**2)
    if size <= exact + 1:
        return np.arange(size)
    roots = np.arange(FINE, np.sqrt(size - 1), 1 / (2 * FINE))
    return np.unique(np.concatenate([np.arange(exact + 1), (roots**2).round(), [size - 1]])).astype(
        np.int64
    )
