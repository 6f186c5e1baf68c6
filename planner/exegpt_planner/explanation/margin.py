"""How wrong the planned mean of output lengths may be before the bound breaks, with the schedule left as it is.

The true law is the planned one with every length times a factor: mean, deviation and percentiles alike. The bound then
is about the true law's percentile. Nothing is adjusted: what run-time adjustment saves comes on top.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import law_on
from exegpt_planner.errors import ExeGPTError, IncompleteProfile, InvalidSpec
from exegpt_planner.explanation.question import Question
from exegpt_planner.explanation.record import Margin, MarginPoint
from exegpt_planner.lengths import LengthLaw
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, Prediction, RraSchedule, WaaSchedule
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.strategies import Site
from exegpt_planner.waa_sites import WaaSite
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]

FACTORS = tuple(round(0.7 + 0.05 * step, 2) for step in range(17))  # 0.7 to 1.5
FINE = 0.01  # of the factor at which the bound breaks


def margin(question: Question, plan: Plan, site: Site | WaaSite) -> Margin:
    """At `FACTORS`, and where the bound breaks above 1."""
    points = [margin_at(question, plan, site, factor) for factor in FACTORS]
    if math.isinf(plan.bound.seconds):
        return Margin(points=tuple(points), keeps_at=None, breaks_at=None)
    keeps_at = 1.0
    for point in points:
        if point.factor <= 1:
            continue
        if not point.keeps_bound:
            found = _break(question, plan, site, keeps_at, point)
            keeps_at, breaks_at = found
            return Margin(points=tuple(points), keeps_at=keeps_at, breaks_at=breaks_at)
        keeps_at = point.factor
    return Margin(points=tuple(points), keeps_at=keeps_at, breaks_at=None)


def _break(
    question: Question, plan: Plan, site: Site | WaaSite, keeps_at: float, broken: MarginPoint
) -> tuple[float, float | None]:
    """(a factor at which the bound is kept, one at most 1 % above at which it is not: None if that is unknown)."""
    low, high, is_known = keeps_at, broken.factor, broken.keeps_bound is not None
    while high - low > FINE:
        middle = (low + high) / 2
        found = margin_at(question, plan, site, middle)
        if found.keeps_bound:
            low = middle
        else:
            high, is_known = middle, found.keeps_bound is not None
    return low, high if is_known else None


def margin_at(question: Question, plan: Plan, site: Site | WaaSite, factor: float) -> MarginPoint:
    """The plan's schedule where output lengths are `factor` times the planned ones."""
    true = stretched(question.workload, factor)
    law = law_on(question.table, true)
    promise = plan.bound.promise(law, question.table)
    length = promise.length - law.workload.delay
    there = (
        question.site(plan.schedule, law) if isinstance(site, WaaSite) else replace(site, law=law)
    )
    try:
        expected, problem = _predict(there, plan, promise), None
    except (IncompleteProfile, InvalidSpec) as error:
        expected, problem = None, _short(error)
    return MarginPoint(
        factor=factor,
        output_mean=true.output.mean,
        length_tokens=length,
        promised_s=expected and expected.promised_s,
        queries_per_s=expected and expected.queries_per_s,
        memory_used=expected and expected.kv_tokens_reserved / plan.kv_tokens_capacity,
        keeps_bound=expected and expected.promised_s <= plan.bound.seconds,
        problem=problem,
    )


def stretched(workload: Workload, factor: float) -> Workload:
    """The law of output lengths times a factor, each shared between its two neighbours so that the mean is exact.

    A length below 1 is 1. Inputs stay, and go with the outputs that they went with.
    """
    pmf = workload.output.pmf
    lengths = np.maximum(np.arange(len(pmf)) * factor, 1.0)
    low = np.floor(lengths).astype(np.int64)
    above = lengths - low

    def shared(values: Floats) -> Floats:
        sums = np.bincount(low, weights=values * (1 - above), minlength=low[-1] + 2)
        sums[1:] += np.bincount(low, weights=values * above, minlength=low[-1] + 2)[:-1]
        return np.asarray(sums, dtype=np.float64)

    mass = shared(pmf)
    longest = int(np.flatnonzero(mass)[-1])
    mass = mass[: longest + 1]

    def given_output(values: Floats, overall: float) -> Floats:
        sums = shared(pmf * values)[: longest + 1]
        means = np.divide(sums, mass, out=np.full(longest + 1, overall), where=mass > 0)
        return np.asarray(means, dtype=np.float64)

    return replace(
        workload,
        output=LengthLaw(pmf=mass / mass.sum()),
        input_mean=given_output(workload.input_mean, workload.input.mean),
        input_square=given_output(workload.input_square, workload.input.square),
        source=f"{workload.source}, output lengths times {factor:g}",
        pairs=None,
    )


def _predict(site: Site | WaaSite, plan: Plan, promise: Promise) -> Prediction:
    match plan.schedule, site.model:
        case RraSchedule() as schedule, RraModel() as rra:
            return rra.predict(schedule, promise)
        case CraSchedule() as schedule, CraModel() as cra:
            return cra.predict(schedule, promise)
        case WaaSchedule() as schedule, WaaModel() as waa:
            return waa.predict(schedule, promise)
    raise AssertionError(plan.schedule)


def _short(error: ExeGPTError) -> str:
    said = "; ".join(error.problems) if isinstance(error, InvalidSpec) else str(error)
    return said.split(" Profile larger")[0].removesuffix(".")
