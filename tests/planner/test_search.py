"""Branch and bound against every schedule, one by one, on rough random tables; block bounds against their points."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.certificate import certify, check
from exegpt_planner.exhaustive import best_of_all
from exegpt_planner.search import Block, fastest, search
from exegpt_planner.strategies import StrategySpace
from planner.spaces import assert_as_good, held_to, random_space, some_bound


def cases(*, fast: dict[str, int], last: int = 400) -> list[object]:
    """(strategy, seed): the first so many of each strategy in the fast tier, the others slow."""
    return [
        pytest.param(strategy, seed, marks=() if seed < few else pytest.mark.slow)
        for strategy, few in fast.items()
        for seed in range(last)
    ]


def random_block(space: StrategySpace, rng: np.random.Generator) -> Block:
    whole = space.whole
    x = np.sort(rng.integers(whole.x1, whole.x2 + 1, 2))
    y = np.sort(rng.integers(whole.y1, whole.y2 + 1, 2))
    return Block(int(x[0]), int(x[1]), int(y[0]), int(y[1]))


@pytest.mark.parametrize(
    ("strategy", "seed"),
    cases(fast={"RRA": 40, "RRA on pipelines": 40, "CRA": 200, "CRA on pipelines": 40, "WAA": 40}),
)
def test_search_finds_what_exhaustive_search_finds(strategy: str, seed: int) -> None:
    space = random_space(strategy, seed)
    if space.whole.num_points < 1:
        return  # the table covers not one schedule
    bound_s = some_bound(space, seed)
    if seed % 4:
        space = held_to(space, bound_s if seed % 4 < 3 else np.inf)
    bound_s = np.inf if seed % 4 == 3 else bound_s
    found, best = search(space, bound_s), best_of_all(space, bound_s)
    assert_as_good(found.best, best)
    certificate = certify(space, found)
    throughput = None if best is None else best.throughput
    assert check(certificate, space, best=throughput, bound_s=bound_s) == []


@pytest.mark.parametrize(
    ("strategy", "seed"),
    cases(fast={"RRA": 12, "RRA on pipelines": 12, "CRA": 8, "CRA on pipelines": 8, "WAA": 12}),
)
def test_no_schedule_of_a_block_beats_its_bounds(strategy: str, seed: int) -> None:
    space = random_space(strategy, seed)
    if space.whole.num_points < 1:
        return
    rng = np.random.default_rng((seed, 2))
    for _ in range(4):
        block = random_block(space, rng)
        bounds, rough = space.bound(block), space.roughly(block)
        for point in block.points():
            if space.blocked(point) is not None:
                continue
            if rough is not None:
                assert space.throughput(point) <= rough.throughput * (1 + 1e-9), point
                assert space.promised_s(point) >= rough.promised_s * (1 - 1e-9), point
            assert bounds.blocked is None, point
            assert space.throughput(point) <= bounds.throughput * (1 + 1e-9), point
            assert space.promised_s(point) >= bounds.promised_s * (1 - 1e-9), point


@pytest.mark.parametrize(
    ("strategy", "seed"), cases(fast={"RRA": 12, "RRA on pipelines": 12}, last=200)
)
def test_no_schedule_of_a_block_within_the_bound_beats_its_throughput(
    strategy: str, seed: int
) -> None:
    space = random_space(strategy, seed)
    if space.whole.num_points < 1:
        return
    bound_s = some_bound(space, seed)
    space = held_to(space, bound_s)
    rng = np.random.default_rng((seed, 3))
    for _ in range(4):
        block = random_block(space, rng)
        rough, bounds = space.roughly(block), space.bound(block)
        assert rough is not None
        for point in block.points():
            if space.blocked(point) is None and space.promised_s(point) <= bound_s:
                least = space.throughput(point) * (1 - 1e-9)
                assert least <= min(rough.throughput, bounds.throughput), point


@pytest.mark.parametrize("strategy", ["RRA", "RRA on pipelines", "CRA", "CRA on pipelines", "WAA"])
@pytest.mark.parametrize("seed", range(5))
def test_fastest_is_the_least_promise_of_all(strategy: str, seed: int) -> None:
    space = random_space(strategy, seed)
    if space.whole.num_points < 1:
        return
    promises = [space.promised_s(p) for p in space.whole.points() if space.blocked(p) is None]
    found = fastest(space)
    assert (None if found is None else found.promised_s) == (min(promises) if promises else None)


def test_search_evaluates_a_small_part_of_a_large_space() -> None:
    space = random_space("RRA", 3)
    found = search(space, some_bound(space, 3))
    assert found.num_evaluations < space.whole.num_points / 2


def test_certificate_with_a_missing_leaf_is_found_out() -> None:
    space = random_space("RRA", 3)
    bound_s = some_bound(space, 3)
    found = search(space, bound_s)
    certificate = certify(space, found)
    cut = certificate.model_copy(update={"leaves": certificate.leaves[1:]})
    best = None if found.best is None else found.best.throughput
    assert any("in no leaf" in each for each in check(cut, space, best=best, bound_s=bound_s))


def test_halves_cover_a_block() -> None:
    block = Block(3, 17, 2, 9)
    a, b = block.split()
    assert sorted([*a.points(), *b.points()]) == sorted(block.points())
