"""What a step log shows of a schedule's promises: throughput, cycle, pool, and the latency of answers of length s99.

Two clocks. *Raw*: wall time. *Normalised*: process CPU time of a step x (the profile's calibration
kernel / the kernel's latest time), so that a neighbour who slows the machine down does not count as
an error of the model. Gaps between steps are wall time in both, the kernel's own runs taken out.

On several workers each has a clock of its own. Units add up. In WAA the decoders' clock is the one
that counts: a query is through when its last decode iteration is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_cli.profile_samples import smoothed
from exegpt_gateway.step_log import IterationRecord, QueryRecord, Steps
from exegpt_planner.schedule import AnySchedule, StaticSchedule, WaaSchedule
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocked:
    """What one clock measured of a run."""

    queries_per_s: float
    tokens_per_s: float
    cycle_s: float
    s99_mean_s: float
    s99_p99_s: float
    s99_kept: int  # answers of length s99 within the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run after its warm-up."""

    raw: Clocked
    normalised: Clocked
    pool_mean: float  # decode queries of a worker, mean over iterations that decode
    num_s99: int
    num_queries: int
    seconds: float
    cpu_over_wall: float  # inside the step clocks; 1 on a quiet machine
    kernel_ratio: float  # the run's median calibration kernel / the profile's
    evictions: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """One worker's iterations."""

    log: tuple[IterationRecord, ...]
    place: dict[int, int]  # index in the whole log -> here
    start: Floats
    end: Floats
    wall: Floats
    normalised: Floats
    gaps: Floats  # before each
    kernel: Floats
    first: int  # after the warm-up
    last: int  # one past the last whole cycle

    def total_s(self, times: Floats) -> float:
        return float((times + self.gaps)[self.first : self.last].sum())

    @property
    def measured(self) -> tuple[IterationRecord, ...]:
        return self.log[self.first : self.last]

    @property
    def decodes(self) -> bool:
        return any(each.shape.decode_queries for each in self.measured)


def measure(
    steps: Steps,
    schedule: AnySchedule,
    workload: Workload,
    *,
    bound_s: float,
    kernel_s: float,
    warm_up_s: float,
) -> Measured:
    """What the run showed after `warm_up_s`; `kernel_s` is the profile's calibration kernel time."""
    begin_s = steps.iterations[0].start_s + warm_up_s
    workers = sorted({each.worker for each in steps.iterations})
    lanes = {n: _lane(steps, n, schedule, kernel_s, begin_s) for n in workers}
    decoding = [lane for lane in lanes.values() if lane.decodes]
    worker_of = [each.worker for each in steps.iterations]

    def lane_of(index: int) -> Lane:
        return lanes[worker_of[index]]

    probes = [
        query
        for query in steps.queries
        if query.output_tokens == workload.s99
        and steps.iterations[query.first_iteration].start_s >= begin_s
    ]
    busy = [each for lane in decoding for each in lane.measured]
    pools = np.array([each.shape.decode_queries for each in busy if each.shape.decode_queries])
    return Measured(
        raw=_clocked("wall", decoding, lane_of, schedule, workload, probes, bound_s),
        normalised=_clocked("normalised", decoding, lane_of, schedule, workload, probes, bound_s),
        pool_mean=float(pools.mean()),
        num_s99=len(probes),
        num_queries=sum(
            steps.iterations[query.first_iteration].start_s >= begin_s for query in steps.queries
        ),
        seconds=max(float(lane.end[lane.last - 1] - lane.start[lane.first]) for lane in decoding),
        cpu_over_wall=sum(each.cpu_s for each in busy) / sum(each.wall_s for each in busy),
        kernel_ratio=float(
            np.median(np.concatenate([lane.kernel[lane.first : lane.last] for lane in decoding]))
            / kernel_s
        ),
        evictions=sum(each.evicted for each in busy),
    )


