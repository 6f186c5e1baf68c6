"""From timings to samples: one machine speed, means, and a record that survives a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from exegpt_cli.cache import Cache
from exegpt_cli.profile_samples import (
    MeasuredStep,
    Timing,
    read_steps,
    record,
    samples,
    smoothed,
    spread,
    typical_kernel_s,
)
from exegpt_planner.profile_table import StepShape

SHAPE = StepShape(
    tokens=3, decode_queries=3, decode_context=30, encode_chunks=0, encode_pairs=0, sampled=3
)


def _timing(cpu_s: float, kernel_s: float) -> Timing:
    return Timing(
        wall_s=2 * cpu_s,
        cpu_s=cpu_s,
        layers_wall_s=1.5 * cpu_s,
        layers_cpu_s=0.75 * cpu_s,
        kernel_s=kernel_s,
    )


def _step(index: int, *timings: Timing) -> MeasuredStep:
    return MeasuredStep(design="d", id=index, held_out=False, shape=SHAPE, timings=timings)


def test_a_slow_spell_is_normalised_away() -> None:
    quick, slow = _step(0, _timing(0.010, 0.006)), _step(1, _timing(0.015, 0.009))
    steps = [quick, slow, _step(2, _timing(0.010, 0.006))]
    assert typical_kernel_s(steps) == 0.006
    assert [s.step_s for s in samples(steps, threads=1)] == pytest.approx([0.010] * 3)
    assert [s.layers_s for s in samples(steps, threads=1)] == pytest.approx([0.0075] * 3)


def test_a_sample_is_the_mean_of_its_timings() -> None:
    step = _step(0, *(_timing(cpu_s, 0.006) for cpu_s in (0.010, 0.011, 0.018)))
    [sample] = samples([step], threads=1)
    assert sample.step_s == pytest.approx(0.013)
    scatter = (19 / 1e6) ** 0.5  # (9 + 4 + 25) / 2 square milliseconds
    assert sample.noise == pytest.approx(scatter / 3**0.5 / 0.013)
    assert spread(step.timings, threads=1) == pytest.approx(8 / 11)


def test_several_threads_are_timed_by_the_wall() -> None:
    assert samples([_step(0, _timing(0.010, 0.006))], threads=2)[0].step_s == pytest.approx(0.020)


def test_one_odd_reading_of_the_kernel_moves_nothing() -> None:
    assert smoothed([6.0, 6.0, 6.1, 9.9, 9.9, 6.2, 6.3]) == pytest.approx(
        [6.05, 6.05, 6.1, 6.2, 6.2, 6.3, 6.25]
    )


def test_timings_of_a_step_join_across_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for cpu_s in (0.010, 0.012):
        record(Cache(tmp_path), path, [_step(index, _timing(cpu_s, 0.006)) for index in range(2)])
    steps = read_steps(path)
    assert [step.id for step in steps] == [0, 1]
    assert [[t.cpu_s for t in step.timings] for step in steps] == [[0.010, 0.012]] * 2


def test_a_torn_last_line_is_cut_off_and_the_record_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    cache = Cache(tmp_path)
    steps = [_step(index, _timing(0.01, 0.006)) for index in range(3)]
    assert read_steps(path) == []
    record(cache, path, steps[:2])
    path.write_bytes(path.read_bytes() + b'{"design": "d", "id"')
    assert read_steps(path) == steps[:2]
    record(cache, path, steps[2:])
    assert read_steps(path) == steps
