from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cli.tables import LARGE, PREDICTION, table_up_to
from exegpt_cli.bench.report import StageVariation
from exegpt_cli.bench.scraped import Scraped
from exegpt_gateway.metrics import Metrics, Promise
from exegpt_planner.profile_table import StepShape
from exegpt_wire import worker_pb2

TABLE = table_up_to(LARGE)
SHAPE = StepShape(
    tokens=8, decode_queries=8, decode_context=80, encode_chunks=0, encode_pairs=0, sampled=8
)


def metrics() -> Metrics:
    promise = Promise(bound_s=1.0, prediction=PREDICTION, table=TABLE, normalise=lambda _: 1.0)
    return Metrics(CollectorRegistry(), promise)


def scrape(source: Metrics) -> str:
    return generate_latest(source.registry).decode()


def iterate(source: Metrics, *, kernel_ratio: float, cpu_ratio: float, wall_ratio: float) -> None:
    """One iteration of `SHAPE`, in ratios to the profile's kernel and to its time of that shape."""
    step_s = TABLE.step_s(SHAPE)
    clocks = worker_pb2.Clocks(
        wall_s=wall_ratio * step_s, cpu_s=cpu_ratio * step_s, kernel_s=kernel_ratio * TABLE.kernel_s
    )
    source.iterated(SHAPE, clocks)


def test_the_cycle_is_the_mean_between_two_scrapes() -> None:
    source = metrics()
    source.cycle_s.observe(9.0)  # before the window
    before = scrape(source)
    for seconds in (0.2, 0.4):
        source.cycle_s.observe(seconds)
    after = scrape(source)
    assert Scraped(before, after).cycle_s == pytest.approx(0.3)
    assert Scraped(after, after).cycle_s is None
    assert Scraped(None, after).cycle_s is None


def test_slowness_of_the_machine_is_told_from_an_error_of_the_profile() -> None:
    """At 1.5 times the kernel's time, CPU time 1.8 of the profile: a slowdown of 1.5, 1.2 unexplained."""
    source = metrics()
    before = scrape(source)
    for _ in range(3):
        iterate(source, kernel_ratio=1.5, cpu_ratio=1.8, wall_ratio=1.8)
    speed = Scraped(before, scrape(source)).speed
    assert speed is not None
    assert speed.slowdown == pytest.approx(1.5)
    assert speed.beside_profile == pytest.approx(1.2)


def test_preemption_counts_as_slowness_of_the_machine() -> None:
    source = metrics()
    before = scrape(source)
    iterate(source, kernel_ratio=1.0, cpu_ratio=1.0, wall_ratio=1.25)
    speed = Scraped(before, scrape(source)).speed
    assert speed is not None
    assert speed.slowdown == pytest.approx(1.25)
    assert speed.beside_profile == pytest.approx(1.0)


def test_one_outlier_of_the_kernel_is_not_taken_for_a_slow_machine() -> None:
    source = metrics()
    before = scrape(source)
    for kernel_ratio in (1.0, 1.0001, 7.0, 1.0, 1.0001):
        iterate(source, kernel_ratio=kernel_ratio, cpu_ratio=1.0, wall_ratio=1.0)
    speed = Scraped(before, scrape(source)).speed
    assert speed is not None
    assert speed.slowdown == pytest.approx(1.0, rel=1e-3)


def test_without_readings_of_the_kernel_no_speed_is_claimed() -> None:
    source = metrics()
    before = scrape(source)
    iterate(source, kernel_ratio=0.0, cpu_ratio=1.0, wall_ratio=1.0)
    assert Scraped(before, scrape(source)).speed is None


def test_how_stages_stray_is_what_the_server_says_at_the_end() -> None:
    source = metrics()
    before = scrape(source)
    assert Scraped(before, before).stage_variation is None
    source.stage_variation.labels("encode").set(0.07)
    source.stage_variation.labels("decode").set(0.02)
    found = Scraped(before, scrape(source)).stage_variation
    assert found == StageVariation(encode=0.07, decode=0.02, mixed=None)
    assert Scraped(before, None).stage_variation is None
