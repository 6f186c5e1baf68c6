"""How much of the declared space a search looks at, and how long it takes, on the paper's scenarios.

    python benchmarks/search_effort.py [--strategy RRA] [--quick]

The declared space: every shape, B_E or B_D up to what memory holds, N_D up to the longest answer. Times are of one
core, with the table loaded; run it alone.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import ExeGPTError
from exegpt_planner.layout import Typical
from exegpt_planner.plan import KNOWN
from exegpt_planner.shapes import shapes
from paper_points import Scenario, scenarios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", action="append", choices=KNOWN, help="default: all")
    parser.add_argument("--quick", action="store_true", help="the tightest bound and none")
    options = parser.parse_args()
    strategies = tuple(options.strategy or KNOWN)
    table = Table(title=f"one search, {', '.join(strategies)}")
    for column in (
        "scenario",
        "bound, s",
        "shapes",
        "RRA schedules",
        "spaces opened",
        "evaluated",
        "leaves",
        "s",
    ):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    seconds = []
    for scenario in scenarios():
        bounds = scenario.batches.bounds_s()
        for bound_s in (bounds[0], bounds[-1]) if options.quick else bounds:
            begin_s = time.perf_counter()
            try:
                plan = scenario.plan(bound_s, strategies)
            except ExeGPTError:
                continue
            seconds.append(time.perf_counter() - begin_s)
            spaces = plan.certificate.spaces
            row = (
                plan.certificate.num_shapes,
                declared(scenario),
                len(spaces),
                sum(space.num_evaluations for space in spaces),
                sum(len(space.leaves) for space in spaces),
            )
            cells = [f"{each:,}" for each in row]
            table.add_row(scenario.name, f"{bound_s:.3g}", *cells, f"{seconds[-1]:.2f}")
    console = Console(width=130)
    console.print(table)
    console.print(
        f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of {len(seconds)} searches"
    )


def declared(scenario: Scenario) -> int:
    """RRA's schedules: of every shape, each B_E that memory may hold by each N_D."""
    law = CompletionLaw(scenario.workload)
    typical = Typical.of(law, scenario.table)
    found = shapes(scenario.table, scenario.model, scenario.memory, typical, scenario.devices)
    most = (shape.room.kv_tokens / scenario.workload.input.mean for shape in found)
    return sum(int(each) * law.longest for each in most)


if __name__ == "__main__":
    main()
