from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry

from cli.tables import LARGE, promise, table_up_to
from conductors import MakeWorker, Serve, build_conductor, collect_all, greedy
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.stage_times import FEWEST, REMEMBERED, StageTimes
from exegpt_planner.profile_table import StepShape
from exegpt_planner.schedule import RraSchedule
from exegpt_wire import worker_pb2

DECODE = StepShape(
    tokens=4, decode_queries=4, decode_context=40, encode_chunks=0, encode_pairs=0, sampled=4
)


def cycle(
    stages: StageTimes, encode_s: float, *decodes_s: float, worker: int = 0, counts: bool = True
) -> None:
    stages.note("encode", encode_s, worker=worker, is_last=False, counts=counts)
    for number, seconds in enumerate(decodes_s, start=1):
        is_last = number == len(decodes_s)
        stages.note("decode", seconds, worker=worker, is_last=is_last, counts=counts)


def test_a_stage_is_an_encode_or_the_mean_decode_of_a_step() -> None:
    stages = StageTimes()
    for turn in range(FEWEST):
        high = turn % 2
        cycle(stages, 1.1 if high else 0.9, 3.0, 2.0, 1.6 if high else 1.0)
    assert stages.variation("encode") == pytest.approx(0.1)
    assert stages.variation("decode") == pytest.approx(
        0.1 / 2.1
    )  # 2.2 and 2.0: the fall is planned
    assert stages.variation("mixed") is None


def test_few_stages_and_those_without_a_backlog_say_nothing() -> None:
    stages = StageTimes()
    for _ in range(FEWEST - 1):
        cycle(stages, 1.0, 1.0)
    for _ in range(FEWEST):
        cycle(stages, 5.0, 5.0, counts=False)
    assert stages.variation("encode") is None
    assert stages.variation("decode") is None
    cycle(stages, 1.0, 1.0)
    assert stages.variation("encode") == stages.variation("decode") == 0.0


def test_workers_steps_are_not_mixed_up_and_old_stages_are_forgotten() -> None:
    stages = StageTimes()
    for _ in range(REMEMBERED):
        cycle(stages, 9.0, 9.0)
    for _ in range(REMEMBERED // 2):
        for worker in (0, 1):
            stages.note("decode", 1.0, worker=worker, is_last=False, counts=True)
        for worker in (1, 0):
            stages.note("decode", 3.0, worker=worker, is_last=True, counts=True)
    assert stages.variation("decode") == 0.0
    stages.clear()
    assert stages.variation("decode") is None


def test_variation_is_of_times_without_the_machines_slowdown_and_of_one_schedule() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, promise())
    kernel_s = table_up_to(LARGE).kernel_s

    def shown() -> float | None:
        name = "exegpt_stage_time_variation_ratio"
        return registry.get_sample_value(name, {"kind": "decode"})

    for slowdown in (1.0, 2.0):
        for reading in (slowdown, slowdown * 1.0001):  # a median of the latest three is believed
            clocks = worker_pb2.Clocks(
                wall_s=9.0, cpu_s=0.1 * slowdown, kernel_s=kernel_s * reading
            )
            metrics.iterated(DECODE, clocks)
        for _ in range(FEWEST):
            metrics.iterated(DECODE, clocks, has_backlog=True)
    found = shown()
    assert found is not None
    assert math.isclose(found, 0.0, abs_tol=1e-3)
    metrics.in_force(RraSchedule(encode_batch=1, encode_interval=1), 2)
    assert shown() is None


async def test_a_saturated_run_shows_it(make_worker: MakeWorker, serve: Serve) -> None:
    registry = CollectorRegistry()
    worker = await make_worker()
    worker.iteration_s = 0.01
    conductor = build_conductor(
        worker, RraSchedule(encode_batch=1, encode_interval=2), metrics=Metrics(registry)
    )
    streams = [conductor.submit([n] * 10, greedy(3)) for n in range(FEWEST + 2)]
    serve(conductor)
    await collect_all(streams)
    value = registry.get_sample_value
    for kind in ("encode", "decode"):
        found = value("exegpt_stage_time_variation_ratio", {"kind": kind})
        assert found == pytest.approx(0.0, abs=1e-9), kind
