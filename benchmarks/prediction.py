"""Does the prediction come true? Every plan is written down first, then run under a saturated
backlog and measured.

    python benchmarks/prediction.py [--quick] [--models random,demo] [--workers 1] [--out results/prediction]

Three workloads (points.py) x two bounds that bind x every strategy that so many workers can run
(one: RRA and CRA; two: these as two units, and WAA), on a small random Llama and on the demo model.
Each point runs twice, in two passes, so
that the machine's own run-to-run spread stands beside the errors. Nothing is fitted on serving
data: the table comes from the profile, and the plan file's
time stamp is older than its run's. Prints a table and writes plans.json, runs.json, and the step logs.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scipy.stats import beta

from bench_worker import DTYPE, Profiled, profiled
from exegpt_planner.bound import Bound
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.workload import Workload
from measured import Measured, measure
from points import BOUND_SHARES, TASKS, between, knobs, reach, strategies, workload
from saturate import Served, Until, run

KV_BUDGET_BYTES = 2 << 30  # far above what these pools need
STEADY = 0.06  # runs in which the machine was as fast as while profiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cell of the grid, with what is predicted of it."""

    model: str
    task: str
    bound: str
    plan: Plan

    @property
    def name(self) -> str:
        return f"{self.model}-{self.task}-{self.bound}-{self.plan.schedule.strategy}"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--quick", action="store_true", help="one workload and bound, one pass, under 5 minutes"
    )
    options.add_argument("--models", default="random,demo")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--strategies", default="", help="default: all that the workers can run")
    options.add_argument("--tasks", default="S,T,G")
    options.add_argument("--passes", type=int, default=2)
    options.add_argument("--probes", type=int, default=300, help="answers of length s99 a run")
    options.add_argument("--at-most", type=float, default=150.0, help="seconds a run")
    options.add_argument("--out", type=Path, default=Path("results/prediction"))
    given = options.parse_args()
    if given.quick:
        given.models, given.tasks, given.passes = "random", "T", 1
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=160)
    rows: list[dict] = []
    for model in given.models.split(","):
        for row in _model(model, given, console):
            rows.append(row)
            (given.out / "runs.json").write_text(json.dumps(rows, indent=1))
    report(rows, console)


def _model(model: str, given: argparse.Namespace, console: Console) -> Iterator[dict]:
    tasks = given.tasks.split(",")
    loads = {task: workload(task) for task in tasks}
    with profiled(model, [workload(task) for task in TASKS], given.workers) as ready:
        points = [
            point for task in tasks for point in _points(ready, model, task, loads[task], given)
        ]
        _write_plans(given.out / f"plans-{model}.json", points)
        served = Served(
            workers=ready.workers,
            model_path=ready.folder,
            dtype=DTYPE,
            kv_tokens=min(point.plan.kv_tokens_capacity for point in points),
            vocab=ready.spec.vocab,
            context=ready.spec.context,
        )
        for turn, point in itertools.product(range(given.passes), points):
            measured = _run_point(served, ready, point, loads[point.task], turn, given)
            row = _row(point, turn, measured)
            console.print(_line(row))
            yield row


def _points(
    ready: Profiled, model: str, task: str, load: Workload, given: argparse.Namespace
) -> Iterator[Point]:
    """The plans of one workload: every strategy at every bound that binds both."""
    question = {
        "table": ready.table,
        "model": ready.spec,
        "workload": load,
        "memory": MemoryBudget(device_bytes=KV_BUDGET_BYTES, reserve_bytes=0),
        "workers": given.workers,
    }
    capacity = question["memory"].kv_tokens(
        weight_bytes=ready.spec.weight_bytes(DTYPE),
        kv_bytes_per_token=ready.spec.kv_bytes_per_token(DTYPE),
    )
    quickest, unbounded = reach(ready.table, load, capacity, given.workers)
    shares = {"loose": BOUND_SHARES["loose"]} if given.quick else BOUND_SHARES
    names = given.strategies.split(",") if given.strategies else strategies(given.workers)
    for (label, share), name in itertools.product(shares.items(), names):
        seconds = between(quickest, unbounded, share)
        plan = make_plan(**question, bound=Bound(seconds=seconds), strategies=[name])
        yield Point(model=model, task=task, bound=label, plan=plan)


def _write_plans(path: Path, points: Sequence[Point]) -> None:
    plans = {
        point.name: json.loads(point.plan.model_dump_json(exclude={"certificate"}))
        for point in points
    }
    path.write_text(json.dumps({"written": time.time(), "plans": plans}, indent=1))


def _run_point(
    served: Served,
    ready: Profiled,
    point: Point,
    load: Workload,
    turn: int,
    given: argparse.Namespace,
) -> Measured:
    expected = point.plan.prediction
    # the pool is stationary once the longest answer could have ended
    warm_up_s = 1.5 * expected.latency_mean_s * load.output.max / load.s99 + 1.0
    until = Until(
        probes=given.probes, warm_up_s=warm_up_s, at_least_s=15.0, at_most_s=given.at_most
    )
    log = given.out / f"{point.name}-{turn}.jsonl"
    seed = 1000 * turn + sum(map(ord, point.name))
    steps = run(served, point.plan.schedule, load, until, log=log, seed=seed)
    return measure(
        steps,
        point.plan.schedule,
        load,
        bound_s=point.plan.bound.seconds,
        kernel_s=ready.table.kernel_s,
        warm_up_s=warm_up_s,
    )


