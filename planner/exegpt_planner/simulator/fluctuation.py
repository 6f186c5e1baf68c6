"""How far the latency of one answer strays from its mean under RRA, because others' lengths are random.

The answer's latency is a sum over its encodes and decode iterations of curves of sums over the pool's queries.
Linearised at the mean, every other query adds an independent share: its prompt's slopes if it is encoded meanwhile,
and the slopes of those iterations of the window t = 1..d in which it decodes,

    share = e I + sum_{t in life} (a(t) + c(t) (I + age)) = (e + F(D)) I + G(D),

F and G being differences of prefix sums. The variance is the sum over cohorts of B_E Var(share).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The decode iterations t = 1..d of one answer, and what one query more costs at each of them."""

    per_query: Floats  # a(t), s
    per_context: Floats  # c(t), s per KV token
    per_prompt_token: float  # e, s: in each encode of the window
    interval: int
    num_encodes: int


def shares_var(window: Window, workload: Workload, batch: float) -> float:
    """Variance of the window's time from all queries but the answer itself, s**2; `batch` of them enter a cycle."""
    chance = workload.output.pmf[1:]
    support = np.flatnonzero(chance)
    chance, decodes = chance[support], support  # D = L - 1
    first, second = workload.input_mean[1:][support], workload.input_square[1:][support]
    oldest = max(1, -(-int(decodes[-1]) // window.interval))  # the answer itself, if nobody decodes
    cohorts = np.arange(1 - oldest, window.num_encodes)[:, None]
    F, G = _overlap(window, cohorts * window.interval, decodes)
    F = F + np.where(cohorts >= 0, window.per_prompt_token, 0.0)
    square = (F * F * second + 2 * F * G * first + G * G) @ chance
    variances = square - ((F * first + G) @ chance) ** 2
    sizes = np.full(len(variances), batch)
    sizes[oldest - 1] = max(batch - 1, 0.0)  # the answer's own cohort
    return float(np.maximum(variances, 0.0) @ sizes)


def _overlap(
    window: Window, starts: NDArray[np.int64], decodes: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """F and G of queries that start `starts` iterations into the window; shape (cohorts, lengths)."""
    d = len(window.per_query)
    t = np.arange(d + 1)
    queries, context, aged = (
        np.append(0.0, np.cumsum(values))
        for values in (window.per_query, window.per_context, window.per_context * t[1:])
    )
    end, begin = np.clip(starts + decodes, 0, d), np.clip(starts, 0, d)
    F = context[end] - context[begin]
    G = queries[end] - queries[begin] + aged[end] - aged[begin] - starts * F
    return F, G
