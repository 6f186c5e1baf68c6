"""Pipelines of constant stage times: the paper's Figure 4, and closed forms of the RRA cycle, to the last digit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exegpt_planner.events.queries import deal
from exegpt_planner.events.records import Until
from exegpt_planner.events.stages import ConstantStages
from exegpt_planner.events.waa import Machines, run_waa
from exegpt_planner.profile_table import HandOverCurves
from exegpt_planner.schedule import WaaSchedule
from planner.builders import line
from planner.pipelines import Uneven, cycles_s, equal, even, played

FREE = HandOverCurves(
    sent=line(0.0, 0.0, 100), joined=line(0.0, 0.0, 100), exposed=line(0.0, 0.0, 100)
)


@pytest.mark.parametrize(("micro_batches", "stage_times"), [(1, 7.0), (3, 3 + 2 / 3)])
def test_two_tokens_on_one_encode_and_three_decode_stages(
    micro_batches: int, stage_times: float
) -> None:
    """Figure 4: a micro-batch of a third of the queries takes a third of a stage's time."""
    schedule = WaaSchedule(
        encoders=1, decoders=1, encode_batch=6, pool=6, micro_batches=micro_batches
    )
    machines = Machines(
        encoder=even(1, 1.0, 0.0), decoder=even(3, 0.0, 1 / micro_batches), hand_over=FREE
    )
    until = Until(queries=6, warm_up=0)
    run = run_waa(schedule, machines, equal(outputs=3), until)
    assert max(each.finish_s for each in run.ended[:6]) == pytest.approx(stage_times, rel=1e-12)


def test_the_last_token_of_a_batch_in_waa() -> None:
    """P_E e + s max(P_D, M) d + (min(M, P_D) - 1) d."""
    for p_e, p_d, m, s in itertools.product((1, 2, 3), (1, 2, 4), (1, 2, 3, 5), (1, 4)):
        e, d = 0.7, 0.2
        schedule = WaaSchedule(encoders=1, decoders=1, encode_batch=m, pool=m, micro_batches=m)
        machines = Machines(encoder=even(p_e, e, 0.0), decoder=even(p_d, 0.0, d), hand_over=FREE)
        until = Until(queries=m, warm_up=0)
        run = run_waa(schedule, machines, equal(outputs=s + 1), until)
        last_s = p_e * e + s * max(p_d, m) * d + (min(m, p_d) - 1) * d
        assert max(each.finish_s for each in run.ended[:m]) == pytest.approx(last_s, rel=1e-12)


def test_sending_and_joining_are_shared_by_the_stages_of_an_instance() -> None:
    """An encode of 15 tokens takes 1.5 s more, handing over 3 s, the first decode 0.75 s more; two stages each."""
    schedule = WaaSchedule(encoders=1, decoders=1, encode_batch=3, pool=3)
    curves = HandOverCurves(
        sent=line(0.0, 0.1, 100), joined=line(0.0, 0.05, 100), exposed=line(0.0, 0.2, 100)
    )
    machines = Machines(encoder=even(2, 1.0, 0.0), decoder=even(2, 0.0, 0.5), hand_over=curves)
    run = run_waa(schedule, machines, equal(outputs=3), Until(queries=3, warm_up=0))
    encode, first, second = run.steps[:3]
    assert np.array(encode.spans) == pytest.approx(np.array([(0, 1.75), (1.75, 3.5)]))
    assert np.array(first.spans) == pytest.approx(np.array([(6.5, 7.375), (7.375, 8.25)]))
    assert np.array(second.spans) == pytest.approx(np.array([(8.25, 8.75), (8.75, 9.25)]))


def test_a_micro_batch_in_line_for_the_first_stage_takes_in_what_arrives_meanwhile() -> None:
    schedule = WaaSchedule(encoders=1, decoders=1, encode_batch=2, pool=6, micro_batches=2)
    machines = Machines(encoder=even(1, 1.0, 0.0), decoder=even(1, 0.0, 10.0), hand_over=FREE)
    until = Until(queries=6, warm_up=0)
    run = run_waa(schedule, machines, equal(outputs=3), until)
    decodes = [step for step in run.steps if step.kind == "decode"][:2]
    assert [(s.micro_batch, s.start_s, s.shape.decode_queries) for s in decodes] == [
        (0, 1.0, 1),
        (1, 11.0, 3),  # its share of three batches, of which two came while it stood in line
    ]


GRID = [
    (p, m, n, e, d)
    for p, m, n in itertools.product((1, 2, 3, 5), (1, 2, 4, 7), (1, 2, 5))
    for e, d in ((1.0, 1.0), (7.0, 2.0))
]


