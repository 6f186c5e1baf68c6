from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from cli.tables import promise
from conductors import MakeWorker, Serve, build_conductor, collect_all, greedy
from exegpt_gateway.metrics import Metrics
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
)

GLOSSARY = Path(__file__).parents[3] / "docs" / "glossary.md"


async def test_a_run_shows_in_the_metrics(make_worker: MakeWorker, serve: Serve) -> None:
    registry = CollectorRegistry()
    worker = await make_worker()
    conductor = build_conductor(
        worker, RraSchedule(encode_batch=2, encode_interval=3), metrics=Metrics(registry)
    )
    streams = [conductor.submit([n] * 10, greedy(4)) for n in range(3)]
    value = registry.get_sample_value
    assert value("exegpt_waiting_queries") == 3
    serve(conductor)
    await collect_all(streams)

    assert value("exegpt_input_tokens_count") == 3
    assert value("exegpt_input_tokens_sum") == 30
    assert value("exegpt_output_tokens_sum") == 12
    assert value("exegpt_queries_total", {"outcome": "length"}) == 3
    assert value("exegpt_waiting_queries") == 0
    assert value("exegpt_encode_batch_queries_sum") == 3
    assert value("exegpt_encode_batch_queries_count") == 2
    assert value("exegpt_decode_batch_queries_sum") == 9
    assert value("exegpt_decode_batch_queries_count") == 6
    assert value("exegpt_iteration_seconds_count", {"kind": "encode"}) == 2
    assert value("exegpt_iteration_seconds_count", {"kind": "decode"}) == 6
    assert value("exegpt_first_token_seconds_count") == 3
    assert value("exegpt_inter_token_seconds_count") == 9
    assert value("exegpt_completion_seconds_count") == 3
    assert value("exegpt_queued_seconds_count") == 3
    assert value("exegpt_kv_capacity_tokens") == 1 << 20


def test_answers_of_any_length_are_held_against_the_bound_after_normalising() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, promise(bound_s=2.0))
    metrics.answered(0.9, 5, 10)  # 1.8 s at s99
    metrics.answered(1.1, 5, 10)  # 2.2 s
    metrics.answered(2.0, 5, 20)
    metrics.answered(9.0, 5, 21)  # not predicted: not compared

    value = registry.get_sample_value
    assert value("exegpt_normalised_latency_seconds_sum") == pytest.approx(1.8 + 2.2 + 2.0)
    assert value("exegpt_within_bound_ratio") == pytest.approx(2 / 3)
    assert value("exegpt_completion_seconds_count") == 4


def test_a_new_promise_takes_the_place_of_the_old_one() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, promise(bound_s=2.0))
    metrics.answered(3.0, 5, 20)
    metrics.promised(promise(bound_s=4.0))
    metrics.answered(3.0, 5, 20)  # only what comes from now is held against it
    assert registry.get_sample_value("exegpt_bound_seconds") == 4.0
    assert registry.get_sample_value("exegpt_within_bound_ratio") == 1.0


def test_what_was_promised_is_shown() -> None:
    registry = CollectorRegistry()
    Metrics(registry, promise())
    assert registry.get_sample_value("exegpt_bound_seconds") == 2.0
    assert registry.get_sample_value("exegpt_promised_latency_seconds") == 1.8
    assert registry.get_sample_value("exegpt_predicted_latency_seconds") == 1.5
    assert registry.get_sample_value("exegpt_predicted_queries_per_second") == 4


@pytest.mark.parametrize(
    ("schedule", "knobs"),
    [
        (RraSchedule(encode_batch=5, encode_interval=7), (5, 0, 7, 0)),
        (CraSchedule(pool=9, chunk_tokens=64), (0, 9, 0, 64)),
        (StaticSchedule(batch=3, early_termination=True), (3, 3, 0, 0)),
        (OrcaSchedule(pool=6), (1, 6, 1, 0)),
    ],
)
def test_the_knobs_in_force_are_shown(schedule: AnySchedule, knobs: tuple[int, ...]) -> None:
    registry = CollectorRegistry()
    Metrics(registry).in_force(schedule)
    names = ("encode_batch_queries", "decode_batch_queries", "encode_interval_iterations")
    shown = [registry.get_sample_value(f"exegpt_schedule_{name}") for name in names]
    assert (*shown, registry.get_sample_value("exegpt_schedule_chunk_tokens")) == knobs


def test_the_glossary_has_every_metric_and_no_other() -> None:
    registry = CollectorRegistry()
    Metrics(registry, promise())
    exposed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }
    described = set(re.findall(r"`(exegpt_[a-z0-9_]+)`", GLOSSARY.read_text()))
    assert described == exposed
