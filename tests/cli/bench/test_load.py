from __future__ import annotations

import asyncio
import csv
import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from cli.fake_openai import FakeServer, serving
from exegpt_cli.bench.client import Answer, Target
from exegpt_cli.bench.load import Arrivals, Limits, Load, Saturation
from exegpt_cli.bench.queries import Query, draw
from exegpt_cli.bench.report import BenchReport, measured, tokens_between, write_csv
from exegpt_cli.bench.run import LoadPlan, Outcome, run_load
from exegpt_planner.errors import Unavailable
from exegpt_planner.lengths import truncated_normal
from exegpt_planner.workload import Workload

LENGTHS = Workload.independent(
    truncated_normal(12, 4, 24), truncated_normal(8, 4, 20), source="test"
)


def plan(fake: FakeServer, **changes: object) -> LoadPlan:
    values: dict[str, object] = {
        "target": Target(url=fake.url, model="fake", extensions=False),
        "metrics_url": None,
        "workload": LENGTHS.with_probes(0.2),
        "vocab": 500,
        "seed": 3,
        "in_flight": 6,
        "rate_per_s": None,
        "warm_up_s": 0.0,
        "limits": Limits(duration_s=30.0, num_queries=60),
    }
    return LoadPlan(**(values | changes))  # type: ignore[arg-type]  # the values' types are LoadPlan's


def run(load: LoadPlan) -> Outcome:
    return asyncio.run(run_load(load, lambda done, total, doing="": None))


def test_a_saturated_load_keeps_the_number_in_flight_and_sends_the_drawn_lengths() -> None:
    with serving(FakeServer()) as fake:
        outcome = run(plan(fake))
    assert fake.most_in_flight == 6
    assert len(outcome.load.answers) == 60
    sent = sorted((a.query for a in outcome.load.answers), key=lambda q: q.index)
    assert sent == list(itertools.islice(draw(LENGTHS.with_probes(0.2), vocab=500, seed=3), 60))
    for answer in outcome.load.answers:
        assert answer.ok
        assert answer.completion_tokens == len(answer.chunks_s) == answer.query.output_tokens


def test_another_server_gets_standard_fields_only_and_ours_the_lengths_enforced() -> None:
    with serving(FakeServer()) as fake:
        run(plan(fake, limits=Limits(duration_s=9, num_queries=2)))
        standard = fake.bodies[-1]
        own = Target(url=fake.url, model="fake", extensions=True)
        run(plan(fake, target=own, limits=Limits(duration_s=9, num_queries=2)))
        extended = fake.bodies[-1]
    assert set(standard) == {
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
    }
    assert extended["min_tokens"] == extended["max_tokens"]
    assert extended["ignore_eos"] is True


def test_times_count_from_the_encode_where_the_server_says_it() -> None:
    with serving(FakeServer(own_clock=True)) as fake:
        own = measured_of(run(plan(fake)))
    with serving(FakeServer()) as fake:
        other = measured_of(run(plan(fake)))
    assert (own.clock, other.clock) == ("encode start", "sending")
    assert own.s99_completion_s is not None
    assert own.s99_completion_s.mean == pytest.approx(LENGTHS.s99 / 100)
    assert other.s99_completion_s is not None
    assert other.s99_completion_s.p50 >= LENGTHS.s99 * 0.002


def measured_of(outcome: Outcome) -> BenchReport:
    return measured(
        outcome.load,
        warm_up_s=0.0,
        s99=LENGTHS.s99,
        bound_s=LENGTHS.s99 / 50,
        target="fake",
        arrivals="test",
        saturated=True,
    )


def test_a_full_server_is_asked_again_and_does_not_end_the_load() -> None:
    refusals = 40

    async def send(query: Query) -> Answer:
        nonlocal refusals
        if refusals:
            refusals -= 1
            return Answer(query=query, sent_s=0.0, error="HTTP 503: full", retry_after_s=1e-4)
        return Answer(query=query, sent_s=0.0, chunks_s=[0.0], finished_s=0.0)

    load = Saturation(send, draw(LENGTHS, vocab=500, seed=0), in_flight=2, now=lambda: 0.0)
    done = asyncio.run(load.run(Limits(duration_s=1.0, num_queries=50)))
    assert sum(answer.ok for answer in done.answers) == 10


