"""The paper's evaluation on tables from published figures: what each policy reaches under each bound.

    python benchmarks/paper_scenarios.py [--quick] [--calibration paper] [--padding] [--json FILE]
    python benchmarks/paper_scenarios.py --sensitivity [--quick]

FT and FT-ET are static batches without and with early termination, every batch tried, ORCA and chunked refill each
with its best pool, all on FasterTransformer's fixed shape and again on the best of all; RRA, CRA and WAA on the best of
all shapes that are planned, WAA-C and WAA-M on WAA's layout at the paper's splits. Bounds are parts of FT's latencies,
as in the paper, and on the mean latency. `--sensitivity` says how the gains move with what had to be assumed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paper_points import Scenario, quick, scenarios
from paper_rows import FIXED, FREE, NAMED, Row, Rows
from paper_summary import (
    beside_the_paper,
    by_task,
    choice,
    does_waa_fit,
    fixed,
    gain,
    over_baselines,
    papers,
    unmet,
)

QUICK_PARTS = ("30 %", "none")
ASSUMED = (("datasheet", False), ("paper", False), ("datasheet", True), ("paper", True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two bounds of each, a task of each model, baselines on the fixed shape alone",
    )
    parser.add_argument("--calibration", default="datasheet", choices=("datasheet", "paper"))
    parser.add_argument(
        "--padding", action="store_true", help="FT encodes every prompt as long as the longest"
    )
    parser.add_argument(
        "--sensitivity", action="store_true", help="both calibrations, without and with padding"
    )
    parser.add_argument("--json", type=Path, help="all figures, to this file")
    options = parser.parse_args()
    console = Console(width=170, soft_wrap=True)
    if options.sensitivity:
        console.print(sensitivity(is_quick=options.quick))
        return
    rows = []
    for row in evaluated(options.calibration, is_padded=options.padding, is_quick=options.quick):
        rows.append(row)
        print(f"{row.name}, {row.part}: {row.choice} {row.chosen:.3g}", flush=True)
    console.print(throughputs(rows))
    for line in summary(rows):
        console.print(line, highlight=False)
    if options.json is not None:
        options.json.write_text(json.dumps([_record(row) for row in rows], indent=1))


def evaluated(calibrated: str, *, is_padded: bool, is_quick: bool) -> Iterator[Row]:
    """Every row."""
    some: Iterator[Scenario] = scenarios(calibrated, is_padded=is_padded)
    for scenario in quick(some) if is_quick else some:
        rows = Rows(scenario, is_free=not is_quick)
        yield from rows.each(QUICK_PARTS) if is_quick else rows.each()


def throughputs(rows: Sequence[Row]) -> Table:
    """Queries/s of every policy."""
    table = Table(title="queries/s; 0 keeps no bound; \\[fixed]: on the paper's shape")
    for column in ("scenario", "bound", "s"):
        table.add_column(column)
    baselines = [name for name in FIXED if any(name in row.fixed for row in rows)]
    policies = [name for name in FREE if any(name in row.free for row in rows)]
    for name in baselines:
        table.add_column(f"{name} \\[fixed]", justify="right")
    for name in (*policies, "choice", "of FT", "of FT-ET", "search, s"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [_number(row.fixed.get(name)) for name in baselines]
        cells += [_with_split(row, name) for name in policies]
        over = [gain([row], choice, fixed(name)) for name in ("FT", "FT-ET")]
        cells += [row.choice, *("-" if each is None else f"{each.mean:.2f}" for each in over)]
        table.add_row(row.name, row.part, f"{row.bound_s:.3g}", *cells, f"{row.search_s:.2f}")
    return table


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """What the rows say, beside what the paper says."""
    yield "\nBeside the paper:"
    for what, said, own, with_cra in beside_the_paper(rows):
        yield f"  {what}: paper {said}; RRA and WAA {own}; with CRA {with_cra}"
    yield "\nThe choice over each baseline, on the paper's shape | on the baseline's best shape:"
    for name, on_fixed, on_free in over_baselines(rows):
        yield f"  {name}: {on_fixed} | {on_free}"
    yield "\nPoints at which a policy keeps no bound:"
    for name, points in unmet(rows).items():
        yield f"  {name}: {len(points)}: {', '.join(points)}"
    yield "\nWAA before RRA (points of those where WAA is planned; the paper: S and C1 yes, T no):"
    yield "  " + ", ".join(f"{task} {ahead} of {of}" for task, (ahead, of) in by_task(rows).items())
    yield "\nWAA at 175B and 341B (the paper: fails for want of memory):"
    for cluster, said in does_waa_fit(rows).items():
        yield f"  {cluster}: {said}"


def sensitivity(*, is_quick: bool) -> Table:
    """How the mean gains over FT move with the calibration and with padded inputs."""
    table = Table(title="mean gains over FT")
    for column in ("calibration", "FT's inputs", "RRA and WAA", "with CRA", "no bound", "most"):
        table.add_column(column)
    for calibrated, is_padded in ASSUMED:
        rows = list(evaluated(calibrated, is_padded=is_padded, is_quick=is_quick))
        unbound = [row for row in rows if math.isinf(row.bound_s)]
        ft = fixed("FT")
        found = [gain(rows, papers, ft), gain(rows, choice, ft), gain(unbound, choice, ft)]
        cells = ["-" if each is None else f"{each.mean:.2f}" for each in found]
        most = "-" if found[1] is None else f"{found[1].most:.2f} ({found[1].most_at})"
        table.add_row(calibrated, "padded" if is_padded else "packed", *cells, most)
    return table


def _with_split(row: Row, name: str) -> str:
    value = _number(row.free.get(name))
    if name in NAMED and name in row.splits:
        encoders, decoders = row.splits[name]
        value += f" ({encoders}+{decoders})"
    return value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _record(row: Row) -> dict[str, object]:
    """JSON knows no infinity: no bound is null."""
    found = asdict(row) | {"choice": row.choice}
    return found | {"bound_s": None if math.isinf(row.bound_s) else row.bound_s}


if __name__ == "__main__":
    main()
