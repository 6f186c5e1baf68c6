"""Drift: how far laws are apart, laws that have drifted, and the share of answers that are late, as simulated."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.drift_broken import BrokenShare, broken_share
from exegpt_planner.drift_laws import distance, shifted, side_distance, tilted
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Until
from exegpt_planner.lengths import LengthLaw, mixture, truncated_normal
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.simulator import simulate
from exegpt_planner.tasks import TASKS, paper_task
from exegpt_planner.workload import Workload
from planner.builders import bell, independent, point, summarization_like, table
from planner.observing import TILED

MACHINE = table(queries=TILED)


def moved(law: LengthLaw, tokens: int) -> LengthLaw:
    """Every length so many tokens longer."""
    return LengthLaw(pmf=np.append(np.zeros(tokens), law.pmf))


@pytest.mark.parametrize("task", TASKS)
def test_a_law_is_at_no_distance_from_itself(task: str) -> None:
    found = distance(paper_task(task), paper_task(task))
    for side in (found.input, found.output):
        assert set(side.model_dump().values()) == {0.0}
    assert found.of_means == 0


def test_distances_of_laws_that_can_be_reckoned_by_hand() -> None:
    apart = side_distance(point(10), point(12), percentile=99)
    assert apart.ks == 1
    assert apart.transport == pytest.approx(2 / 22)
    assert apart.mean_change == pytest.approx(0.2)
    assert apart.percentile_change == pytest.approx(0.2)
    mixed = side_distance(point(4), mixture(point(4), point(20), 0.25), percentile=50)
    assert mixed.ks == pytest.approx(0.25)
    assert mixed.transport == pytest.approx(0.25 * 16 / (4 + 8))
    assert mixed.mean_change == pytest.approx(1.0)
    assert mixed.percentile_change == 0


def test_transport_is_a_shift_over_the_means_whatever_the_unit() -> None:
    law, before = bell(16, 6, 40), 0.0
    for tokens in (1, 3, 10, 100, 1000):
        apart = side_distance(law, moved(law, tokens), percentile=99)
        assert apart.transport == pytest.approx(tokens / (2 * law.mean + tokens))
        assert before < apart.transport < 1
        before = apart.transport
    tenfold = []
    for each in (law, moved(law, 5)):
        pmf = np.zeros(10 * each.max + 1)
        pmf[::10] = each.pmf
        tenfold.append(LengthLaw(pmf=pmf))
    small = side_distance(law, moved(law, 5), percentile=99)
    large = side_distance(tenfold[0], tenfold[1], percentile=99)
    assert large.model_dump() == pytest.approx(small.model_dump())


def test_distances_do_not_depend_on_which_law_is_longer() -> None:
    a, b = bell(16, 6, 40), bell(30, 4, 64)
    there, back = side_distance(a, b, percentile=99), side_distance(b, a, percentile=99)
    assert there.ks == back.ks > 0.5
    assert there.transport == back.transport
    assert (1 + there.mean_change) * (1 + back.mean_change) == pytest.approx(1)


@pytest.mark.parametrize(
    ("mean", "std"), [(1.15, 1.0), (0.7, 1.0), (1.3, 1.3), (1.0, 0.7), (1.0, 1.3)]
)
def test_a_drifted_law_has_the_moments_asked_for_on_the_same_lengths(
    mean: float, std: float
) -> None:
    planned = paper_task("T")
    drifted = shifted(planned, mean=mean, std=std)
    assert drifted.output.mean == pytest.approx(mean * planned.output.mean, rel=1e-6)
    assert drifted.output.var**0.5 == pytest.approx(std * planned.output.var**0.5, rel=1e-6)
    assert drifted.output.max <= planned.output.max
    assert drifted.input is planned.input
    assert f"x {mean:g}" in drifted.source


def test_a_truncated_normal_that_drifts_stays_one() -> None:
    before, after = truncated_normal(128, 68, 320), truncated_normal(147.2, 68, 320)
    found = tilted(before, after.mean, after.var**0.5)
    assert found.pmf == pytest.approx(after.pmf, abs=1e-9)


def test_inputs_drift_along_where_a_trace_says_so() -> None:
    rng = np.random.default_rng(5)
    outputs = bell(16, 6, 40).sample(rng, 3000)
    pairs = np.stack([2 * outputs + rng.integers(0, 5, 3000), outputs], axis=1)
    planned = Workload.from_trace(pairs)
    drifted = shifted(planned, mean=1.15)
    assert drifted.output.mean == pytest.approx(1.15 * planned.output.mean, rel=1e-4)
    assert drifted.output.var == pytest.approx(planned.output.var, rel=1e-3)
    more = drifted.input.mean - planned.input.mean
    assert more == pytest.approx(2 * 0.15 * planned.output.mean, rel=0.02)
    seen = drifted.output.pmf > 1e-3
    assert drifted.input_mean[seen] == pytest.approx(planned.input_mean[: len(seen)][seen], 0.01)
    assert drifted.pairs is not None
    assert {tuple(pair) for pair in drifted.pairs.tolist()} <= {tuple(p) for p in pairs.tolist()}


@pytest.mark.parametrize(
    ("law", "mean", "std"),
    [
        (bell(16, 6, 40), 41, 6),  # beyond the longest
        (bell(16, 6, 40), 38, 15),  # more than two lengths at the ends would stray
        (bell(16, 6, 40), 16, 0),
        (point(16), 17, 1),
        (mixture(point(4), point(20), 0.5), 13, 8),  # two lengths: the mean says the deviation
    ],
)
def test_moments_that_no_law_on_these_lengths_has_are_refused(
    law: LengthLaw, mean: float, std: float
) -> None:
    with pytest.raises(InvalidSpec, match="drift"):
        tilted(law, mean, std)


def test_lengths_that_go_together_unknown_how_are_refused() -> None:
    rng = np.random.default_rng(5)
    outputs = bell(16, 6, 40).sample(rng, 300)
    probed = Workload.from_trace(np.stack([2 * outputs, outputs], axis=1)).with_probes()
    with pytest.raises(InvalidSpec, match="go together"):
        shifted(probed, mean=1.1)


RRA = RraSchedule(encode_batch=8, encode_interval=10)
SIMULATED: list[tuple[Schedule, float, float]] = [  # the most that shares are off: s99's, all
    (RRA, 0.02, 0.005),
    (CraSchedule(pool=16, chunk_tokens=64), 0.06, 0.015),
    # the wait for an iteration's end, which is uniform, is most of what strays: not normal in the middle
    (WaaSchedule(encoders=1, decoders=1, encode_batch=4, pool=16), 0.25, 0.05),
]


def seen_and_expected(
    schedule: Schedule, sds: float, queries: int
) -> tuple[BrokenShare, tuple[float, float]]:
    """Under 15 % more mean, with a bound so many deviations beyond the mean latency of the percentile's answers."""
    drifted = shifted(summarization_like(), mean=1.15).with_probes()
    at = simulate(schedule, MACHINE, drifted)
    bound_s = at.latency_mean_s + sds * at.latency_sd_s
    backlog = Backlog.of(drifted, np.random.default_rng(3))
    seen = run(schedule, MACHINE, backlog, Until(queries=queries, warm_up=400))
    every = np.array([each.latency_s for each in seen.queries])
    shares = (seen.latencies_s(drifted.s99) > bound_s).mean(), (every > bound_s).mean()
    return broken_share(schedule, MACHINE, drifted, bound_s), shares


