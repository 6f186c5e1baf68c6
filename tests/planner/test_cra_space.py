"""CRA's space where pools are many: interpolated runs of pools, bounds of wide blocks, and little work."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.certificate import certify, check
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_space import CHUNKS, CraSpace
from exegpt_planner.exhaustive import best_of_all
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.search import Block, search
from exegpt_planner.simulator.costs import costs_of
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from planner.builders import bell, independent, rough_table, summarization_like, table
from planner.observing import TILED
from planner.spaces import assert_as_good

COARSE = CHUNKS[8::4]  # an octave apart, so that every schedule is soon tried

MACHINES = {
    "affine": table(),
    "tiled": table(queries=TILED),
    "rough": rough_table(np.random.default_rng(5), reach=100, context=60_000),
}


def space(machine: str) -> CraSpace:
    workload = (
        summarization_like()
        if machine != "tiled"
        else independent(bell(64, 30, 128), bell(48, 20, 96))
    )
    law = CompletionLaw(workload)
    model = CraModel(Pipeline.single(costs_of(MACHINES[machine])), law, prompt_moments(workload))
    promise = Promise.full(length=workload.output.quantile(0.99), error=0.03)
    return CraSpace(model, promise, 1e6, chunks=COARSE)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("times", [1.5, 4.0, np.inf])
def test_search_of_many_pools_finds_what_exhaustive_search_finds(
    machine: str, times: float
) -> None:
    searched, oracle = space(machine), space(machine)
    bound_s = times * oracle.promised_s((1, oracle.whole.y2))
    best = best_of_all(oracle, bound_s)
    found = search(searched, bound_s)
    assert_as_good(found.best, best)
    assert best is not None
    certificate = certify(searched, found)
    assert check(certificate, oracle, best=best.throughput, bound_s=bound_s) == []
    assert searched.whole.num_points > 1000
    assert found.num_evaluations < searched.whole.num_points / 20
    assert searched.model.queues.num_solved < oracle.model.queues.num_solved


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_of_a_large_block_beats_its_bounds(machine: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    large = space(machine)
    whole = large.whole
    for _ in range(20):
        x = np.sort(np.exp(rng.uniform(0, np.log(whole.x2), 2)).astype(int))
        y = np.sort(rng.integers(1, whole.y2 + 1, 2))
        block = Block(int(x[0]), int(x[1]), int(y[0]), int(y[1]))
        bounds = large.bound(block)
        points = [point for point in block.points() if large.blocked(point) is None]
        assert not (points and bounds.blocked)
        for point in points:
            assert large.throughput(point) <= bounds.throughput * (1 + 1e-9), (block, point)
            assert large.promised_s(point) >= bounds.promised_s * (1 - 1e-9), (block, point)


def test_a_second_bound_solves_hardly_any_more_laws() -> None:
    large = space("affine")
    bound_s = 3 * large.promised_s((1, large.whole.y2))
    search(large, bound_s)
    solved = large.model.queues.num_solved
    search(large, 1.05 * bound_s)
    assert large.model.queues.num_solved <= 1.3 * solved
