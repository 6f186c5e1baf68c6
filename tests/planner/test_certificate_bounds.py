"""The checker's own bounds, on rough machines, against every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.certificate_check import Space
from exegpt_planner.certificate_cra import Cra
from exegpt_planner.certificate_file import CertificateFile
from exegpt_planner.certificate_rra import Rra
from exegpt_planner.certificate_spaces import CHUNKS, Point, Question
from exegpt_planner.certificate_waa import Waa, left
from exegpt_planner.cra_space import CHUNKS as SEARCHED
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.shapes import Shape
from exegpt_planner.workload import Workload
from planner.builders import bell, correlated, independent, rough_parallel, rough_table
from planner.certificates import small
from planner.test_waa_shapes import random_sites

WORKLOADS = (
    independent(bell(20, 9, 40), bell(7, 3, 14)),
    independent(bell(12, 5, 30), bell(2, 2, 9)),  # many answers of one token
    correlated(bell(8, 4, 16), factor=1.5),
    independent(bell(25, 1, 28), bell(10, 0.5, 12)),
)
FEW = 24  # queries of a micro-batch, so that every schedule can be simulated


def asked(machine: ProfileTable, workload: Workload, seconds: float, mode: str) -> CertificateFile:
    return small().model_copy(
        update={
            "table": machine,
            "workload": type(small().workload).of(workload),
            "bound": Bound.model_validate({"seconds": seconds, "mode": mode}),
            "devices": 1 if machine.parallel is None else 4,
        }
    )


def machine_of(rng: np.random.Generator, seed: int) -> ProfileTable:
    machine = rough_table(rng, context=float(rng.choice([300, 900, 3000])))
    return rough_parallel(machine, rng) if seed % 3 else machine


def points_of(space: Space, most: int | None = None) -> list[Point]:
    x1, x2, y1, y2 = space.whole
    x2 = x2 if most is None else min(x2, most)
    return [(x, y) for x in range(x1, x2 + 1) for y in range(y1, y2 + 1) if space.fits(x, y)]


def seeds(number: int, fast: int) -> list[object]:
    return [pytest.param(each, marks=[pytest.mark.slow] * (each >= fast)) for each in range(number)]


@pytest.mark.parametrize("seed", seeds(40, fast=6))
def test_what_bounds_of_rra_settle_holds_nothing_better(seed: int) -> None:
    """On rough tables, of one device and of pipelines: against every point."""
    rng = np.random.default_rng(seed)
    machine, workload = machine_of(rng, seed), WORKLOADS[seed % len(WORKLOADS)]
    question = Question(file=asked(machine, workload, 1.0, "p99"))
    some = question.shapes
    for number in rng.permutation(len(some))[:2]:
        space = Rra(question, some[number])
        points = points_of(space)
        if not points:
            continue
        rates = {point: space.rate(*point) for point in points}
        promises_s = {point: space.promised_s(*point) for point in points}
        for share in (0.05, 0.3, 0.6, 0.95):
            best = float(np.quantile(list(rates.values()), rng.uniform(0.2, 1)))
            bound_s = float(np.quantile(list(promises_s.values()), share))
            found = set(space.unsettled(space.whole, best, bound_s))
            better = {p for p in points if rates[p] > best and promises_s[p] <= bound_s}
            assert better <= found, (seed, number, best, bound_s)


@pytest.mark.parametrize("seed", seeds(60, fast=6))
def test_what_bounds_of_cra_settle_holds_nothing_better(seed: int) -> None:
    """As its points are simulated, exactly what is better is found."""
    rng = np.random.default_rng(seed)
    machine, workload = machine_of(rng, seed), WORKLOADS[seed % len(WORKLOADS)]
    mode = str(rng.choice(["p99", "mean"]))
    some = Question(file=asked(machine, workload, 1.0, mode)).shapes
    shape: Shape = some[rng.integers(len(some))]
    space = Cra(Question(file=asked(machine, workload, 1.0, mode)), shape)
    points = points_of(space, FEW)
    if not points:
        return
    rates = {point: space.rate(*point) for point in points}
    promises_s = {point: space.promised_s(*point) for point in points}
    _, x2, y1, y2 = space.whole
    whole = 1, min(x2, FEW), y1, y2
    assert set(space.unsettled(whole, 0.0, np.inf)) == set(points)
    for share in (0.05, 0.3, 0.95, 1.0):
        best = float(np.quantile(list(rates.values()), rng.uniform(0.2, 1)))
        bound_s = float(np.quantile(list(promises_s.values()), share))
        question = Question(file=asked(machine, workload, bound_s, mode))
        found = set(Cra(question, shape).unsettled(whole, best, bound_s))
        assert found == {p for p in points if rates[p] > best and promises_s[p] <= bound_s}


@pytest.mark.parametrize("seed", seeds(120, fast=8))
def test_what_bounds_of_waa_settle_holds_nothing_better(seed: int) -> None:
    """Exactly what is better is found on a pair; pairs that sides alone settle hold nothing better."""
    sites, promise = random_sites(seed)
    mode = "p99" if promise.sds else "mean"
    rng = np.random.default_rng((seed, 1))

    def question(bound_s: float) -> Question:
        found = Question(file=asked(sites.table, sites.law.workload, bound_s, mode))
        found.__dict__.update(pairs=sites, law=sites.law)  # with the rooms of these sides
        return found

    spaces = [Waa(question(1.0), number) for number in range(len(sites))]
    points = [points_of(space) for space in spaces]
    every = [(space, point) for space, some in zip(spaces, points, strict=True) for point in some]
    if not every:
        return
    rates = [space.rate(*point) for space, point in every]
    promises_s = [space.promised_s(*point) for space, point in every]
    for share in (0.05, 0.3, 0.7, 1.0):
        best = float(np.quantile(rates, rng.uniform(0.5, 1)))
        bound_s = float(np.quantile(promises_s, share)) if share < 1 else float("inf")
        now = question(bound_s)
        may = left(now, best)
        for number, some in enumerate(points):
            space = spaces[number]
            better = {p for p in some if space.rate(*p) > best and space.promised_s(*p) <= bound_s}
            assert may[number] or not better, (number, best, bound_s)
            same = Waa(now, number)
            assert set(same.unsettled(same.whole, best, bound_s)) == better
            assert set(same.unsettled(same.whole, 0.0, float("inf"))) == set(some)


def test_the_chunks_are_those_of_the_search() -> None:
    assert tuple(CHUNKS) == SEARCHED