def _row(point: Point, turn: int, measured: Measured) -> dict:
    expected = point.plan.prediction
    errors = {
        clock: {
            "throughput": _error(expected.tokens_per_s, values.tokens_per_s),
            "cycle": _error(expected.cycle_s, values.cycle_s),
            "s99_mean": _error(expected.latency_mean_s, values.s99_mean_s),
        }
        for clock, values in (("raw", measured.raw), ("normalised", measured.normalised))
    }
    return {
        "point": point.name,
        "turn": turn,
        "schedule": point.plan.schedule.model_dump(),
        "s99": point.plan.length_tokens,
        "bound_s": point.plan.bound.seconds,
        "predicted": expected.model_dump(),
        "measured": dataclasses.asdict(measured),
        "errors": errors,
        "pool_error": _error(expected.pool_mean, measured.pool_mean),
    }


def _error(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def _line(row: dict) -> str:
    raw, norm = row["errors"]["raw"], row["errors"]["normalised"]
    seen = row["measured"]
    return (
        f"{row['point']:24s} {knobs(row['schedule']):>8s} s99={row['s99']:<3d} "
        f"tok/s {row['predicted']['tokens_per_s']:7.1f} | raw {seen['raw']['tokens_per_s']:7.1f} "
        f"norm {seen['normalised']['tokens_per_s']:7.1f}  err% thr {100 * norm['throughput']:+5.1f} "
        f"cyc {100 * norm['cycle']:+5.1f} lat {100 * norm['s99_mean']:+5.1f} pool {100 * row['pool_error']:+5.1f} "
        f"| raw {100 * raw['throughput']:+5.1f} {100 * raw['s99_mean']:+5.1f} "
        f"| kept {seen['raw']['s99_kept']}/{seen['num_s99']} "
        f"cpu/wall {seen['cpu_over_wall']:.3f} kernel {seen['kernel_ratio']:.2f} {seen['seconds']:.0f}s"
    )


def report(rows: Sequence[dict], console: Console) -> None:
    """Prints what the figures ask for."""
    quiet = [row for row in rows if row["measured"]["cpu_over_wall"] >= 0.98]
    table = Table("figure", "mean |error|", "worst", "runs", title="Predicted against measured")

    def add(name: str, chosen: Sequence[dict], value) -> None:
        if chosen:
            errors = [abs(value(row)) for row in chosen]
            table.add_row(
                name, f"{statistics.mean(errors):.1%}", f"{max(errors):.1%}", str(len(errors))
            )

    for clock, chosen in (("normalised", rows), ("raw", quiet)):
        for figure in ("throughput", "cycle", "s99_mean"):
            suffix = " (quiet runs)" if clock == "raw" else ""
            add(
                f"{clock} {figure}{suffix}",
                chosen,
                lambda row, c=clock, f=figure: row["errors"][c][f],
            )
    steady = [row for row in rows if abs(row["measured"]["kernel_ratio"] - 1) <= STEADY]
    for figure in ("throughput", "cycle", "s99_mean"):
        name = f"raw {figure}, kernel within {STEADY:.0%} of the profile's"
        add(name, steady, lambda row, f=figure: row["errors"]["raw"][f])
    add("pool size", rows, lambda row: row["pool_error"])
    console.print(table)
    console.print(_spread(rows))
    for label, clock, chosen in (
        ("raw", "raw", quiet),
        ("raw, steady", "raw", steady),
        ("normalised", "normalised", rows),
    ):
        kept = sum(row["measured"][clock]["s99_kept"] for row in chosen)
        total = sum(row["measured"]["num_s99"] for row in chosen)
        if total:
            low, high = clopper_pearson(kept, total)
            console.print(
                f"s99 answers within the bound, {label}, {len(chosen)} runs: {kept}/{total} = {kept / total:.2%} "
                f"(95 % Clopper-Pearson {low:.2%} .. {high:.2%})"
            )


def clopper_pearson(kept: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval."""
    tail = (1 - confidence) / 2
    low = 0.0 if kept == 0 else float(beta.ppf(tail, kept, total - kept + 1))
    high = 1.0 if kept == total else float(beta.ppf(1 - tail, kept + 1, total - kept))
    return low, high


def _spread(rows: Sequence[dict]) -> str:
    """How far two runs of the same point differ."""
    lines = []
    for clock in ("raw", "normalised"):
        differences = [
            abs(a["measured"][clock]["tokens_per_s"] / b["measured"][clock]["tokens_per_s"] - 1)
            for a, b in itertools.combinations(rows, 2)
            if a["point"] == b["point"]
        ]
        if differences:
            lines.append(
                f"{clock} {statistics.mean(differences):.1%} (worst {max(differences):.1%})"
            )
    return "run-to-run spread of throughput: " + (", ".join(lines) or "one pass only")


if __name__ == "__main__":
    main()
