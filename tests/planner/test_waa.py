"""WAA's closed forms against a request-level Monte-Carlo, its limits, and the splits the paper names."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.lengths import LengthLaw
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.schedule import RraSchedule, WaaSchedule
from exegpt_planner.simulator import latency_of, simulate
from exegpt_planner.simulator.costs import costs_of, hand_over_of
from exegpt_planner.simulator.waa import Instances, WaaModel
from exegpt_planner.splits import named_splits
from exegpt_planner.workload import Workload
from planner.builders import bell, correlated, independent, point, summarization_like, table
from planner.observing import TILED, observe, probed

S = summarization_like()
SHORT = independent(bell(32, 17, 64), bell(3, 2, 9))
SHORTEST = independent(bell(60, 20, 100), bell(1, 1.5, 7))  # decoders are often empty


def waa(encoders: int, decoders: int, batch: int, pool: int) -> WaaSchedule:
    return WaaSchedule(encoders=encoders, decoders=decoders, encode_batch=batch, pool=pool)


def model(machine: ProfileTable, workload: Workload, split: tuple[int, int] = (1, 1)) -> WaaModel:
    return WaaModel(
        Instances.alike(costs_of(machine), hand_over_of(machine)),
        CompletionLaw(workload),
        prompt_moments(workload),
        split,
    )


def assert_agrees(
    schedule: WaaSchedule,
    machine: ProfileTable,
    workload: Workload,
    iterations: int,
    *,
    joint: bool = False,
) -> None:
    seen = observe(schedule, machine, workload, iterations * schedule.decoders, joint=joint)
    expected = simulate(schedule, machine, workload)
    latencies = np.array(seen.latencies[workload.output.quantile(0.99)])
    busy = seen.encode_s / seen.elapsed_s / schedule.encoders
    assert expected.queries_per_s == pytest.approx(seen.queries_per_s, rel=0.03)
    assert expected.cycle_s == pytest.approx(float(np.mean(seen.iteration_s)), rel=0.03)
    assert expected.pool_mean == pytest.approx(float(np.mean(seen.pool)), rel=0.03)
    assert expected.encode_share == pytest.approx(busy, abs=0.03)
    assert expected.latency_mean_s == pytest.approx(latencies.mean(), rel=0.05)
    assert expected.latency_p99_s == pytest.approx(float(np.quantile(latencies, 0.99)), rel=0.05)


# Where places bind, where encoders do, and between: the share of the time that encoders are busy is in the comment.
CASES = [
    (waa(1, 1, 1, 8), 6000),  # 45 %
    (waa(1, 1, 4, 8), 6000),  # 19 %
    (waa(1, 1, 16, 40), 6000),  # 36 %
    (waa(1, 1, 4, 60), 4000),  # 60 %
    (waa(2, 1, 4, 12), 6000),  # 14 %
    (waa(2, 1, 8, 100), 4000),  # 28 %
    (waa(1, 2, 8, 30), 5000),  # 74 %
    (waa(1, 2, 8, 50), 6000),  # 92 %
    (waa(1, 2, 2, 20), 8000),  # 98 %
    (waa(1, 2, 8, 200), 20_000),  # 100 %
    (waa(1, 3, 8, 30), 6000),  # 99.6 %
]


@pytest.mark.slow
@pytest.mark.parametrize("machine", [table(), table(queries=TILED)], ids=["affine", "tiled"])
@pytest.mark.parametrize(("schedule", "iterations"), CASES)
def test_prediction_agrees_with_monte_carlo(
    schedule: WaaSchedule, iterations: int, machine: ProfileTable
) -> None:
    assert_agrees(schedule, machine, probed(S), iterations)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [waa(1, 1, 4, 16), waa(1, 2, 4, 20), waa(1, 1, 8, 64)])
def test_prediction_keeps_the_joint_law(schedule: WaaSchedule) -> None:
    workload = correlated(bell(12, 6, 24), factor=1.5)
    assert_agrees(schedule, table(), workload, 20_000, joint=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "schedule"),
    [
        (SHORT, waa(1, 1, 1, 30)),
        (SHORT, waa(1, 1, 4, 16)),
        (SHORT, waa(1, 1, 8, 64)),
        (SHORT, waa(1, 2, 4, 20)),
        (SHORTEST, waa(1, 1, 8, 64)),
        (SHORTEST, waa(1, 1, 16, 100)),
        (SHORTEST, waa(2, 1, 4, 20)),
    ],
)
def test_short_answers_leave_decoders_empty_at_times(
    workload: Workload, schedule: WaaSchedule
) -> None:
    assert_agrees(schedule, table(), probed(workload), 20_000)


@pytest.mark.parametrize("schedule", [waa(1, 1, 4, 16), waa(1, 2, 8, 60)])
def test_short_monte_carlo_agrees(schedule: WaaSchedule) -> None:
    assert_agrees(schedule, table(queries=TILED), probed(S), 1500)


@pytest.mark.parametrize("schedule", [waa(1, 1, 1, 8), waa(1, 1, 4, 60), waa(2, 1, 8, 100)])
def test_a_pool_strays_by_what_is_in_transit_where_places_bind(schedule: WaaSchedule) -> None:
    seen = observe(schedule, table(), S, 6000, joint=False)
    expected = simulate(schedule, table(), S)
    assert expected.encode_share < 0.75
    assert expected.pool_sd == pytest.approx(float(np.std(seen.pool)), rel=0.08)


def test_monte_carlo_of_one_batch_at_a_time_is_what_can_be_said_by_hand() -> None:
    """Prompts of 20, answers of 9, one place: encode, hand over, eight iterations, and again."""
    machine, workload = table(), independent(point(20), point(9))
    seen = observe(waa(1, 1, 1, 1), machine, workload, 800, joint=False)
    encode_s = 4 * (4e-4 + 8e-6 * 20 + 2e-5 + 2e-9 * 210) + 1e-7 * 20 + 2e-5 + 2e-4
    sent_s, joined_s, exposed_s = 1e-4 + 4e-7 * 20, 1e-4 + 3e-7 * 20, 3e-4 + 1e-6 * 20
    one_s = 4 * (4e-4 + 8e-6 + 1.5e-5) + 1e-7 + 2e-5 + 2e-4
    decodes_s = sum(one_s + 4 * 4e-8 * (20 + t) for t in range(1, 9))
    latency_s = encode_s + sent_s + exposed_s + 3e-4 + joined_s + decodes_s + 7 * 3e-4
    assert seen.latencies[9] == pytest.approx([latency_s] * len(seen.latencies[9]))
    assert seen.elapsed_s / seen.completed == pytest.approx(latency_s + 3e-4, rel=0.02)


@pytest.mark.parametrize("batch", [1, 4, 9])
def test_without_a_limit_of_places_the_pool_is_that_of_littles_law(batch: int) -> None:
    """The paper's group sizes, n = B_E mu tau_D / tau_E, as encoders never wait."""
    machine = table(queries=TILED)
    expected = simulate(waa(1, 1, batch, 500), machine, SHORT)
    assert expected.encode_share == pytest.approx(1.0, abs=1e-6)
    encode_s = batch / expected.queries_per_s
    assert encode_s == pytest.approx(expected.first_token_s + machine.dispatch_s, rel=1e-6)
    n = batch * (SHORT.output.mean - 1) * expected.cycle_s / encode_s
    assert expected.pool_mean == pytest.approx(n, rel=0.02)


