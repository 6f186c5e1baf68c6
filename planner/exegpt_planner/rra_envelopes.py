"""Bounds on RRA's pool, a query encoded, over blocks of N_D: a property of the workload, shared by all shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.windows import Windows

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Envelope:
    """Bounds per query encoded, at iterations u = 1..N2 of a phase, over all N_D in N1..N2 (that reach u)."""

    queries: Floats  # at least
    queries_var_min: Floats
    queries_var_max: Floats
    context: Floats  # at least
    context_var_min: Floats
    context_var_max: Floats
    log_empty: Floats  # at most
    first_queries: float  # at u = 1, at most
    first_context: float


class Envelopes:
    """Those of one workload, which remembers what it has been asked."""

    def __init__(self, law: CompletionLaw) -> None:
        self._law = law
        alive, own, own_var = law.one_query(law.longest)
        self._variances = Windows(alive * (1 - alive))
        self._contexts, self._context_vars = Windows(own), Windows(own_var)
        self._found: dict[tuple[int, int], Envelope] = {}

    def of(self, n1: int, n2: int) -> Envelope:
        """That of N_D in n1..n2."""
        found = self._found.get((n1, n2))
        if found is None:
            found = self._exact(n1) if n1 == n2 else self._windowed(n1, n2)
            self._found[n1, n2] = found
        return found

    def _exact(self, interval: int) -> Envelope:
        phase = self._law.phase(interval)
        return Envelope(
            queries=phase.queries,
            queries_var_min=phase.queries_var,
            queries_var_max=phase.queries_var,
            context=phase.context,
            context_var_min=phase.context_var,
            context_var_max=phase.context_var,
            log_empty=phase.log_empty,
            first_queries=float(phase.queries[0]),
            first_context=float(phase.context[0]),
        )

    def _windowed(self, n1: int, n2: int) -> Envelope:
        longest = self._law.longest
        cycles = np.arange(max(1, -(-longest // n1)))[:, None]
        u = np.arange(n2)[None, :]  # the arrays of t start at t = 1
        start, end = cycles * n1 + u, cycles * n2 + u
        low_var, high_var = self._variances.extremes(start, end)
        context, high_context = self._contexts.extremes(start, end)
        low_context_var, high_context_var = self._context_vars.extremes(start, end)
        widest = self._law.phase(n2)
        return Envelope(
            queries=widest.queries,
            queries_var_min=low_var.sum(axis=0),
            queries_var_max=high_var.sum(axis=0),
            context=context.sum(axis=0),
            context_var_min=low_context_var.sum(axis=0),
            context_var_max=high_context_var.sum(axis=0),
            log_empty=widest.log_empty,
            first_queries=float(self._law.phase(n1).queries[0]),
            first_context=float(high_context[:, 0].sum()),
        )


@lru_cache(maxsize=8)
def envelopes_of(law: CompletionLaw) -> Envelopes:
    """The law's, made once."""
    return Envelopes(law)
