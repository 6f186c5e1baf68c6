"""Which policy serves the most within one bound? Every policy tuned over its own knobs by
measurement, on one engine.

    python benchmarks/policies.py [--quick] [--model random] [--workers 1] [--points S-tight,T-loose]

RRA, CRA and, on two workers, WAA start from the planner's choice and its neighbours; static batches (with and without
early termination) and ORCA's iteration-level refill from
sizes around CRA's pool. All candidates of a point run in turn, in two passes (A B C … A B C …), and
a candidate is feasible when the measured 99th percentile of
its s99 answers keeps the bound. Prints, a point, each policy's best beside the planner's choice,
and how well the predicted order of all RRA and CRA candidates agrees with
the measured one (Kendall's tau-b over pairs that differ by at least 5 %).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench_worker import DTYPE, Profiled, profiled
from exegpt_planner.bound import Bound
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.schedule import AnySchedule, OrcaSchedule, Schedule, StaticSchedule
from exegpt_planner.search import Space, search
from exegpt_planner.simulator import simulate
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.workload import Workload
from measured import Measured, measure
from points import BOUND_SHARES, TASKS, between, knobs, reach, spaces, strategies, workload
from saturate import Served, Until, run

KV_BUDGET_BYTES = 2 << 30
TIE = 0.05  # differences below it are ties on a shared CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One schedule of a policy; `predicted` is its throughput, tokens/s, where the planner speaks of it."""

    policy: str
    schedule: AnySchedule
    predicted: float | None = None
    is_choice: bool = False  # the planner's, over all strategies


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="one point, one pass")
    options.add_argument("--model", default="random")
    options.add_argument(
        "--points", default=",".join(f"{task}-{bound}" for task in TASKS for bound in BOUND_SHARES)
    )
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--passes", type=int, default=2)
    options.add_argument("--seconds", type=float, default=7.0, help="a run, after its warm-up")
    options.add_argument("--out", type=Path, default=Path("results/policies"))
    given = options.parse_args()
    if given.quick:
        given.points, given.passes = "T-loose", 1
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=150)
    points = given.points.split(",")
    loads = {task: workload(task) for task in TASKS}  # one profile for any points
    rows: list[dict] = []
    with profiled(given.model, list(loads.values()), given.workers) as ready:
        for name in points:
            task, bound = name.split("-")
            reached = reach(ready.table, loads[task], kv_budget(ready), given.workers)
            bound_s = between(*reached, BOUND_SHARES[bound])
            console.print(f"\n[bold]{name}[/]: s99 answers within {bound_s:.3f} s")
            found = measure_point(ready, loads[task], bound_s, given, name)
            rows += [{"point": name, "bound_s": bound_s, **row} for row in found]
            (given.out / "runs.json").write_text(json.dumps(rows, indent=1))
            console.print(_table(found))
    report(rows, console)


def kv_budget(ready: Profiled) -> int:
    """KV tokens that fit."""
    budget = MemoryBudget(device_bytes=KV_BUDGET_BYTES, reserve_bytes=0)
    return budget.kv_tokens(
        weight_bytes=ready.spec.weight_bytes(DTYPE),
        kv_bytes_per_token=ready.spec.kv_bytes_per_token(DTYPE),
    )


def measure_point(
    ready: Profiled, load: Workload, bound_s: float, given: argparse.Namespace, name: str
) -> list[dict]:
    """Every candidate of one workload and bound, measured in turn."""
    candidates = list(propose(ready, load, bound_s, given.workers))
    served = Served(
        workers=ready.workers,
        model_path=ready.folder,
        dtype=DTYPE,
        kv_tokens=kv_budget(ready),
        vocab=ready.spec.vocab,
        context=ready.spec.context,
    )
    # longer than the longest answer of any feasible schedule takes: the pool is stationary
    warm_up_s = 1.5 * bound_s * load.output.max / load.s99 + 0.5
    seconds = max(given.seconds, 2.5 * bound_s)  # two batches that decode to the longest answer
    until = Until(probes=0, warm_up_s=warm_up_s, at_least_s=seconds, at_most_s=seconds)
    runs: dict[int, list[Measured]] = {index: [] for index in range(len(candidates))}
    for turn, (index, candidate) in itertools.product(
        range(given.passes), list(enumerate(candidates))
    ):
        log = given.out / f"{name}-{index}-{turn}.jsonl"
        steps = run(served, candidate.schedule, load, until, log=log, seed=turn)
        runs[index].append(
            measure(
                steps,
                candidate.schedule,
                load,
                bound_s=bound_s,
                kernel_s=ready.table.kernel_s,
                warm_up_s=warm_up_s,
            )
        )
    return [_row(candidate, runs[index], bound_s) for index, candidate in enumerate(candidates)]


def propose(
    ready: Profiled, load: Workload, bound_s: float, num_workers: int
) -> Iterator[Candidate]:
    """The candidates of every policy under the bound."""
    capacity = kv_budget(ready)
    names = strategies(num_workers)
    choice = _plan(ready, load, bound_s, names, num_workers).schedule
    promise = Promise.full(length=load.s99, error=ready.table.error_p95)
    for name in names:
        for space in spaces(name, ready.table, load, promise, capacity, num_workers):
            best = search(space, bound_s).best
            if best is None:
                continue
            points = {best.point} | _neighbours(space, best.point, bound_s)
            for point in sorted(points):
                schedule: Schedule = space.schedule(point)
                predicted = simulate(schedule, ready.table, load).tokens_per_s
                yield Candidate(
                    policy=name,
                    schedule=schedule,
                    predicted=predicted,
                    is_choice=schedule == choice,
                )
    pool = _plan(ready, load, bound_s, ["CRA"], num_workers).schedule.model_dump()["pool"]
    sizes = sorted({max(1, round(pool * factor)) for factor in (0.7, 0.85, 1.0, 1.3)})
    for size in sizes:
        yield Candidate(policy="ORCA", schedule=OrcaSchedule(pool=size))
    for size in sizes:
        for early in (True, False):
            name = "static, early termination" if early else "static"
            yield Candidate(
                policy=name, schedule=StaticSchedule(batch=size, early_termination=early)
            )


