"""Runs one schedule under a saturated backlog; the step log is what measured.py reads.

The conductor is driven in this process, without HTTP: what is judged is the plan, not the web
server (`exegpt bench` judges both). Workers are the serving processes, pinned to their cores as by
`exegpt serve`; conductor and load share the first core.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exegpt_cli.workers import Workers
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import QueryStream, SamplingParams
from exegpt_gateway.step_log import StepLog, Steps, read_step_log
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.schedule import AnySchedule
from exegpt_planner.workload import Workload
from exegpt_runner.measure import CALIBRATE_EVERY_S  # as in the profile: means of the same ratio
from exegpt_wire import worker_pb2

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Workers and what they serve."""

    workers: Workers
    model_path: Path
    dtype: str
    kv_tokens: int  # of each worker
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
class Drive:
    """What goes on beside the load, and ends it when it returns."""

    act: Callable[[Conductor], Coroutine[None, None, None]]
    metrics: Metrics
    backlog: int  # queries that must always wait, whatever the schedule


def run(  # noqa: PLR0913 - a run, its parts named
    served: Served,
    schedule: AnySchedule,
    workload: Workload,
    until: Until,
    *,
    log: Path,
    seed: int,
    drive: Drive | None = None,
) -> Steps:
    """The step log of one saturated run."""
    asyncio.run(_run(served, schedule, workload, until, log, seed, drive))
    return read_step_log(log)


async def _run(  # noqa: PLR0913 - a run, its parts named
    served: Served,
    schedule: AnySchedule,
    workload: Workload,
    until: Until,
    path: Path,
    seed: int,
    drive: Drive | None,
) -> None:
    configure = worker_pb2.ConfigureRequest(
        model_path=str(served.model_path),
        dtype=served.dtype,
        kv_tokens=served.kv_tokens,
        calibrate_every_s=CALIBRATE_EVERY_S,
    )
    links = [
        WorkerLink(address, configure, token=served.workers.token)
        for address in served.workers.addresses
    ]
    backlog = backlog_of(schedule) if drive is None else drive.backlog
    with StepLog(path) as log:
        conductor = Conductor(
            links,
            schedule=schedule,
            kv_tokens=served.kv_tokens,
            context=served.context,
            max_waiting=4 * backlog + 16,
            metrics=metrics() if drive is None else drive.metrics,
            step_log=log,
        )
        working = [asyncio.create_task(conductor.run())]
        if drive is not None:
            working.append(asyncio.create_task(drive.act(conductor)))
        try:
            await _keep_full(conductor, served, workload, until, backlog, seed, working)
        finally:
            for task in working:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def metrics() -> Metrics:
    from prometheus_client import CollectorRegistry

    return Metrics(CollectorRegistry())


def backlog_of(schedule: AnySchedule) -> int:
    """Queries that must always wait so that no step finds too few."""
    match schedule.strategy:
        case "RRA":
            return 3 * schedule.encode_batch * schedule.units
        case "WAA":
            return 3 * schedule.encode_batch * schedule.encoders
        case "STATIC":
            return 3 * schedule.batch
        case "CRA":
            return 2 * schedule.pool * schedule.units
        case _:
            return 2 * schedule.pool


def exactly(tokens: int) -> SamplingParams:
    """Sampling of so many tokens, whatever they are."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)


async def _keep_full(  # noqa: PLR0913 - one loop, its parts named
    conductor: Conductor,
    served: Served,
    workload: Workload,
    until: Until,
    backlog: int,
    seed: int,
    working: list[asyncio.Task[None]],
) -> None:
    rng = np.random.default_rng(seed)
    s99 = workload.s99
    while not (conductor.is_complete or any(each.done() for each in working)):  # loads the model
        await asyncio.sleep(0.01)
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
            stream = conductor.submit(prompt, exactly(int(length_out)))
            task = asyncio.create_task(follow(stream, int(length_out)))
            running.add(task)
            task.add_done_callback(running.discard)
            waiting += 1

    refill()
    ended = asyncio.create_task(over.wait())
    await asyncio.wait((ended, *working), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    for task in running:
        task.cancel()
    for task in working:
        if task.done():
            task.result()  # raises what stopped it