def test_a_full_server_says_when_to_ask_again() -> None:
    with (
        serving(FakeServer(refuse_first=1)) as fake,
        pytest.raises(Unavailable, match="HTTP 503"),
    ):
        run(plan(fake))


def test_a_server_that_only_fails_ends_the_load_with_its_last_error() -> None:
    async def send(query: Query) -> Answer:
        return Answer(query=query, sent_s=0.0, error="HTTP 500: out of order")

    queries = draw(LENGTHS, vocab=500, seed=0)
    load = Saturation(send, queries, in_flight=2, now=lambda: 0.0)
    with pytest.raises(Unavailable, match="out of order"):
        asyncio.run(load.run(Limits(duration_s=1.0)))


def test_an_address_where_nothing_listens_is_one_clear_error() -> None:
    fake = FakeServer(url="http://127.0.0.1:9/v1")
    with pytest.raises(Unavailable, match="Check --url"):
        run(plan(fake))


def test_poisson_arrivals_come_at_the_drawn_times_whatever_the_server_does() -> None:
    rate, seconds = 400.0, 0.5
    sent: list[float] = []

    async def scenario() -> Load:
        async def send(query: Query) -> Answer:
            sent.append(time.monotonic())
            await stuck.wait()
            return Answer(query=query, sent_s=0.0, chunks_s=[0.0], finished_s=0.0)

        stuck = asyncio.Event()
        rng = np.random.default_rng(5)
        arrivals = Arrivals(
            send,
            draw(LENGTHS, vocab=500, seed=0),
            rate_per_s=rate,
            rng=rng,
            now=time.monotonic,
        )
        return await arrivals.run(Limits(duration_s=seconds), stuck.set)

    load = asyncio.run(scenario())
    due = np.cumsum(np.random.default_rng(5).exponential(1 / rate, size=1000))
    due = due[due <= seconds]
    assert len(load.answers) == len(sent) == len(due)
    assert (np.array(sent) - load.started_s >= due - 1e-9).all()  # never early


def answer_at(index: int, sent: float, chunks: list[float], output: int) -> Answer:
    return Answer(
        query=Query(index=index, prompt=(1, 2), output_tokens=output),
        sent_s=sent,
        chunks_s=chunks,
        finished_s=chunks[-1],
        completion_tokens=output,
    )


def test_only_what_happens_inside_the_window_is_measured(tmp_path: Path) -> None:
    answers = [
        answer_at(0, 100.0, [101.0, 102.0], 2),  # ends before the warm-up does
        answer_at(1, 101.0, [104.0, 106.0], 2),
        answer_at(2, 103.0, [107.0, 113.0], 4),  # ends after the load stops; two tokens a chunk
    ]
    load = Load(answers=answers, started_s=100.0, stopped_s=110.0)
    report = measured(
        load,
        warm_up_s=3.0,
        s99=2,
        bound_s=4.0,
        target="t",
        arrivals="a",
        saturated=True,
        predicted=None,
    )
    assert report.window_s == 7.0
    assert report.num_queries == 1
    assert report.queries_per_s == pytest.approx(1 / 7)
    assert report.tokens_per_s == pytest.approx((2 + 2) / 7)
    assert report.s99_within_bound is not None
    assert (report.s99_within_bound.kept, report.s99_within_bound.num) == (0, 1)
    assert report.first_token_s is not None
    assert report.first_token_s.p50 == 3.0
    assert tokens_between(answers, 100.0, 120.0) == 8
    write_csv(tmp_path / "out.csv", load, 2)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["is_s99"] for row in rows] == ["1", "1", "0"]
    assert rows[1]["completion_s"] == "5.000000"


def test_a_load_shorter_than_its_warm_up_says_so() -> None:
    load = Load(answers=[], started_s=0.0, stopped_s=2.0)
    with pytest.raises(Unavailable, match="warm-up"):
        measured(load, warm_up_s=3.0, s99=2, bound_s=None, target="t", arrivals="a", saturated=True)


def test_queries_are_the_same_for_the_same_seed_and_stay_within_the_vocabulary() -> None:
    first = list(itertools.islice(draw(LENGTHS, vocab=50, seed=1), 300))
    assert first == list(itertools.islice(draw(LENGTHS, vocab=50, seed=1), 300))
    assert first != list(itertools.islice(draw(LENGTHS, vocab=50, seed=2), 300))
    assert all(3 <= token < 50 for query in first for token in query.prompt)
    assert all(1 <= len(query.prompt) <= 24 for query in first)