def _plan(
    ready: Profiled, load: Workload, bound_s: float, names: Sequence[str], num_workers: int
) -> Plan:
    return make_plan(
        table=ready.table,
        model=ready.spec,
        workload=load,
        bound=Bound(seconds=bound_s),
        memory=MemoryBudget(device_bytes=KV_BUDGET_BYTES, reserve_bytes=0),
        strategies=names,
        workers=num_workers,
    )


def _neighbours(space: Space, best: tuple[int, ...], bound_s: float) -> set[tuple[int, int]]:
    """Points beside the planner's: other second knobs, the first as large as the bound allows; the first a bit off."""
    x, y = best
    whole = space.whole
    found: set[tuple[int, int]] = set()
    for other in {max(whole.y1, y // 2), max(whole.y1, math.ceil(y / 1.4)), min(whole.y2, 2 * y)}:
        fitting = [
            first
            for first in range(whole.x1, whole.x2 + 1)
            if space.blocked((first, other)) is None and space.promised_s((first, other)) <= bound_s
        ]
        if fitting:
            found.add((max(fitting), other))
    for factor in (0.7, 1.15):
        first = min(max(round(x * factor), whole.x1), whole.x2)
        if space.blocked((first, y)) is None:
            found.add((first, y))
    return found


def _row(candidate: Candidate, runs: Sequence[Measured], bound_s: float) -> dict:
    tokens = statistics.mean(each.normalised.tokens_per_s for each in runs)
    p99 = statistics.mean(each.normalised.s99_p99_s for each in runs)
    return {
        "policy": candidate.policy,
        "schedule": candidate.schedule.model_dump(),
        "is_choice": candidate.is_choice,
        "predicted": candidate.predicted,
        "tokens_per_s": tokens,
        "s99_p99_s": p99,
        "num_s99": sum(each.num_s99 for each in runs),
        "keeps": p99 <= bound_s,
        "spread": max(each.normalised.tokens_per_s for each in runs)
        / min(each.normalised.tokens_per_s for each in runs)
        - 1,
        "runs": [dataclasses.asdict(each) for each in runs],
    }


def best_by_policy(rows: Sequence[dict]) -> dict[str, dict]:
    """Each policy's candidate with the most throughput among those that keep the bound."""
    best: dict[str, dict] = {}
    for row in rows:
        known = best.get(row["policy"])
        if row["keeps"] and (known is None or row["tokens_per_s"] > known["tokens_per_s"]):
            best[row["policy"]] = row
    return best


def _table(rows: Sequence[dict]) -> Table:
    best = best_by_policy(rows)
    top = max((row["tokens_per_s"] for row in best.values()), default=float("nan"))
    table = Table(
        "policy", "knobs", "predicted tok/s", "tok/s", "of the best", "p99 of s99 (s)", ""
    )
    for row in rows:
        is_best = best.get(row["policy"]) is row
        if not (is_best or row["is_choice"]):
            continue
        table.add_row(
            row["policy"],
            knobs(row["schedule"]),
            "" if row["predicted"] is None else f"{row['predicted']:.0f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['tokens_per_s'] / top:.3f}",
            f"{row['s99_p99_s']:.3f}",
            " ".join(
                ["planner's choice"] * row["is_choice"] + ["breaks the bound"] * (not row["keeps"])
            ),
        )
    for policy in {row["policy"] for row in rows} - set(best):
        table.add_row(policy, "none keeps the bound", "", "", "", "", "")
    return table


def report(rows: Sequence[dict], console: Console) -> None:
    """The planner's choice against the best measured, and the order of predictions."""
    shares = []
    for point in dict.fromkeys(row["point"] for row in rows):
        here = [row for row in rows if row["point"] == point]
        top = max(row["tokens_per_s"] for row in best_by_policy(here).values())
        [choice] = [row for row in here if row["is_choice"]]
        shares.append(choice["tokens_per_s"] / top)
        console.print(
            f"{point}: the planner's choice reaches {shares[-1]:.3f} of the best measured"
            + ("" if choice["keeps"] else " (its measured p99 breaks the bound)")
        )
    planned = [row for row in rows if row["predicted"] is not None]
    tau, pairs = kendall_tau_b(
        [(row["point"], row["predicted"], row["tokens_per_s"]) for row in planned]
    )
    console.print(
        f"worst {min(shares):.3f}; Kendall tau-b of predicted against measured within points: {tau:.3f} "
        f"over {pairs} pairs that differ by at least {TIE:.0%}"
    )


def kendall_tau_b(points: Sequence[tuple[str, float, float]]) -> tuple[float, int]:
    """(tau-b, pairs) over pairs of the same point whose measurements differ by at least `TIE`.

    Measured ties are left out, predicted ties count as in tau-b.
    """
    agree = differ = tied = 0
    for (p, a, x), (q, b, y) in itertools.combinations(points, 2):
        if p != q or abs(x - y) < TIE * max(x, y):
            continue
        sign = (a - b) * (x - y)
        agree, differ, tied = agree + (sign > 0), differ + (sign < 0), tied + (sign == 0)
    pairs = agree + differ + tied
    if pairs == 0:
        return float("nan"), 0
    return (agree - differ) / math.sqrt((agree + differ) * pairs), pairs


if __name__ == "__main__":
    main()
