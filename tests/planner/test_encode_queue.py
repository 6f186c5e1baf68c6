"""CRA's encode queue against plain iteration of its recursion, and the monotony the search's latency bound needs."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.lengths import point
from exegpt_planner.simulator.encode_queue import QueueFamily
from exegpt_planner.workload import Workload
from planner.builders import bell, independent

LONG = independent(bell(40, 15, 80), bell(30, 12, 60))
SHORT = independent(bell(32, 17, 64), bell(5, 2, 12))


def iterated(workload: Workload, pool: int, chunk: int, rho: float) -> tuple[float, float]:
    """(mean of the tokens waiting, of those encoded in a step), by iterating W' = (W + A - C)+ in plain tokens."""
    arriving = np.array([1.0])
    one = (1 - rho) * np.eye(1, len(workload.input.pmf))[0] + rho * workload.input.pmf
    for _ in range(pool):
        arriving = np.convolve(arriving, one)
    waiting = np.array([1.0])
    for _ in range(250):
        law = np.convolve(waiting, arriving)
        waiting = np.append(law[: chunk + 1].sum(), law[chunk + 1 :])
        waiting = waiting[: np.searchsorted(np.cumsum(waiting), 1 - 1e-12) + 1]
    law = np.convolve(waiting, arriving)
    tokens = np.arange(len(law))
    return float(np.arange(len(waiting)) @ waiting), float(np.minimum(tokens, chunk) @ law)


@pytest.mark.parametrize(
    ("workload", "pool", "chunk"), [(LONG, 6, 12), (LONG, 6, 64), (SHORT, 4, 64)]
)
def test_step_tokens_agree_with_iteration(workload: Workload, pool: int, chunk: int) -> None:
    queue = QueueFamily(workload).queue(pool, chunk)
    grid = np.arange(len(queue.step_tokens)) * queue.unit_tokens
    _, encoded = iterated(workload, pool, chunk, queue.completions)
    assert grid @ queue.step_tokens == pytest.approx(encoded, rel=1e-5)
    arriving = pool * queue.completions * workload.input.mean
    assert encoded == pytest.approx(arriving, rel=1e-5)  # what comes in is encoded


def test_stay_follows_from_waiting_by_littles_law() -> None:
    queue = QueueFamily(LONG).queue(6, 12)
    waiting, _ = iterated(LONG, 5, 12, queue.completions)
    # the tokens ahead, half a chunk for the rounding up, and one's own
    assert queue.stay == pytest.approx((waiting + LONG.input.mean) / 12 + 0.5, rel=0.12)


def test_lone_slot_never_waits() -> None:
    queue = QueueFamily(LONG).queue(1, 32)
    chunks = -(-np.arange(len(LONG.input.pmf)) // 32)
    assert queue.stay == pytest.approx(chunks @ LONG.input.pmf, rel=5e-3)  # tokens are lumped
    assert queue.span == pytest.approx(queue.stay)


@pytest.mark.parametrize("tokens", [64, 96, 33])
def test_prompts_of_one_length_are_no_special_case(tokens: int) -> None:
    queue = QueueFamily(independent(point(tokens), bell(20, 6, 40))).queue(5, 32)
    assert queue.stay >= tokens / 32
    assert queue.step_tokens.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("workload", [LONG, SHORT])
def test_rate_and_stay_rise_with_the_pool_and_the_rate_with_the_chunk(workload: Workload) -> None:
    family = QueueFamily(workload)
    need = workload.input.mean / workload.output.mean
    pools, chunks = (1, 2, 3, 5, 8), (64, 128, 512)
    rates, stays = np.full((5, 3), np.nan), np.full((5, 3), np.nan)
    for i, pool in enumerate(pools):
        for j, chunk in enumerate(chunks):
            if chunk >= 1.1 * pool * need:
                queue = family.queue(pool, chunk)
                rates[i, j], stays[i, j] = pool * queue.completions, queue.stay
    for steps in (np.diff(rates, axis=0), np.diff(rates, axis=1), np.diff(stays, axis=0)):
        assert np.all(steps[~np.isnan(steps)] >= -1e-6)
