"""The closed forms against a request-level Monte-Carlo: means within 1 %, the percentile within 2 %."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, Prediction, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.simulator import latency_of, simulate
from planner.builders import Floats, bell, correlated, independent, summarization_like, table
from planner.monte_carlo import Observed
from planner.observing import TILED, observe, probed


def assert_predicted(expected: Prediction, seen: Observed, length: int) -> None:
    latencies: Floats = np.array(seen.latencies[length])
    pool = np.array(seen.pool)
    assert expected.cycle_s == pytest.approx(seen.elapsed_s / seen.cycles, rel=0.01)
    assert expected.latency_mean_s == pytest.approx(latencies.mean(), rel=0.01)
    assert expected.latency_p99_s == pytest.approx(np.quantile(latencies, 0.99), rel=0.02)
    assert expected.pool_mean == pytest.approx(pool.mean(), rel=0.015)  # its own noise is 0.5 %
    assert expected.pool_sd == pytest.approx(pool.std(), rel=0.05)


CASES = [
    (RraSchedule(encode_batch=3, encode_interval=40), 3000),
    (RraSchedule(encode_batch=8, encode_interval=10), 3000),
    (RraSchedule(encode_batch=24, encode_interval=5), 2500),
    (CraSchedule(pool=4, chunk_tokens=32), 40_000),
    (CraSchedule(pool=16, chunk_tokens=64), 20_000),
    (CraSchedule(pool=16, chunk_tokens=256), 20_000),
    (CraSchedule(pool=60, chunk_tokens=256), 12_000),
]


@pytest.mark.slow
@pytest.mark.parametrize("machine", [table(), table(queries=TILED)], ids=["affine", "tiled"])
@pytest.mark.parametrize(("schedule", "cycles"), CASES)
def test_prediction_agrees_with_monte_carlo(
    schedule: Schedule, cycles: int, machine: ProfileTable
) -> None:
    workload = probed(summarization_like())
    seen = observe(schedule, machine, workload, cycles, joint=False)
    assert_predicted(simulate(schedule, machine, workload), seen, workload.output.quantile(0.99))


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "cycles"), CASES[1:5])
def test_prediction_keeps_the_joint_law(schedule: Schedule, cycles: int) -> None:
    workload = correlated(bell(12, 6, 24), factor=1.5)
    seen = observe(schedule, table(), workload, 2 * cycles, joint=True)
    assert_predicted(simulate(schedule, table(), workload), seen, workload.output.quantile(0.99))


@pytest.mark.parametrize(
    ("schedule", "cycles"),
    [
        (RraSchedule(encode_batch=8, encode_interval=10), 500),
        (CraSchedule(pool=16, chunk_tokens=64), 4000),
    ],
)
def test_short_monte_carlo_agrees(schedule: Schedule, cycles: int) -> None:
    workload = probed(summarization_like())
    machine = table(queries=TILED)
    seen = observe(schedule, machine, workload, cycles, joint=False)
    expected = simulate(schedule, machine, workload)
    latencies = seen.latencies[workload.output.quantile(0.99)]
    assert expected.cycle_s == pytest.approx(seen.elapsed_s / seen.cycles, rel=0.02)
    assert expected.latency_mean_s == pytest.approx(float(np.mean(latencies)), rel=0.015)


def test_one_query_at_a_time_is_exact() -> None:
    workload = independent(bell(20, 0.01, 20), bell(9, 0.01, 9))  # constant lengths
    machine = table()
    expected = simulate(RraSchedule(encode_batch=1, encode_interval=8), machine, workload)
    seen = observe(
        RraSchedule(encode_batch=1, encode_interval=8), machine, workload, 60, joint=False
    )
    assert expected.latency_mean_s == pytest.approx(seen.latencies[9][0], rel=1e-9)
    assert expected.latency_sd_s == pytest.approx(0.0, abs=1e-9)
    assert expected.cycle_s == pytest.approx(seen.elapsed_s / seen.cycles, rel=1e-9)


def test_answer_of_one_token_takes_its_encode() -> None:
    machine, workload = table(), summarization_like()
    schedule = RraSchedule(encode_batch=4, encode_interval=6)
    expected = simulate(schedule, machine, workload)
    assert latency_of(schedule, machine, workload, 1) == pytest.approx(expected.first_token_s)


@pytest.mark.parametrize(
    "schedule",
    [
        RraSchedule(encode_batch=6, encode_interval=7),
        CraSchedule(pool=20, chunk_tokens=256),
        WaaSchedule(encoders=1, decoders=1, encode_batch=3, pool=20),
    ],
)
def test_latency_grows_with_the_answer_even_beyond_the_longest_known(schedule: Schedule) -> None:
    machine, workload = table(), summarization_like()
    latencies = [latency_of(schedule, machine, workload, s) for s in range(1, 60)]
    assert all(a < b for a, b in pairwise(latencies))


def test_papers_law_expects_a_smaller_pool_and_more_throughput() -> None:
    schedule = RraSchedule(encode_batch=24, encode_interval=4)
    exact, paper = (
        simulate(schedule, table(), summarization_like(), law="exact"),
        simulate(schedule, table(), summarization_like(), law="paper"),
    )
    assert paper.pool_mean < 0.95 * exact.pool_mean
    assert paper.queries_per_s > exact.queries_per_s


@pytest.mark.parametrize(
    "schedule",
    [
        RraSchedule(encode_batch=1000, encode_interval=7),
        RraSchedule(encode_batch=200, encode_interval=1),
        CraSchedule(pool=600, chunk_tokens=2048),
        WaaSchedule(encoders=2, decoders=1, encode_batch=8, pool=600),
    ],
)
def test_schedule_beyond_the_profile_is_refused(schedule: Schedule) -> None:
    with pytest.raises(IncompleteProfile):
        simulate(schedule, table(), summarization_like())


def test_chunks_that_cannot_keep_up_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="at least 141"):
        simulate(CraSchedule(pool=64, chunk_tokens=32), table(), summarization_like())