def _lane(
    steps: Steps, worker: int, schedule: AnySchedule, kernel_s: float, begin_s: float
) -> Lane:
    indices = [i for i, each in enumerate(steps.iterations) if each.worker == worker]
    log = tuple(steps.iterations[i] for i in indices)
    start, wall, cpu, between = (
        np.array([getattr(each, name) for each in log])
        for name in ("start_s", "wall_s", "cpu_s", "between_s")
    )
    readings = np.array([each.kernel_s or kernel_s for each in log])
    kernel = np.array(smoothed(readings.tolist()))  # as in the profile
    end = start + wall - between
    first = int(np.searchsorted(start, begin_s))
    if isinstance(schedule, StaticSchedule):  # whole batches only
        first = next(i for i in range(first, len(log)) if log[i].shape.encode_chunks)
    return Lane(
        log=log,
        place={index: at for at, index in enumerate(indices)},
        start=start,
        end=end,
        wall=wall,
        normalised=cpu * kernel_s / kernel,
        gaps=gaps_s(log, end, wall),
        kernel=kernel,
        first=first,
        last=_last_whole(log, schedule),
    )


def _last_whole(log: tuple[IterationRecord, ...], schedule: AnySchedule) -> int:
    """One past the last iteration of the last whole cycle: where there are cycles, they begin with an encode."""
    if schedule.strategy in ("CRA", "ORCA", "WAA"):
        return len(log)
    return max(i for i, each in enumerate(log) if each.shape.encode_chunks)


def gaps_s(log: Sequence[IterationRecord], end: Floats, wall: Floats) -> Floats:
    """Seconds the worker waited before each iteration, the calibration taken out."""
    gaps = np.zeros_like(end)
    calibration = np.array([each.calibration_s for each in log])
    gaps[1:] = end[1:] - end[:-1] - wall[1:] - calibration[1:]
    return gaps


def _clocked(  # noqa: PLR0913 - one table of a run, its columns named
    clock: str,
    decoding: list[Lane],
    lane_of: Callable[[int], Lane],
    schedule: AnySchedule,
    workload: Workload,
    probes: list[QueryRecord],
    bound_s: float,
) -> Clocked:
    tokens_per_s = 0.0
    cycles_s, num_cycles = 0.0, 0
    for lane in decoding:
        total_s = lane.total_s(getattr(lane, clock))
        tokens_per_s += sum(each.num_tokens for each in lane.measured) / total_s
        cycles_s += total_s
        num_cycles += (
            len(lane.measured)
            if schedule.strategy in ("CRA", "ORCA", "WAA")
            else sum(each.shape.encode_chunks > 0 for each in lane.measured)
        )
    if isinstance(schedule, WaaSchedule):  # the encoders sample one token of each query
        tokens_per_s *= workload.output.mean / (workload.output.mean - 1)
    latency_of = _handed_over_s if isinstance(schedule, WaaSchedule) else _in_place_s
    latencies = np.array([latency_of(each, clock, lane_of) for each in probes] or [np.nan])
    return Clocked(
        queries_per_s=tokens_per_s / workload.output.mean,
        tokens_per_s=tokens_per_s,
        cycle_s=cycles_s / num_cycles,
        s99_mean_s=float(latencies.mean()),
        s99_p99_s=float(np.quantile(latencies, 0.99)),
        s99_kept=int((latencies <= bound_s).sum()),
    )


def _in_place_s(query: QueryRecord, clock: str, lane_of: Callable[[int], Lane]) -> float:
    """From the start of the encode to the last token, on one worker."""
    lane = lane_of(query.last_iteration)
    begin, end = lane.place[query.first_iteration], lane.place[query.last_iteration]
    times = getattr(lane, clock)
    return float((times + lane.gaps)[begin : end + 1].sum() - lane.gaps[begin])


def _handed_over_s(query: QueryRecord, clock: str, lane_of: Callable[[int], Lane]) -> float:
    """The encode, the way to the decoder (wall time), and an iteration for each further token."""
    encoder, decoder = lane_of(query.first_iteration), lane_of(query.last_iteration)
    encode, end = encoder.place[query.first_iteration], decoder.place[query.last_iteration]
    begin = end - (query.output_tokens - 2)  # it decodes in every iteration once it has joined
    way_s = decoder.start[begin] - encoder.end[encode]
    times = getattr(decoder, clock)
    decode_s = float((times + decoder.gaps)[begin : end + 1].sum() - decoder.gaps[begin])
    return float(getattr(encoder, clock)[encode]) + max(0.0, float(way_s)) + decode_s