@pytest.mark.slow
@pytest.mark.parametrize("sds", [-1, 0, 1, 2])
@pytest.mark.parametrize(("schedule", "off", "off_all"), SIMULATED)
def test_late_answers_are_as_many_as_are_simulated(
    schedule: Schedule, off: float, off_all: float, sds: float
) -> None:
    expected, (of_percentile, of_all) = seen_and_expected(schedule, sds, 20_000)
    assert expected.of_percentile == pytest.approx(of_percentile, abs=off)
    assert expected.of_all == pytest.approx(of_all, abs=off_all)


def test_late_answers_of_rra_are_as_many_as_are_simulated() -> None:
    expected, (of_percentile, of_all) = seen_and_expected(RRA, 1.0, 6000)
    assert expected.of_percentile == pytest.approx(0.1587, abs=1e-4)
    assert of_percentile == pytest.approx(expected.of_percentile, abs=0.03)
    assert of_all == pytest.approx(expected.of_all, abs=0.01)


def test_a_promise_is_what_all_but_one_per_cent_keep() -> None:
    at = simulate(RRA, MACHINE, summarization_like())
    found = broken_share(RRA, MACHINE, summarization_like(), at.latency_p99_s)
    assert found.length_tokens == summarization_like().s99
    assert found.of_percentile == pytest.approx(0.01)
    assert found.of_all < 0.01
    counted = broken_share(
        RRA, MACHINE, summarization_like(), at.promised_s, error=MACHINE.error_p95
    )
    assert counted.model_dump() == pytest.approx(found.model_dump())


def test_late_answers_become_more_as_answers_grow_and_the_bound_shrinks() -> None:
    at = simulate(RRA, MACHINE, summarization_like())
    laws = [shifted(summarization_like(), mean=mean) for mean in (0.9, 1.0, 1.1, 1.2)]
    for bound_s in (0.9 * at.promised_s, at.promised_s):
        shares = [broken_share(RRA, MACHINE, law, bound_s).of_all for law in laws]
        assert shares == sorted(shares)
        assert shares[0] < shares[-1]
    shares = [broken_share(RRA, MACHINE, laws[1], s * at.promised_s).of_all for s in (0, 0.5, 1, 9)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(1)
    assert shares[-1] == 0


def test_latencies_that_never_stray_are_late_or_not() -> None:
    constant = independent(point(20), point(12))
    at = simulate(RRA, table(), constant)
    assert at.latency_sd_s == 0
    assert broken_share(RRA, table(), constant, at.latency_mean_s * 1.001).of_all == 0
    assert broken_share(RRA, table(), constant, at.latency_mean_s * 0.999).of_all == 1


def test_a_schedule_beyond_the_profile_is_refused() -> None:
    with pytest.raises(IncompleteProfile, match="beyond the profile"):
        broken_share(
            RraSchedule(encode_batch=300, encode_interval=10), MACHINE, summarization_like(), 1.0
        )
