"""One saturated run whose schedule changes in turns, so that what is compared met the same machine.

Times are normalised as in measured.py: CPU time at the profile's speed, by the calibration kernel,
and the worker's waits between iterations.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from bench_worker import DTYPE, Profiled
from exegpt_cli.foresee import promise
from exegpt_cli.profile_samples import smoothed
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.step_log import Steps
from exegpt_planner.bound import Bound
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.schedule import Schedule
from exegpt_planner.workload import Workload
from measured import gaps_s
from points import BOUND_SHARES, between, reach
from saturate import Drive, Served, Until, backlog_of, run

KV_BUDGET_BYTES = 2 << 30  # far above what these pools need
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Since when which schedule has been in force."""

    name: str
    schedule: Schedule
    first: int  # the first iteration whose step was decided by it, or one before


Set = Callable[[Conductor, Schedule], Awaitable[int]]  # gives the iterations that had come by then


def options(doc: str | None, *, turn_s: float, rounds: int) -> argparse.ArgumentParser:
    """What these benchmarks take."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="random")
    parser.add_argument("--task", default="T")
    parser.add_argument("--bound", default="tight", choices=BOUND_SHARES)
    parser.add_argument("--turn", type=float, default=turn_s, help="seconds between changes")
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def plan_of(ready: Profiled, load: Workload, bound: str, strategy: str) -> Plan:
    """The plan of one strategy at a bound that binds."""
    memory = MemoryBudget(device_bytes=KV_BUDGET_BYTES, reserve_bytes=0)
    capacity = memory.kv_tokens(
        weight_bytes=ready.spec.weight_bytes(DTYPE),
        kv_bytes_per_token=ready.spec.kv_bytes_per_token(DTYPE),
    )
    seconds = between(*reach(ready.table, load, capacity), BOUND_SHARES[bound])
    return make_plan(
        table=ready.table,
        model=ready.spec,
        workload=load,
        bound=Bound(seconds=seconds),
        memory=memory,
        strategies=[strategy],
    )


def in_turns(
    ready: Profiled,
    load: Workload,
    plan: Plan,
    turns: Sequence[tuple[str, Schedule]],
    turn_s: float,
    change: Set,
) -> tuple[Steps, list[Turn]]:
    """The log of a run that works by `turns`, each for `turn_s`, after a warm-up by the first one."""
    taken: list[Turn] = []

    async def act(conductor: Conductor) -> None:
        await asyncio.sleep(max(turn_s, 4 * plan.prediction.latency_mean_s))
        for name, schedule in turns:
            first = await change(conductor, schedule)
            taken.append(Turn(name=name, schedule=schedule, first=first))
            await asyncio.sleep(turn_s)

    served = Served(
        workers=ready.workers,
        model_path=ready.folder,
        dtype=DTYPE,
        kv_tokens=plan.kv_tokens_capacity,
        vocab=ready.spec.vocab,
        context=ready.spec.context,
    )
    drive = Drive(
        act=act,
        metrics=Metrics(CollectorRegistry(), promise(plan, ready.table, load)),
        backlog=max(backlog_of(schedule) for _, schedule in turns),
    )
    until = Until(probes=1 << 30, warm_up_s=0, at_least_s=0, at_most_s=1e9)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        steps = run(served, turns[0][1], load, until, log=log, seed=1, drive=drive)
    return steps, taken


def times_s(steps: Steps, kernel_s: float) -> tuple[Floats, Floats]:
    """(normalised, of the wall) time of each iteration with the wait before it, of one worker."""
    log = steps.iterations
    start, wall, cpu = (
        np.array([getattr(each, name) for each in log]) for name in ("start_s", "wall_s", "cpu_s")
    )
    readings = np.array([each.kernel_s or kernel_s for each in log])
    end = start + wall - np.array([each.between_s for each in log])
    gaps = gaps_s(log, end, wall)
    return cpu * kernel_s / np.array(smoothed(readings.tolist())) + gaps, wall + gaps


def tokens(steps: Steps) -> Floats:
    """Output tokens of each iteration."""
    return np.array([each.num_tokens for each in steps.iterations], dtype=np.float64)
