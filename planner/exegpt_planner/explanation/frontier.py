"""Throughput against the bound, each point of it the answer of a whole search."""

from __future__ import annotations

import math

import numpy as np

from exegpt_planner.errors import InfeasibleBound
from exegpt_planner.explanation.question import Question, Step
from exegpt_planner.explanation.record import Frontier, FrontierPoint
from exegpt_planner.plan import Plan

FINER = 0.01  # relative: the least bound is known to 1 %
ROUNDING = 1e-9  # relative: a promise is predicted and searched by sums in different orders
IMPOSSIBLE_S = 1e-6  # no step of a model takes so little


def frontier(question: Question, plan: Plan, points: int, step: Step) -> Frontier:
    """From the least bound that can be kept to where throughput rises no more, and no bound at all."""
    step("the best reachable bound")
    least_s, refuted_s = least_bound(question)
    step("no bound")
    free = question.within(math.inf).plan(with_sensitivity=False)
    saturated_s = max(free.prediction.promised_s, least_s)
    asked_s = plan.bound.seconds
    bounds = {float(each) for each in np.geomspace(least_s, saturated_s, points)[:-1]}
    known = {saturated_s: free, math.inf: free, asked_s: plan}
    found = []
    for bound_s in sorted(bounds | set(known)):
        best = known.get(bound_s)
        if best is None:
            step(f"a bound of {bound_s:.3g} s")
            try:
                best = question.within(bound_s * (1 + ROUNDING)).plan(with_sensitivity=False)
            except InfeasibleBound:
                if question.bound.limits is None:
                    raise
                continue  # whole answers would be in time, but another limit breaks
        found.append(
            FrontierPoint(
                bound_s=bound_s,
                is_chosen=bound_s == asked_s,
                schedule=best.schedule,
                queries_per_s=best.prediction.queries_per_s,
                promised_s=best.prediction.promised_s,
            )
        )
    return Frontier(
        least_s=least_s, refuted_s=refuted_s, saturated_s=saturated_s, points=tuple(found)
    )


def least_bound(question: Question, known_s: float | None = None) -> tuple[float, float]:
    """(the least promise known of, a bound at most 1 % below it that no schedule keeps), s.

    `known_s` is promised by some schedule. Raises `InfeasibleBound` where nothing fits at all.
    """
    least_s = _fastest_s(question) if known_s is None else known_s
    while True:
        bound_s = least_s * (1 - FINER)
        try:
            faster = question.within(bound_s).plan(with_sensitivity=False)
        except InfeasibleBound:
            return least_s, bound_s
        least_s = faster.prediction.promised_s


def _fastest_s(question: Question) -> float:
    try:
        return question.within(IMPOSSIBLE_S).plan(with_sensitivity=False).prediction.promised_s
    except InfeasibleBound as error:
        if error.reached is None:
            raise
        return error.reached.prediction.promised_s
