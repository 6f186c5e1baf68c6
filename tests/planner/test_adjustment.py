"""Run-time adjustment against request-level simulation: no mean moves, and both the encode and the pool stray less."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.adjustment import (
    LEAST_BATCH,
    adjusted,
    encode_target,
    nearest_prefix,
    rra_adjustment,
    waa_adjustment,
)
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.lengths import LengthLaw, truncated_normal
from exegpt_planner.schedule import Adjustment, CraSchedule, PoolBand, RraSchedule, WaaSchedule
from exegpt_planner.simulator import simulate
from exegpt_planner.workload import Workload
from planner.builders import bell, independent, point, table
from planner.monte_carlo import Ints, Observed, run_rra

REACH = 256.0
INPUTS = truncated_normal(32, 15.5, 64)
OUTPUTS = truncated_normal(40, 21, 100)


def drawn(law: LengthLaw, num: int, seed: int = 5) -> Ints:
    return np.random.default_rng(seed).choice(len(law.pmf), size=num, p=law.pmf)


def cut(lengths: list[int], target: float, most: int) -> list[int]:
    """Batch sizes of a queue that always holds `most` queries more."""
    sizes, begun = [], 0
    while begun + most <= len(lengths):
        sizes.append(nearest_prefix(lengths[begun : begun + most], target))
        begun += sizes[-1]
    return sizes


@pytest.mark.parametrize(
    ("tokens", "target", "number"),
    [
        ([5, 5, 5], 10.0, 2),
        ([5, 5, 5], 12.0, 2),
        ([5, 5, 5], 13.0, 3),
        ([5, 5, 5], 12.5, 2),  # as near: the earlier one
        ([5, 5, 5], 100.0, 3),  # all that wait
        ([50, 1], 10.0, 1),  # one at least
        ([], 10.0, 0),
    ],
)
def test_the_prefix_nearest_to_the_target(tokens: list[int], target: float, number: int) -> None:
    assert nearest_prefix(tokens, target) == number


@pytest.mark.parametrize("law", [INPUTS, truncated_normal(100, 90, 1000), bell(40, 8, 80)])
@pytest.mark.parametrize("batch", [LEAST_BATCH, 8, 24])
def test_a_target_of_the_mean_tokens_keeps_the_mean_batch_and_its_tokens(
    law: LengthLaw, batch: int
) -> None:
    """Of one queue cut again and again; what is left over stays first, so nothing needs correcting."""
    target = batch * law.mean
    lengths = drawn(law, 40_000 * batch // 8).tolist()
    sizes = cut(lengths, target, 2 * batch)
    assert np.mean(sizes) == pytest.approx(batch, rel=0.01)
    tokens = np.add.reduceat(lengths, np.cumsum([0, *sizes[:-1]]))
    assert tokens[:-1].mean() == pytest.approx(target, rel=0.01)
    assert tokens[:-1].std() < 0.8 * np.sqrt(batch * law.var)


def test_afresh_from_independent_lengths_the_batch_is_larger_by_the_renewal_term() -> None:
    """E[N] = T / m + v / (2 m^2), were nothing left over: what the queue's order spares us."""
    law, batch, rounds = truncated_normal(100, 90, 1000), 16, 6000
    lengths = drawn(law, rounds * 2 * batch).reshape(rounds, 2 * batch).tolist()
    sizes = [nearest_prefix(each, batch * law.mean) for each in lengths]
    assert np.mean(sizes) == pytest.approx(batch + law.var / (2 * law.mean**2), abs=0.1)
    assert np.mean(sizes) > batch + 0.2


BAND = Adjustment(
    encode_tokens=80.0,
    most_tokens=110.0,
    most_queries=16,
    pool=PoolBand(mean=20.0, band=4.0, gain=0.5),
)


@pytest.mark.parametrize(
    ("pool", "tokens"),
    [(20, 80), (24, 80), (16, 80), (26, 70), (14, 90), (60, 50), (0, 110)],
)
def test_beyond_its_band_the_pool_changes_the_encode_in_proportion(
    pool: int, tokens: float
) -> None:
    assert encode_target(BAND, 8, pool) == pytest.approx(tokens)


def simulated(
    workload: Workload, batch: int, interval: int, adjustment: Adjustment | None
) -> tuple[Observed, list[float]]:
    """A run of RRA, and the tokens of its encodes."""
    rng = np.random.default_rng(11)
    queue: list[tuple[int, int]] = []
    encodes: list[float] = []

    def draw(pool: int) -> tuple[Ints, Ints]:
        while len(queue) < 2 * batch:
            inputs, outputs = workload.sample(rng, 256)
            queue.extend(zip(inputs.tolist(), outputs.tolist(), strict=True))
        number = batch
        if adjustment is not None:
            waiting = [tokens for tokens, _ in queue[: adjustment.most_queries]]
            number = nearest_prefix(waiting, encode_target(adjustment, batch, pool))
        taken = np.array(queue[:number])
        del queue[:number]
        encodes.append(float(taken[:, 0].sum()))
        return taken[:, 0], taken[:, 1]

    seen = run_rra(
        table(),
        draw,
        is_adjusted=True,
        batch=batch,
        interval=interval,
        cycles=1000,
        warm_up=100,
    )
    return seen, encodes[100:]


