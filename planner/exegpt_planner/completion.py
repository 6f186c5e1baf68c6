"""How many queries decode, and what they attend to, at each iteration of a cycle: the exact law and the paper's.

A query of output length L decodes D = L - 1 iterations, its encode having sampled the first token. In RRA's open form
B_E queries enter each cycle, whatever completes; at iteration u = 1..N of a phase those of j cycles ago are at their
(jN + u)-th iteration, so with Q(t) = P(D >= t), per query encoded,

    queries(u) = sum_j Q(jN + u),   their variance sum_j Q(1 - Q),   context(u) = sum_j E[I + jN + u; D >= jN + u],

E[K] = queries(1) cycles of stay and c(u) = sum_j P(D = jN + u) completions. Everything here is per query encoded: times
B_E gives a pool. The paper's own law averages 1/K over arrivals and so makes the pool too small (kept for comparison).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]

PoolLaw = Literal["exact", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseLaw:
    """One decode phase, per query encoded a cycle; arrays over its iterations u = 1..N."""

    queries: Floats  # mean number decoding
    queries_var: Floats
    context: Floats  # mean KV tokens attended, the new token included
    context_var: Floats
    log_empty: Floats  # log of the probability that none decodes

    @property
    def stay(self) -> float:
        """E[K]: cycles in which a query decodes."""
        return float(self.queries[0])


@dataclass(frozen=True, slots=True, eq=False)
class CompletionLaw:
    """The laws that a workload implies for pools; phases are computed once for each N_D."""

    workload: Workload
    law: PoolLaw = "exact"
    _phases: dict[int, PhaseLaw] = field(default_factory=dict)

    # each array is indexed by the iteration t = 0..max - 1; entry 0 is not used by phases
    alive: Floats = field(init=False)  # Q(t) = P(D >= t)
    input_alive: Floats = field(init=False)  # E[I; D >= t]
    square_alive: Floats = field(init=False)  # E[I**2; D >= t]

    def __post_init__(self) -> None:
        pmf = self.workload.output.pmf
        for name, values in (
            ("alive", pmf),
            ("input_alive", pmf * self.workload.input_mean),
            ("square_alive", pmf * self.workload.input_square),
        ):
            tail = np.cumsum(values[::-1])[::-1][1:]  # sum over L >= t + 1, t = 0..max - 1
            object.__setattr__(self, name, np.minimum(tail, 1.0) if name == "alive" else tail)

    @property
    def longest(self) -> int:
        """Decode iterations of the longest answer."""
        return len(self.alive) - 1

    @property
    def decode_mean(self) -> float:
        """E[D], iterations."""
        return float(self.alive[1:].sum())

    @property
    def output_mean(self) -> float:
        """E[L], tokens of an answer."""
        return self.decode_mean + 1 - self.workload.delay

    @property
    def context_mean(self) -> float:
        """KV tokens that one query attends to over its whole decode, mean."""
        t = np.arange(1, self.longest + 1)
        return float(self.input_alive[1:].sum() + t @ self.alive[1:])

    @property
    def context_square(self) -> float:
        """The sum over a query's decode iterations of the square of what it attends to, mean."""
        t = np.arange(1, self.longest + 1)
        first, second = self.input_alive[1:], self.square_alive[1:]
        return float(second.sum() + 2 * t @ first + t**2 @ self.alive[1:])

    def one_query(self, iterations: int) -> tuple[Floats, Floats, Floats]:
        """One query at its t-th iteration, t = 1..iterations, should it get there.

        Returns P(D >= t), and mean and variance of its share in the context.
        """
        t = np.arange(1, iterations + 1)
        alive, first, second = (
            np.append(tail[1 : iterations + 1], np.zeros(max(0, iterations - self.longest)))
            for tail in (self.alive, self.input_alive, self.square_alive)
        )
        mean = first + t * alive
        return alive, mean, second + 2 * t * first + t * t * alive - mean**2

    def phase(self, interval: int) -> PhaseLaw:
        """The law of a phase of `interval` iterations (N_D)."""
        found = self._phases.get(interval)
        if found is None:
            found = self._fold(interval)
            if self.law == "paper":
                found = _scale(found, self._paper_bias(interval))
            self._phases[interval] = found
        return found

    def completions(self, interval: int) -> Floats:
        """c(u): queries that complete at iteration u = 1..N, per query encoded; with those of D = 0 they sum to 1."""
        return _by_iteration(self.alive[1:] - np.append(self.alive[2:], 0.0), interval)

    def _fold(self, interval: int) -> PhaseLaw:
        alive, mean, var = self.one_query(self.longest)
        with np.errstate(divide="ignore"):
            log_dead = np.log1p(-alive)  # -inf where a query is there for certain
        return PhaseLaw(
            queries=_by_iteration(alive, interval),
            queries_var=_by_iteration(alive * (1 - alive), interval),
            context=_by_iteration(mean, interval),
            context_var=_by_iteration(var, interval),
            log_empty=_by_iteration(log_dead, interval),
        )

    def _paper_bias(self, interval: int) -> float:
        """The paper's pool over the exact one: 1 / (E[1/K] E[K]), both over queries that decode at all."""
        chance = self.alive[:-1] - self.alive[1:]  # P(D = t), t = 0..longest - 1
        chance = np.append(chance, self.alive[-1])[1:]
        cycles = -(-np.arange(1, self.longest + 1) // interval)
        total = chance.sum()
        return float(total**2 / ((chance / cycles).sum() * (chance * cycles).sum()))


def _by_iteration(values: Floats, interval: int) -> Floats:
    """Sums of values[t - 1] over t = u, u + N, u + 2N, ... for u = 1..N."""
    cycles = max(1, -(-len(values) // interval))
    padded = np.zeros(cycles * interval)
    padded[: len(values)] = values
    return np.asarray(padded.reshape(cycles, interval).sum(axis=0))


def _scale(phase: PhaseLaw, factor: float) -> PhaseLaw:
    return PhaseLaw(
        queries=phase.queries * factor,
        queries_var=phase.queries_var * factor,
        context=phase.context * factor,
        context_var=phase.context_var * factor,
        log_empty=phase.log_empty * factor,
    )


def law_on(table: ProfileTable, workload: Workload, law: PoolLaw = "exact") -> CompletionLaw:
    """The laws of a workload on a table's model."""
    return CompletionLaw(workload if table.encoder is None else workload.delayed(), law)
