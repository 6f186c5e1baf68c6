"""Measured steps of a profile on disk, one JSON line a measurement, and as samples of one machine speed.

A step is measured more than once, at different times; its sample is the mean, as promises are made of sums of steps.
The calibration kernel's time, smoothed over its neighbours, brings every measurement to the speed at the profile's
median kernel time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from exegpt_cli.cache import Cache, writing
from exegpt_planner.errors import Unavailable
from exegpt_planner.profile_fit import Sample
from exegpt_planner.profile_table import StepShape
from exegpt_planner.strict import StrictModel
from exegpt_wire import worker_pb2

_NEIGHBOURS = 3  # readings of the kernel in a median: before a step, after it, and one more


class Timing(StrictModel):
    """One measurement, seconds."""

    wall_s: float
    cpu_s: float
    layers_wall_s: float
    layers_cpu_s: float
    kernel_s: float  # smoothed


class MeasuredStep(StrictModel):
    """One step of a design, measured."""

    design: str  # which coverage it was designed for
    id: int
    held_out: bool
    shape: StepShape
    timings: tuple[Timing, ...]


def read_steps(path: Path) -> list[MeasuredStep]:
    """The steps recorded so far, each with all its timings; a torn last line is cut off."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}. Check its permissions.") from None
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        with writing(path), path.open("r+b") as file:
            file.truncate(len(data) - len(torn))
    try:
        lines = [MeasuredStep.model_validate(json.loads(line)) for line in whole.splitlines()]
    except (ValidationError, ValueError):
        raise Unavailable(f"{path} is damaged. Delete it; the profile is measured again.") from None
    steps: dict[tuple[str, int], MeasuredStep] = {}
    merge(steps, lines)
    return list(steps.values())


def merge(steps: dict[tuple[str, int], MeasuredStep], found: Iterable[MeasuredStep]) -> None:
    """Adds `found` to `steps`, by design and id; timings of the same step join."""
    for step in found:
        key = (step.design, step.id)
        known = steps[key].timings if key in steps else ()
        steps[key] = step.model_copy(update={"timings": known + step.timings})


def record(cache: Cache, path: Path, steps: Sequence[MeasuredStep]) -> None:
    """Appends `steps` to `path`."""
    cache.append(path, b"\n".join(step.model_dump_json().encode() for step in steps))


def timings(measurements: Sequence[worker_pb2.Measurement]) -> list[Timing]:
    """Measurements, in the order they were made, with the kernel's smoothed time."""
    kernel_s = smoothed([measurement.clocks.kernel_s for measurement in measurements])
    return [
        Timing(
            wall_s=measurement.clocks.wall_s,
            cpu_s=measurement.clocks.cpu_s,
            layers_wall_s=measurement.layers_wall_s,
            layers_cpu_s=measurement.layers_cpu_s,
            kernel_s=kernel,
        )
        for measurement, kernel in zip(measurements, kernel_s, strict=True)
    ]


def smoothed(kernel_s: Sequence[float]) -> list[float]:
    """At each measurement, the median of the readings around the one it carries."""
    readings: list[float] = []
    position = []
    for value in kernel_s:
        if not readings or value != readings[-1]:
            readings.append(value)
        position.append(len(readings) - 1)
    half = _NEIGHBOURS // 2
    medians = [
        float(np.median(readings[max(0, i - half) : i + half + 1])) for i in range(len(readings))
    ]
    return [medians[i] for i in position]


def typical_kernel_s(steps: Sequence[MeasuredStep]) -> float:
    """The kernel's median time over the profile: the speed everything is brought to."""
    return float(np.median([timing.kernel_s for step in steps for timing in step.timings]))


def samples(steps: Sequence[MeasuredStep], *, threads: int) -> list[Sample]:
    """One sample a step, at the profile's typical speed."""
    kernel_s = typical_kernel_s(steps)
    return [_sample(step, kernel_s, threads) for step in steps]


def _sample(step: MeasuredStep, kernel_s: float, threads: int) -> Sample:
    step_s = np.array(_normalised(step, kernel_s, threads))
    scatter = float(step_s.std(ddof=1)) if len(step_s) > 1 else 0.0
    return Sample(
        shape=step.shape,
        step_s=float(step_s.mean()),
        layers_s=float(np.mean(_normalised_layers(step, kernel_s, threads))),
        held_out=step.held_out,
        noise=scatter / math.sqrt(len(step_s)) / float(step_s.mean()),
    )


def spread(timings: Sequence[Timing], *, threads: int) -> float:
    """(largest - smallest) / median of the normalised times of one step."""
    seconds = [clock(timing, threads) / timing.kernel_s for timing in timings]
    return (max(seconds) - min(seconds)) / float(np.median(seconds))


def clock(timing: Timing, threads: int) -> float:
    """The step's seconds: CPU time is blind to preemption, but with several threads it is not a duration."""
    return timing.cpu_s if threads == 1 else timing.wall_s


def _normalised(step: MeasuredStep, kernel_s: float, threads: int) -> list[float]:
    return [clock(timing, threads) * kernel_s / timing.kernel_s for timing in step.timings]


def _normalised_layers(step: MeasuredStep, kernel_s: float, threads: int) -> list[float]:
    return [
        (timing.layers_cpu_s if threads == 1 else timing.layers_wall_s) * kernel_s / timing.kernel_s
        for timing in step.timings
    ]
