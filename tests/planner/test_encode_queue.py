"""CRA's encode queue against plain iteration of its recursion and against exact laws of single pools."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from exegpt_planner.lengths import point
from exegpt_planner.simulator.encode_queue import EncodeQueues, QueueFamily
from exegpt_planner.workload import Workload
from planner.builders import Floats, bell, correlated, independent
from planner.exact_queue import ExactQueues

LONG = independent(bell(40, 15, 80), bell(30, 12, 60))
SHORT = independent(bell(32, 17, 64), bell(5, 2, 12))
WIDE = independent(bell(128, 62, 256), bell(64, 34, 160))
WORKLOADS = (LONG, SHORT, WIDE, correlated(bell(12, 6, 24), factor=1.5))


@cache
def families(index: int) -> tuple[QueueFamily, ExactQueues]:
    return QueueFamily(WORKLOADS[index]), ExactQueues(WORKLOADS[index])


def one(workload: Workload, pool: int, chunk: int) -> tuple[EncodeQueues, int]:
    """(queues of a run of pools, the pool's index)."""
    queues = QueueFamily(workload).queues(pool, chunk)
    return queues, pool - int(queues.pools[0])


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
    queues, i = one(workload, pool, chunk)
    rho = float(queues.completions[i])
    _, encoded = iterated(workload, pool, chunk, rho)
    assert queues.tokens @ queues.tokens_law[i] == pytest.approx(encoded, rel=2e-4)
    arriving = pool * rho * workload.input.mean
    assert encoded == pytest.approx(arriving, rel=1e-5)  # what comes in is encoded


def test_stay_follows_from_waiting_by_littles_law() -> None:
    queues, i = one(LONG, 6, 12)
    waiting, _ = iterated(LONG, 5, 12, float(queues.completions[i]))
    # the tokens ahead, half a chunk for the rounding up, and one's own
    assert queues.stay[i] == pytest.approx((waiting + LONG.input.mean) / 12 + 0.5, rel=0.12)


@pytest.mark.parametrize("chunk", [8, 32, 1024])
def test_lone_slot_never_waits(chunk: int) -> None:
    queues, i = one(LONG, 1, chunk)
    chunks = -(-np.arange(len(LONG.input.pmf)) // chunk)
    assert queues.stay[i] == pytest.approx(chunks @ LONG.input.pmf, rel=1e-9)
    assert queues.span[i] == pytest.approx(queues.stay[i])


@pytest.mark.parametrize("tokens", [64, 96, 33])
def test_prompts_of_one_length_are_no_special_case(tokens: int) -> None:
    queues, i = one(independent(point(tokens), bell(20, 6, 40)), 5, 32)
    assert queues.stay[i] >= tokens / 32
    assert queues.tokens_law[i].sum() == pytest.approx(1.0)
    assert queues.tokens_law.min() > -1e-6


CHUNKS = (12, 32, 64, 256, 1024, 4096)
POOLS = (1, 2, 4, 6, 8, 10, 14, 20, 31, 45, 70, 110, 170)


@pytest.mark.parametrize("index", range(len(WORKLOADS)))
@pytest.mark.parametrize("chunk", CHUNKS)
def test_lumped_and_interpolated_laws_agree_with_exact_ones(index: int, chunk: int) -> None:
    family, exact = families(index)
    workload = WORKLOADS[index]
    for pool in POOLS:
        if chunk < family.need(pool):
            break
        queues, oracle = family.queues(pool, chunk), exact.queue(pool, chunk)
        i = pool - int(queues.pools[0])
        assert queues.completions[i] == pytest.approx(oracle.completions, rel=1e-3), pool
        assert queues.span[i] == pytest.approx(oracle.span, rel=0.02), pool
        for law, exactly in (
            (queues.tokens_law[i], oracle.step_tokens),
            (queues.beside_law[i], oracle.step_tokens_beside),
        ):
            for kink in (0.0, 1.0, 3.0):  # means of step times with a bend there
                ours = _beyond(queues.tokens, kink * workload.input.mean) @ law
                theirs = (
                    _beyond(np.arange(float(len(exactly))), kink * workload.input.mean) @ exactly
                )
                scale = float(theirs) + workload.input.mean
                assert ours == pytest.approx(theirs, abs=4e-3 * scale), (pool, kink)


def _beyond(tokens: Floats, kink: float) -> Floats:
    return np.maximum(tokens - kink, 0.0)


@pytest.mark.parametrize("index", range(len(WORKLOADS)))
def test_rates_rise_between_kingmans_bounds(index: int) -> None:
    family, _ = families(index)
    for chunk in CHUNKS:
        pools = [pool for pool in range(1, 200) if chunk >= family.need(pool)]
        if not pools:
            continue
        found = [family.queues(pool, chunk) for pool in pools]
        rates = np.array(
            [p * q.completions[p - int(q.pools[0])] for p, q in zip(pools, found, strict=True)]
        )
        bounds = np.array([family.rate_at_least(pool, chunk) for pool in pools])
        most = np.array([family.rate_at_most(pool, chunk) for pool in pools])
        assert np.all(bounds <= rates * (1 + 1e-4))
        assert np.all(rates <= most * (1 + 1e-3))
        assert np.all(np.diff(bounds) >= 0)
        assert np.all(np.diff(rates) >= -1e-6)


def test_a_pool_is_predicted_alike_whatever_was_asked_before() -> None:
    first, second = QueueFamily(WIDE), QueueFamily(WIDE)
    for pool in (40, 3, 18, 9):
        second.queues(pool, 512)
    for chunk in (64, 512, 2048):
        second.queues(7, chunk)
    ours, theirs = first.queues(20, 512), second.queues(20, 512)
    assert np.array_equal(ours.completions, theirs.completions)
    assert np.array_equal(ours.tokens_law, theirs.tokens_law)


def test_where_nobody_waits_one_run_serves_every_chunk() -> None:
    family = QueueFamily(WIDE)
    assert family.queues(9, 4096) is family.queues(10, 16384)
    assert family.queues(9, 4096).chunk is None
    assert family.queues(9, 128).chunk == 128
