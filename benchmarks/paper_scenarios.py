"""The paper's evaluation on tables from published figures: what each policy reaches under each bound.

    python benchmarks/paper_scenarios.py [--quick] [--calibration paper]

FT and FT-ET are static batches on FasterTransformer's fixed shape, without and with early termination, every batch
tried; RRA, CRA and WAA the best of all shapes that are planned. Bounds are parts of FT's latencies, as in the paper.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

from rich.console import Console
from rich.table import Table

from exegpt_planner.errors import ExeGPTError
from exegpt_planner.plan import Plan
from paper_points import Scenario, scenarios

POLICIES = ("RRA", "CRA", "WAA")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two bounds of each, a task of each model"
    )
    parser.add_argument("--calibration", default="datasheet", choices=("datasheet", "paper"))
    options = parser.parse_args()
    table = Table(title="queries/s; a dash keeps no bound")
    for column in (
        "scenario",
        "bound, s",
        "FT",
        "FT-ET",
        *POLICIES,
        "choice",
        "of FT",
        "of FT-ET",
        "search, s",
    ):
        table.add_column(column)
    gains: list[tuple[float, float, float]] = []
    seen: set[str] = set()
    for scenario in scenarios(options.calibration):
        first = " ".join(scenario.name.split()[:2])
        if options.quick and first in seen:
            continue
        seen.add(first)
        bounds = scenario.batches.bounds_s()
        for bound_s in bounds[1::2] if options.quick else bounds:
            row, gain = evaluated(scenario, bound_s)
            table.add_row(*row)
            if gain is not None:
                gains.append((bound_s, *gain))
    console = Console(width=150)
    console.print(table)
    for name, at in (("FT", 1), ("FT with early termination", 2)):
        for what, some in (
            ("every bound", gains),
            ("no bound", [g for g in gains if math.isinf(g[0])]),
        ):
            ratios = [gain[at] for gain in some if gain[at] > 0]
            if ratios:
                console.print(
                    f"over {name}, {what}: mean {statistics.mean(ratios):.2f}, geometric "
                    f"{statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}, "
                    f"{len(ratios)} points"
                )


def evaluated(scenario: Scenario, bound_s: float) -> tuple[list[str], tuple[float, float] | None]:
    """A row, and the choice's throughput over FT's and FT-ET's."""
    ft, early = (scenario.batches.best(bound_s, early=each) for each in (False, True))
    begin_s = time.perf_counter()
    plan = planned(scenario, bound_s)
    took_s = time.perf_counter() - begin_s
    by_policy = dict.fromkeys(POLICIES, 0.0)
    if plan is not None:
        for each in plan.alternatives:
            if each.prediction is not None:
                by_policy[each.strategy] = each.prediction.queries_per_s
    best = max(by_policy.values())
    name = next((policy for policy, value in by_policy.items() if value == best and best), "-")
    row = [scenario.name, f"{bound_s:.3g}", *(_number(x) for x in (ft, early, *by_policy.values()))]
    row += [name, *(f"{best / x:.2f}" if x and best else "-" for x in (ft, early)), f"{took_s:.2f}"]
    return row, ((best / ft if ft else 0.0), (best / early if early else 0.0)) if best else None


def planned(scenario: Scenario, bound_s: float) -> Plan | None:
    """The plan; where there is none, why not is printed."""
    try:
        return scenario.plan(bound_s)
    except ExeGPTError as error:
        print(f"{scenario.name}, {bound_s:.3g} s: {error}")
        return None


def _number(value: float) -> str:
    return f"{value:.3g}" if value else "-"


if __name__ == "__main__":
    main()