def test_more_places_never_cost_throughput_on_affine_tables() -> None:
    found = [simulate(waa(1, 2, 8, pool), table(), S).queries_per_s for pool in range(16, 120, 4)]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(found))


def test_more_encoders_matter_only_where_encoders_are_busy() -> None:
    two, three = (simulate(waa(x, 1, 4, 30), table(), S).queries_per_s for x in (2, 3))
    assert three == pytest.approx(two, rel=0.01)
    one, two = (simulate(waa(x, 1, 4, 60), table(), SHORT).queries_per_s for x in (1, 2))
    assert two > 1.5 * one


def test_answer_of_one_token_takes_its_encode_and_its_sending() -> None:
    schedule = waa(1, 1, 4, 20)
    expected = simulate(schedule, table(), S)
    assert latency_of(schedule, table(), S, 1) == pytest.approx(expected.first_token_s)
    alone = simulate(RraSchedule(encode_batch=4, encode_interval=5), table(), S)
    assert expected.first_token_s > alone.first_token_s


def test_memory_is_that_of_a_full_pool_or_of_an_encoders_batch() -> None:
    few, many = (simulate(waa(1, 1, 4, pool), table(), S) for pool in (16, 64))
    assert few.kv_tokens < few.kv_tokens_reserved < many.kv_tokens_reserved
    # 64 places: as many queries, each with its prompt and half an answer at most
    assert many.kv_tokens < 64 * (S.input.mean + S.output.max)
    one_token = independent(point(60), bell(1, 0.5, 3))
    assert simulate(waa(1, 1, 16, 32), table(), one_token).kv_tokens_reserved > 16 * 60


def test_pool_without_room_for_two_batches_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="pool of at least 16, not 15"):
        simulate(waa(1, 1, 8, 15), table(), S)


def test_profile_without_hand_over_is_refused() -> None:
    machine = table().model_copy(update={"hand_over": None})
    with pytest.raises(IncompleteProfile, match="handing over KV"):
        simulate(waa(1, 1, 8, 20), machine, S)


def test_hand_over_beyond_the_profile_is_refused() -> None:
    curves = hand_over_of(table())
    short = curves.model_copy(update={"joined": curves.joined.model_copy(update={"x": (0, 200)})})
    machine = table().model_copy(update={"hand_over": short})
    assert model(machine, S).max_batch == 3
    with pytest.raises(IncompleteProfile, match="batches up to 3"):
        simulate(waa(1, 1, 4, 20), machine, S)


@pytest.mark.parametrize(
    ("inputs", "outputs", "compute", "memory"),
    [
        (bell(200, 30, 300), bell(3, 1, 6), (3, 1), (1, 3)),  # encodes take most of the time
        (bell(20, 5, 40), bell(40, 10, 80), (1, 3), (1, 3)),
    ],
)
def test_named_splits_follow_compute_and_memory(
    inputs: LengthLaw, outputs: LengthLaw, compute: tuple[int, int], memory: tuple[int, int]
) -> None:
    workload = independent(inputs, outputs)
    named = named_splits(model(table(), workload, (2, 2)), 4, 60)
    assert named == {"WAA-C": compute, "WAA-M": memory}