def test_the_cycle_of_rra_is_the_papers_timeline() -> None:
    """Encodes at least as long as decodes: derived in docs/theory.md."""
    for p, m, n, e, d in GRID:
        run = played(even(p, e, d), micro_batches=m, interval=n, cycles=3, warm_up=3)
        if m >= p:
            cycle_s = m * e + n * m * d + max(0.0, (p - 1) * e - (m - 1) * d)
        else:
            cycle_s = (m + p - 1) * e + (n - 1) * p * d + d
        assert cycles_s(run) == pytest.approx(cycle_s, rel=1e-12), (p, m, n, e, d)


def test_one_formula_holds_whichever_steps_are_longer() -> None:
    """max(M (e + d), (M + P - 2) max(e, d) + e + d) + (N - 1) max(M, P) d."""
    shorter = [(p, m, n, d, e) for p, m, n, e, d in GRID]
    for p, m, n, e, d in GRID + shorter:
        run = played(even(p, e, d), micro_batches=m, interval=n, cycles=3, warm_up=3)
        turn_s = (m + p - 2) * max(e, d) + e + d
        cycle_s = max(m * (e + d), turn_s) + (n - 1) * max(m, p) * d
        assert cycles_s(run).mean() == pytest.approx(cycle_s, rel=1e-12), (p, m, n, e, d)


times_s = st.integers(1, 20).map(lambda tenths: tenths / 10)


@given(
    stages=st.lists(st.tuples(times_s, times_s), min_size=1, max_size=5),
    micro_batches=st.integers(1, 6),
    interval=st.integers(1, 6),
)
def test_no_stage_does_two_things_at_once_and_no_micro_batch_is_in_two_places(
    stages: list[tuple[float, float]], micro_batches: int, interval: int
) -> None:
    encode_s, decode_s = zip(*stages, strict=True)
    pipeline = ConstantStages(encode_s=encode_s, decode_s=decode_s)
    run = played(pipeline, micro_batches=micro_batches, interval=interval, cycles=3, warm_up=0)
    for stage in range(len(stages)):
        spans = np.array([step.spans[stage] for step in run.steps])
        assert (spans[1:, 0] >= spans[:-1, 1] - 1e-9).all()
    for index in range(micro_batches):
        decodes = [s for s in run.steps if s.micro_batch == index and s.kind == "decode"]
        for before, after in itertools.pairwise(decodes):
            assert after.start_s >= before.end_s - 1e-9
    for step in run.steps:
        for (_, left), (entered, _) in itertools.pairwise(step.spans):
            assert entered >= left


@given(
    stages=st.lists(st.tuples(times_s, times_s), min_size=1, max_size=5),
    micro_batches=st.integers(1, 6),
    interval=st.integers(1, 8),
)
def test_no_cycle_is_shorter_than_its_busiest_stage_or_its_longest_way(
    stages: list[tuple[float, float]], micro_batches: int, interval: int
) -> None:
    e, d = (np.array(times) for times in zip(*stages, strict=True))
    pipeline = ConstantStages(encode_s=e.tolist(), decode_s=d.tolist())
    run = played(pipeline, micro_batches=micro_batches, interval=interval, cycles=8, warm_up=0)
    way_s = e.sum() + (micro_batches - 1) * e.max() + d[0] + (interval - 1) * d.sum()
    assert (cycles_s(run) >= way_s - 1e-9).all()
    busy_s = micro_batches * (e + interval * d)  # a cycle
    cycles = len(run.rounds_s) - 1
    lag_s = micro_batches * d  # of a stage, when the first one begins another cycle
    assert (run.end_s >= cycles * busy_s - lag_s - 1e-9).all()


def test_uneven_stages_take_what_their_largest_and_total_times_say_or_a_little_less() -> None:
    """Times that stray by 20 % from stage to stage; encodes that take twice to thirty times a decode."""
    rng = np.random.default_rng(11)
    cycles_off, latencies_off = [], []
    for _ in range(60):
        num_stages, m, n = (int(rng.integers(1, most)) for most in (7, 9, 12))
        ratio = float(np.exp(rng.uniform(np.log(2), np.log(30))))
        e, d = (scale * rng.uniform(0.8, 1.2, num_stages) for scale in (ratio, 1.0))
        iterations = int(rng.integers(n, 3 * n + 1))
        run = played(
            ConstantStages(encode_s=e.tolist(), decode_s=d.tolist()),
            micro_batches=m,
            interval=n,
            cycles=6,
            iterations=iterations,
        )
        foretold = Uneven(e, d, m, n)
        latency_s = np.mean([each.latency_s for each in run.queries])
        cycles_off.append(foretold.cycle_s / run.round_s - 1)
        latencies_off.append(foretold.latency_s(iterations) / latency_s - 1)
    for off in (cycles_off, latencies_off):
        assert min(off) > -0.02
        assert max(off) < 0.06
        assert np.mean(np.square(off)) < 0.015**2


def test_queries_are_dealt_evenly_and_none_is_lost() -> None:
    queries = equal(outputs=2).take(11)
    parts = deal(queries, 4)
    assert sorted(len(part) for part in parts) == [2, 3, 3, 3]
    assert [query for part in parts for query in part] == queries