@pytest.mark.parametrize(("batch", "interval"), [(4, 4), (8, 8), (16, 12)])
def test_adjusted_no_mean_moves_and_encode_and_pool_stray_less(batch: int, interval: int) -> None:
    workload = independent(INPUTS, OUTPUTS)
    law = CompletionLaw(workload)
    adjustment = rra_adjustment(law, batch, interval, encode_share=0.2, reach=REACH)
    assert adjustment is not None
    (before, plain), (after, even) = (
        simulated(workload, batch, interval, each) for each in (None, adjustment)
    )
    assert after.elapsed_s / after.cycles == pytest.approx(
        before.elapsed_s / before.cycles, rel=0.01
    )
    assert np.mean(after.pool) == pytest.approx(np.mean(before.pool), rel=0.01)
    assert after.queries_per_s == pytest.approx(before.queries_per_s, rel=0.01)
    assert np.std(even) < 0.9 * np.std(plain)
    assert pool_sd(after, interval) < pool_sd(before, interval)
    expected = simulate(
        RraSchedule(encode_batch=batch, encode_interval=interval), table(), workload
    )
    assert expected.cycle_s == pytest.approx(after.elapsed_s / after.cycles, rel=0.01)
    assert expected.pool_mean == pytest.approx(np.mean(after.pool), rel=0.015)
    assert s99_sd(after, workload) < s99_sd(before, workload)


def pool_sd(seen: Observed, interval: int) -> float:
    """Around the pool's mean at the same iteration of a phase: its fall within one is planned."""
    pools = np.array(seen.pool).reshape(-1, interval)
    return float(np.sqrt(pools.var(axis=0).mean()))


def s99_sd(seen: Observed, workload: Workload) -> float:
    """Of the latency of long answers, each less the mean of its length."""
    longest = workload.output.max
    strays = [
        np.array(seen.latencies[length]) - np.mean(seen.latencies[length])
        for length in range(longest * 3 // 4, longest + 1)
        if len(seen.latencies.get(length, [])) > 1
    ]
    return float(np.concatenate(strays).std())


def test_the_band_is_the_exact_laws_pool_as_an_encode_finds_it() -> None:
    workload = independent(INPUTS, OUTPUTS)
    adjustment = rra_adjustment(CompletionLaw(workload), 8, 8, encode_share=0.2, reach=REACH)
    assert adjustment is not None
    assert adjustment.pool is not None
    left = [8 * workload.output.pmf[t + 1 :].sum() for t in range(9, workload.output.max, 8)]
    assert adjustment.pool.mean == pytest.approx(sum(left))
    assert adjustment.encode_tokens == pytest.approx(8 * workload.input.mean)
    assert adjustment.most_queries == 16


def test_no_adjustment_where_it_would_only_move_the_fluctuation() -> None:
    workload = independent(INPUTS, OUTPUTS)
    law = CompletionLaw(workload)

    def of(batch: int, interval: int, share: float) -> Adjustment | None:
        return rra_adjustment(law, batch, interval, encode_share=share, reach=REACH)

    assert of(LEAST_BATCH - 1, 8, 0.2) is None
    assert of(16, 90, 0.2) is None  # the pool empties between encodes
    encodes_rule = of(16, 90, 0.6)
    assert encodes_rule is not None
    assert encodes_rule.pool is None
    constant = CompletionLaw(independent(point(20), OUTPUTS))
    assert rra_adjustment(constant, 8, 8, encode_share=0.2, reach=REACH) is None


def test_an_encode_never_takes_more_queries_than_the_profile_reaches() -> None:
    workload = independent(INPUTS, OUTPUTS)
    adjustment = waa_adjustment(workload, 8, reach=12)
    assert adjustment is not None
    assert adjustment.most_queries == 12
    assert adjustment.pool is None


def test_a_schedule_by_hand_gets_the_adjustment_of_a_planned_one() -> None:
    workload = independent(INPUTS, OUTPUTS)
    plain = RraSchedule(encode_batch=8, encode_interval=8)
    prediction = simulate(plain, table(), workload)
    found = adjusted(plain, prediction, workload, reach=REACH)
    assert isinstance(found, RraSchedule)
    assert found.adjustment == rra_adjustment(
        CompletionLaw(workload), 8, 8, encode_share=prediction.encode_share, reach=REACH
    )
    assert found.adjustment is not None
    assert adjusted(found, prediction, workload, reach=REACH) is found
    waa = WaaSchedule(encoders=1, decoders=1, encode_batch=8, pool=32)
    given = adjusted(waa, prediction, workload, reach=REACH)
    assert isinstance(given, WaaSchedule)
    assert given.adjustment == waa_adjustment(workload, 8, reach=REACH)
    cra = CraSchedule(pool=8, chunk_tokens=64)
    assert adjusted(cra, prediction, workload, reach=REACH) is cra
