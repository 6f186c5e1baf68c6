"""Loads a server of one's own: how many queries saturate it, how long it needs to settle, what it says of itself."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from exegpt_cli.bench.client import Target
from exegpt_cli.bench.load import Limits
from exegpt_cli.bench.options import BenchOptions
from exegpt_cli.bench.report import BenchReport, measured, write_csv
from exegpt_cli.bench.run import LoadPlan, Outcome, run_load
from exegpt_cli.bench.scraped import Scraped
from exegpt_cli.lifetime import ending_cleanly
from exegpt_cli.output import progress
from exegpt_cli.own_server import Announcement, OwnServer
from exegpt_planner.manifest import read_manifest
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, RraSchedule
from exegpt_planner.workload import Workload, read_workload

POOL_SDS = 4.0  # the pool passes its mean by more once in 30,000 cycles
SETTLING = 1.5  # warm-up, in latencies of an s99 answer: by then the pool has forgotten its start
SETTLING_MIN_S = 3.0


def bench_own(options: BenchOptions) -> BenchReport:
    """The report of a load on the server that `options.file` describes, started and ended here."""
    file = options.file
    assert file is not None, options
    read_manifest(file)  # its faults are told here, once
    with (
        ending_cleanly(),
        OwnServer(file, probes=options.probes, strategy=options.strategy) as server,
    ):
        workload, s99 = own_workload(file, server, options.probes)
        load = own_load(
            server,
            workload,
            duration_s=options.duration_s,
            num_queries=options.num_queries,
            in_flight=options.in_flight,
            rate_per_s=options.rate_per_s,
            warm_up_s=options.warm_up_s,
            seed=options.seed,
        )
        with progress(f"loading {server.model}: {load.arrivals}") as report:
            outcome = asyncio.run(run_load(load, report))
    if options.csv is not None:
        write_csv(options.csv, outcome.load, s99)
    return own_report(server, load, outcome, s99)


def backlog(plan: Plan) -> int:
    """Queries in flight that keep some waiting at all times."""
    expected = plan.prediction
    match plan.schedule:
        case RraSchedule(encode_batch=batch):
            refill = 2 * batch
        case CraSchedule(pool=pool):
            refill = pool
    return math.ceil(expected.pool_mean + POOL_SDS * expected.pool_sd) + refill + 4


def settling_s(plan: Plan) -> float:
    """How long a load must run before its pool is steady."""
    return max(SETTLING_MIN_S, SETTLING * plan.prediction.latency_mean_s)


def own_workload(file: Path, server: Announcement, probes: float) -> tuple[Workload, int]:
    """The law the server was planned for, probes mixed in, and the probes' length."""
    spec = read_manifest(file).spec
    law = read_workload(spec.workload, server.context)
    percentile = spec.latency_bound.percentile_length
    length = law.percentile_length(percentile)
    return (law.with_probes(probes, percentile=percentile) if probes else law), length


def own_load(  # noqa: PLR0913 - a load's own parts
    server: Announcement,
    workload: Workload,
    *,
    duration_s: float,
    num_queries: int | None = None,
    in_flight: int | None = None,
    rate_per_s: float | None = None,
    warm_up_s: float | None = None,
    seed: int = 0,
) -> LoadPlan:
    """The load of a server of one's own; what is not given comes from its plan."""
    settling = settling_s(server.plan) if warm_up_s is None else warm_up_s
    return LoadPlan(
        target=Target(url=server.url, model=server.model, extensions=True),
        metrics_url=server.metrics_url,
        workload=workload,
        vocab=server.vocab,
        seed=seed,
        in_flight=in_flight or backlog(server.plan),
        rate_per_s=rate_per_s,
        warm_up_s=settling,
        limits=Limits(duration_s=settling + duration_s, num_queries=num_queries),
    )


def own_report(server: Announcement, load: LoadPlan, outcome: Outcome, s99: int) -> BenchReport:
    """What the load achieved, beside what the server's plan predicts."""
    scraped = Scraped(outcome.before, outcome.after)
    return measured(
        outcome.load,
        warm_up_s=load.warm_up_s,
        s99=s99,
        bound_s=server.plan.bound.seconds,
        target=f"{server.model} on this machine",
        arrivals=load.arrivals,
        cycle_s=scraped.cycle_s,
        speed=scraped.speed,
        stage_variation=scraped.stage_variation,
        saturated=load.rate_per_s is None,
        schedule=server.plan.schedule,
        predicted=server.plan.prediction,
    )
