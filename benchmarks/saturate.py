"""Runs one schedule on one worker under a saturated backlog, and reads throughput and latency off
the step clocks.

The conductor is driven in this process, without HTTP: what is judged is the plan, not the web
server (`exegpt bench` judges both). The worker is the
serving process, pinned to its own core; conductor and load share the other.

Two clocks. *Raw*: wall time. *Normalised*: process CPU time of a step x (the profile's calibration
kernel / the kernel's latest time), so that
a neighbour who slows memory down does not count as an error of the model. Gaps between steps are
wall time in both, the kernel's own runs taken out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exegpt_cli.profile_samples import smoothed
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.query import QueryStream, SamplingParams
from exegpt_gateway.step_log import StepLog, Steps, read_step_log
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.schedule import AnySchedule, StaticSchedule
from exegpt_planner.workload import Workload
from exegpt_runner.measure import CALIBRATE_EVERY_S  # as in the profile: means of the same ratio
from exegpt_wire import worker_pb2

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A worker and what it serves."""

    address: str
    model_path: Path
    dtype: str
    kv_tokens: int
    vocab: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When a run is over: enough probes seen after the warm-up, or time is up."""

    probes: int  # answers of length s99
    warm_up_s: float
    at_least_s: float
    at_most_s: float


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
    pool_mean: float  # decode queries, mean over iterations that decode
    num_s99: int
    num_queries: int
    seconds: float
    cpu_over_wall: float  # inside the step clocks; 1 on a quiet machine
    kernel_ratio: float  # the run's median calibration kernel / the profile's
    evictions: int


def run(
    served: Served,
    schedule: AnySchedule,
    workload: Workload,
    until: Until,
    *,
    log: Path,
    seed: int,
) -> Steps:
    """The step log of one saturated run."""
    asyncio.run(_run(served, schedule, workload, until, log, seed))
    return read_step_log(log)


async def _run(
    served: Served,
    schedule: AnySchedule,
    workload: Workload,
    until: Until,
    path: Path,
    seed: int,
) -> None:
    link = WorkerLink(
        served.address,
        worker_pb2.ConfigureRequest(
            model_path=str(served.model_path),
            dtype=served.dtype,
            kv_tokens=served.kv_tokens,
            calibrate_every_s=CALIBRATE_EVERY_S,
        ),
    )
    backlog = backlog_of(schedule)
    with StepLog(path) as log:
        conductor = Conductor(
            link,
            schedule=schedule,
            kv_tokens=served.kv_tokens,
            context=served.context,
            max_waiting=4 * backlog + 16,
            metrics=metrics(),
            step_log=log,
        )
        working = asyncio.create_task(conductor.run())
        try:
            await _keep_full(conductor, served, workload, until, backlog, seed, working)
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


def metrics():
    from prometheus_client import CollectorRegistry

    from exegpt_gateway.metrics import Metrics

    return Metrics(CollectorRegistry())


def backlog_of(schedule: AnySchedule) -> int:
    """Queries that must always wait so that no step finds too few."""
    match schedule.strategy:
        case "RRA":
            return 3 * schedule.encode_batch
        case "STATIC":
            return 3 * schedule.batch
        case _:
            return 2 * schedule.pool


async def _keep_full(  # noqa: PLR0913 - one loop, its parts named
    conductor: Conductor,
    served: Served,
    workload: Workload,
    until: Until,
    backlog: int,
    seed: int,
    working: asyncio.Task[None],
) -> None:
    rng = np.random.default_rng(seed)
    s99 = workload.s99
    begun = time.monotonic()
    probes = 0
    over = asyncio.Event()
    running: set[asyncio.Task[None]] = set()
    waiting = 0

    async def follow(stream: QueryStream, length: int) -> None:
        nonlocal probes, waiting
        count = 0
        async for _ in stream:
            count += 1
            if count == 1:
                waiting -= 1
                refill()
        now = time.monotonic() - begun
        probes += length == s99 and now > until.warm_up_s
        enough = probes >= until.probes and now >= until.warm_up_s + until.at_least_s
        if enough or now >= until.warm_up_s + until.at_most_s:
            over.set()

    def refill() -> None:
        nonlocal waiting
        short = backlog - waiting
        if short <= 0:
            return
        inputs, outputs = workload.sample(rng, short)
        for length_in, length_out in zip(inputs, outputs, strict=True):
            prompt = rng.integers(3, served.vocab, size=int(length_in)).tolist()
            limits = SamplingParams(
                temperature=0.0,
                max_tokens=int(length_out),
                min_tokens=int(length_out),
                ignore_eos=True,
            )
            task = asyncio.create_task(follow(conductor.submit(prompt, limits), int(length_out)))
            running.add(task)
            task.add_done_callback(running.discard)
            waiting += 1

    refill()
    ended = asyncio.create_task(over.wait())
    await asyncio.wait((ended, working), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    for task in running:
        task.cancel()
    if working.done():
        working.result()  # raises what stopped the conductor


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
    log = steps.iterations
    start = np.array([each.start_s for each in log])
    wall = np.array([each.wall_s for each in log])
    cpu = np.array([each.cpu_s for each in log])
    readings = np.array([each.kernel_s or kernel_s for each in log])
    kernel = np.array(smoothed(readings.tolist()))  # as in the profile
    first = int(np.searchsorted(start, start[0] + warm_up_s))
    if isinstance(schedule, StaticSchedule):  # whole batches only
        first = next(i for i in range(first, len(log)) if log[i].shape.encode_chunks)
    last = _last_whole(log, schedule)
    gaps = _gaps(start + wall - np.array([each.between_s for each in log]), wall, readings)
    clocks = {"raw": wall, "normalised": cpu * kernel_s / kernel}
    decoding = np.array([each.shape.decode_queries for each in log[first:last]])
    s99 = workload.s99
    probes = [
        query
        for query in steps.queries
        if query.output_tokens == s99
        and query.first_iteration >= first
        and query.last_iteration < len(log)
    ]
    clocked = {
        name: _clocked(
            times,
            gaps,
            first,
            last,
            log,
            schedule,
            workload,
            [(query.first_iteration, query.last_iteration) for query in probes],
            bound_s,
        )
        for name, times in clocks.items()
    }
    return Measured(
        raw=clocked["raw"],
        normalised=clocked["normalised"],
        pool_mean=float(decoding[decoding > 0].mean()),
        num_s99=len(probes),
        num_queries=sum(query.first_iteration >= first for query in steps.queries),
        seconds=float(start[last - 1] + wall[last - 1] - start[first]),
        cpu_over_wall=float(cpu[first:last].sum() / wall[first:last].sum()),
        kernel_ratio=float(np.median(kernel[first:last]) / kernel_s),
        evictions=sum(each.evicted for each in log[first:last]),
    )


def _last_whole(log: tuple, schedule: AnySchedule) -> int:
    """One past the last iteration of the last whole cycle: cycles begin with an encode."""
    if schedule.strategy in ("CRA", "ORCA"):
        return len(log)
    return max(i for i, each in enumerate(log) if each.shape.encode_chunks)


def _gaps(end: Floats, wall: Floats, kernel: Floats) -> Floats:
    """Seconds the worker waited before each iteration; a calibration (the kernel, twice) is taken out."""
    gaps = np.zeros_like(end)
    gaps[1:] = end[1:] - end[:-1] - wall[1:]
    fresh = np.zeros(len(end), dtype=bool)
    fresh[1:] = kernel[1:] != kernel[:-1]
    return np.maximum(gaps - np.where(fresh, 2 * kernel, 0.0), 0.0)


def _clocked(  # noqa: PLR0913 - one table of a run, its columns named
    times: Floats,
    gaps: Floats,
    first: int,
    last: int,
    log: tuple,
    schedule: AnySchedule,
    workload: Workload,
    probes: list[tuple[int, int]],
    bound_s: float,
) -> Clocked:
    total = float((times + gaps)[first:last].sum())
    tokens = sum(each.num_tokens for each in log[first:last])
    cycles = (
        last - first
        if schedule.strategy in ("CRA", "ORCA")
        else sum(each.shape.encode_chunks > 0 for each in log[first:last])
    )
    until = np.concatenate(([0.0], np.cumsum(times + gaps)))
    latencies = np.array(
        [until[end + 1] - until[begin] - gaps[begin] for begin, end in probes] or [np.nan]
    )
    return Clocked(
        queries_per_s=tokens / total / workload.output.mean,
        tokens_per_s=tokens / total,
        cycle_s=total / cycles,
        s99_mean_s=float(latencies.mean()),
        s99_p99_s=float(np.quantile(latencies, 0.99)),
        s99_kept=int((latencies <= bound_s).sum()),
    )


Progress = Callable[[str], None]
