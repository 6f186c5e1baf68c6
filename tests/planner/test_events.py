"""The event simulation on workers of one stage: against one written apart, to the last digit, and the closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from exegpt_planner.adjustment import rra_adjustment
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog, Draw, Ints
from exegpt_planner.events.records import Run, Until
from exegpt_planner.events.rra import run_rra
from exegpt_planner.profile_table import StepShape
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    Schedule,
    StaticSchedule,
    WaaSchedule,
)
from exegpt_planner.simulator import simulate
from exegpt_planner.workload import Workload
from planner import monte_carlo
from planner.builders import bell, independent, summarization_like, table
from planner.observing import TILED, probed

MACHINE = table(queries=TILED)


@dataclass(frozen=True)
class PerQuery:
    """One stage whose steps take what their queries and prompt tokens take, one by one."""

    num_stages: int = 1
    dispatch_s: float = 0.0

    def stage_s(self, stage: int, shape: StepShape) -> float:
        return 1e-3 * shape.decode_queries + 1e-5 * shape.tokens


PER_QUERY = PerQuery()


def ration(workload: Workload, seed: int = 7, num: int = 40_000) -> Callable[[], Draw]:
    """Draws that hand out the same queries in the same order, however many are asked for at a time."""
    inputs, outputs = workload.sample(np.random.default_rng(seed), num)

    def begin() -> Draw:
        given = 0

        def draw(n: int) -> tuple[Ints, Ints]:
            nonlocal given
            given += n
            assert given <= num
            return inputs[given - n : given], outputs[given - n : given]

        return draw

    return begin


def observed(schedule: Schedule, draw: Draw) -> monte_carlo.Observed:
    match schedule:
        case RraSchedule(encode_batch=batch, encode_interval=interval):
            return monte_carlo.run_rra(
                MACHINE, draw, batch=batch, interval=interval, cycles=200, warm_up=0
            )
        case CraSchedule(pool=pool, chunk_tokens=chunk):
            return monte_carlo.run_cra(
                MACHINE, draw, pool=pool, chunk=chunk, iterations=2000, warm_up=0
            )
        case WaaSchedule():
            return monte_carlo.run_waa(MACHINE, draw, schedule, iterations=2000, warm_up=0)


@pytest.mark.parametrize(
    "schedule",
    [
        RraSchedule(encode_batch=6, encode_interval=7),
        RraSchedule(encode_batch=1, encode_interval=30),
        CraSchedule(pool=12, chunk_tokens=64),
        WaaSchedule(encoders=1, decoders=1, encode_batch=4, pool=16),
        WaaSchedule(encoders=2, decoders=1, encode_batch=8, pool=64),
        WaaSchedule(encoders=1, decoders=2, encode_batch=8, pool=50),
    ],
)
def test_every_latency_is_that_of_a_simulation_written_apart(schedule: Schedule) -> None:
    begin = ration(independent(bell(32, 17, 64), bell(9, 6, 30)))
    apart = observed(schedule, begin())
    ours = run(schedule, MACHINE, Backlog(begin()), Until(queries=apart.completed + 50, warm_up=0))
    for length, latencies_s in apart.latencies.items():
        seen = [each.latency_s for each in ours.ended if each.output == length]
        assert seen[: len(latencies_s)] == pytest.approx(latencies_s, rel=1e-9)


SAMPLED = [  # with as many queries as make the sampling error small
    (RraSchedule(encode_batch=8, encode_interval=10), 8000),
    (CraSchedule(pool=16, chunk_tokens=64), 4000),
    (WaaSchedule(encoders=1, decoders=1, encode_batch=4, pool=16), 8000),
    (WaaSchedule(encoders=1, decoders=2, encode_batch=8, pool=60), 8000),
]


@pytest.mark.parametrize(("schedule", "queries"), SAMPLED)
def test_the_closed_forms_are_what_is_simulated(schedule: Schedule, queries: int) -> None:
    workload = probed(summarization_like())
    seen = simulated(schedule, workload, queries)
    expected = simulate(schedule, MACHINE, workload)
    latencies_s = seen.latencies_s(workload.s99)
    assert seen.queries_per_s == pytest.approx(expected.queries_per_s, rel=0.02)
    assert seen.pool_mean == pytest.approx(expected.pool_mean, rel=0.02)
    assert seen.pool_sd == pytest.approx(expected.pool_sd, rel=0.1)
    assert latencies_s.mean() == pytest.approx(expected.latency_mean_s, rel=0.02)
    assert np.quantile(latencies_s, 0.99) == pytest.approx(expected.latency_p99_s, rel=0.04)


def simulated(
    schedule: AnySchedule, workload: Workload, queries: int, *, seed: int = 3, warm_up: int = 400
) -> Run:
    backlog = Backlog.of(workload, np.random.default_rng(seed))
    return run(schedule, MACHINE, backlog, Until(queries=queries, warm_up=warm_up))


HELD = StaticSchedule(batch=8, early_termination=False)
EVERY: list[AnySchedule] = [
    RraSchedule(encode_batch=6, encode_interval=7),
    CraSchedule(pool=12, chunk_tokens=64),
    WaaSchedule(encoders=2, decoders=2, encode_batch=4, pool=20),
    StaticSchedule(batch=8, early_termination=True),
    HELD,
    OrcaSchedule(pool=12),
]


ALONE = [each for each in EVERY if not isinstance(each, WaaSchedule) and each != HELD]


@pytest.mark.parametrize("schedule", EVERY)
def test_every_query_ends_once_and_in_its_order(schedule: AnySchedule) -> None:
    seen = simulated(schedule, summarization_like(), 600, warm_up=0)
    assert len({id(each) for each in seen.ended}) == len(seen.ended)
    for each in seen.ended:
        assert each.encode_start_s < each.first_token_s <= each.finish_s
    assert max(each.finish_s for each in seen.ended) <= max(step.end_s for step in seen.steps)


@pytest.mark.parametrize("schedule", ALONE)
def test_steps_are_the_work_of_the_queries_that_are_there(schedule: AnySchedule) -> None:
    """Numbers and contexts of the first steps, from the times of the queries that were there."""
    seen = simulated(schedule, summarization_like(), 600, warm_up=0)  # the first have long ended
    decodes = [step for step in seen.steps if step.shape.decode_queries]
    ends_s = np.array([step.end_s for step in decodes])
    times = np.array([(each.first_token_s, each.finish_s, each.input) for each in seen.ended])
    since = np.searchsorted(ends_s, times[:, 0] + 1e-9)  # the first iteration of each
    for index, step in enumerate(decodes[:150]):
        there = (since <= index) & (times[:, 1] >= step.end_s - 1e-9)
        assert step.shape.decode_queries == there.sum()
        contexts = times[there, 2] + index - since[there] + 1
        assert step.shape.decode_context == contexts.sum()
    for each, first in zip(seen.ended[:150], since, strict=False):
        last = first + each.iterations - 1
        assert each.iterations == 0 or each.finish_s == pytest.approx(ends_s[last])


def test_a_held_batch_is_computed_until_its_longest_answer_ends() -> None:
    seen = simulated(HELD, summarization_like(), 200, warm_up=0)
    for begin in range(0, 160, HELD.batch):
        batch = seen.ended[begin : begin + HELD.batch]
        (end_s,) = {each.finish_s for each in batch}
        (start_s,) = {each.encode_start_s for each in batch}
        steps = [step for step in seen.steps if start_s <= step.start_s < end_s]
        assert len(steps) == max(each.output for each in batch)
        assert {step.shape.decode_queries for step in steps[1:]} == {HELD.batch}
        following = [step.start_s for step in seen.steps if step.start_s > end_s]
        assert following[0] == pytest.approx(end_s + MACHINE.dispatch_s)


def test_no_step_of_orca_takes_in_more_than_one_prompt_nor_one_of_cra_more_than_its_tokens() -> (
    None
):
    orca = simulated(OrcaSchedule(pool=12), summarization_like(), 300)
    assert {step.shape.encode_chunks for step in orca.steps} == {0, 1}
    cra = simulated(CraSchedule(pool=12, chunk_tokens=64), summarization_like(), 300)
    assert max(step.shape.tokens - step.shape.decode_queries for step in cra.steps) == 64
    for seen in (orca, cra):
        assert max(step.shape.decode_queries for step in seen.steps) <= 12


@pytest.mark.parametrize("schedule", EVERY)
def test_equal_seeds_give_equal_runs_and_others_do_not(schedule: AnySchedule) -> None:
    first, again, other = (
        simulated(schedule, summarization_like(), 300, seed=seed) for seed in (1, 1, 2)
    )
    assert first.steps == again.steps
    assert first.queries_per_s == again.queries_per_s
    assert first.queries_per_s != other.queries_per_s


@pytest.mark.parametrize("schedule", [EVERY[1], EVERY[5]])
def test_littles_law_in_time(schedule: AnySchedule) -> None:
    """Queries in decode, averaged over time, are the throughput times the time from first token to last."""
    seen = simulated(schedule, summarization_like(), 4000)
    ends_s = np.array([step.end_s for step in seen.steps])
    decoding = np.array([step.shape.decode_queries for step in seen.steps])
    average = (decoding[1:] * np.diff(ends_s)).sum() / (ends_s[-1] - ends_s[0])
    stay_s = np.mean([each.finish_s - each.first_token_s for each in seen.queries])
    assert average == pytest.approx(seen.queries_per_s * stay_s, rel=0.01)


@pytest.mark.parametrize("schedule", EVERY[:4])
def test_littles_law_in_iterations(schedule: AnySchedule) -> None:
    """Of each query that ends, E[D] iterations are computed, on average and with none to spare."""
    seen = simulated(schedule, summarization_like(), 4000, warm_up=0)
    computed = sum(step.shape.decode_queries for step in seen.steps)
    ended = sum(each.iterations for each in seen.ended)
    unfinished = computed - ended  # what those that are still in decode have had
    assert 0 <= unfinished <= 0.02 * computed
    assert computed / len(seen.ended) == pytest.approx(summarization_like().output.mean - 1, 0.02)


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_micro_batches_on_one_stage_change_what_a_step_holds_but_not_who_is_served(
    micro_batches: int,
) -> None:
    """On one stage they only split steps: with costs per query alone, a cycle takes the same time."""
    backlog = Backlog.of(summarization_like(), np.random.default_rng(5))
    again = Backlog.of(summarization_like(), np.random.default_rng(5))
    schedule, until = RraSchedule(encode_batch=6, encode_interval=7), Until(queries=400, warm_up=0)
    whole = run_rra(schedule, PER_QUERY, backlog, until)
    split = run_rra(schedule, PER_QUERY, again, until, micro_batches=micro_batches)
    num = min(len(whole.rounds_s), len(split.rounds_s))
    assert split.rounds_s[:num] == pytest.approx(whole.rounds_s[:num])


def test_run_time_adjustment_is_played_and_keeps_the_mean_batch() -> None:
    workload = summarization_like()
    plain = RraSchedule(encode_batch=8, encode_interval=5)
    law = CompletionLaw(workload)
    rule = rra_adjustment(law, 8, 5, encode_share=0.5, reach=64)
    adjusted = plain.model_copy(update={"adjustment": rule})
    runs = [simulated(schedule, workload, 6000) for schedule in (plain, adjusted)]
    tokens = [np.array([s.shape.tokens for s in r.steps if s.kind == "encode"]) for r in runs]
    sizes = np.array([s.shape.encode_chunks for s in runs[1].steps if s.kind == "encode"])
    assert tokens[1].std() < 0.8 * tokens[0].std()
    assert sizes.std() > 0
    assert sizes.mean() == pytest.approx(8, rel=0.02)
    assert runs[1].queries_per_s == pytest.approx(runs[0].queries_per_s, rel=0.02)
