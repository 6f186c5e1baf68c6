"""How much of the declared space a search looks at, and how long it takes, on the paper's scenarios.

    python benchmarks/search_effort.py [--strategy RRA] [--quick] [--json FILE]

A slice is a strategy's two knobs on one shape (WAA: at one split). Declared are all its schedules: B_E or B_D up to
what memory may hold, N_D up to the longest answer, C of its list. Open are those that exhaustive search would evaluate,
as they fit in memory and profile. Evaluated one by one are the points that the search looked at; blocks are what it
bounded as a whole. For WAA and CRA such bounds look at arrays of points at once, RRA's are closed forms. Times are
CPU seconds of one core, with the table loaded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from exegpt_planner.errors import ExeGPTError
from exegpt_planner.plan import KNOWN
from exegpt_planner.proof import SpaceCertificate
from exegpt_planner.search import Block
from paper_points import Scenario, scenarios

PAPER = "RRA 3 s to 2 min, WAA 1 to 5 min; exhaustive search 5 h to a day"
GOAL = 20  # times fewer evaluations than exhaustive search, in a slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """One search."""

    scenario: str
    bound_s: float
    strategy: str
    shapes: int
    declared: int  # schedules of RRA on all shapes; of others on the slices that were opened
    slices: int  # opened
    open: int  # of their schedules
    evaluated: int
    blocks: int
    ratios: tuple[float, ...]  # open over evaluated, by slice
    seconds: float


def efforts(scenario: Scenario, bound_s: float, strategy: str) -> Iterator[Effort]:
    """One, or none where nothing keeps the bound or the strategy cannot be planned."""
    begin_s = time.process_time()
    try:
        plan = scenario.plan(bound_s, (strategy,))
    except ExeGPTError:
        return
    seconds = time.process_time() - begin_s
    spaces = plan.certificate.spaces
    opens = [num_open(space) for space in spaces]
    yield Effort(
        scenario=scenario.name,
        bound_s=bound_s,
        strategy=strategy,
        shapes=plan.certificate.num_shapes,
        declared=declared(scenario) if strategy == "RRA" else sum(s.num_schedules for s in spaces),
        slices=len(spaces),
        open=sum(opens),
        evaluated=sum(space.num_evaluations for space in spaces),
        blocks=sum(len(space.leaves) for space in spaces),
        ratios=tuple(
            number / space.num_evaluations
            for number, space in zip(opens, spaces, strict=True)
            if space.num_evaluations
        ),
        seconds=seconds,
    )


def num_open(space: SpaceCertificate) -> int:
    """Schedules of a slice but those in blocks in which none fits."""
    closed = {"memory", "coverage", "load", "shape"}
    blocked = (Block(*leaf.block) for leaf in space.leaves if leaf.reason in closed)
    return space.num_schedules - sum(block.num_points for block in blocked)


def declared(scenario: Scenario) -> int:
    """RRA's schedules: of every shape, each B_E that memory may hold by each N_D."""
    most = (shape.room.kv_tokens / scenario.workload.input.mean for shape in scenario.shapes)
    return sum(int(each) * scenario.law.longest for each in most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", action="append", choices=KNOWN, help="default: all")
    parser.add_argument("--quick", action="store_true", help="the tightest bound and none")
    parser.add_argument("--json", type=Path, help="all figures, to this file")
    options = parser.parse_args()
    done: list[Effort] = []
    for scenario in scenarios():
        bounds = scenario.batches.bounds_s()
        for bound_s in (bounds[0], bounds[-1]) if options.quick else bounds:
            for strategy in options.strategy or KNOWN:
                done += efforts(scenario, bound_s, strategy)
    console = Console(width=150)
    console.print(_table(done))
    for strategy in options.strategy or KNOWN:
        console.print(_summary(strategy, [each for each in done if each.strategy == strategy]))
    console.print(f"the paper: {PAPER}")
    if options.json is not None:
        records = [asdict(each) | {"bound_s": str(each.bound_s)} for each in done]
        options.json.write_text(json.dumps(records, indent=1))


def _table(done: Sequence[Effort]) -> Table:
    table = Table(title="one search, and what exhaustive search would evaluate")
    for column in (
        "scenario",
        "bound, s",
        "strategy",
        "shapes",
        "declared",
        "slices opened",
        "open in them",
        "evaluated",
        "blocks",
        "fewer, least of a slice",
        "s",
    ):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for each in done:
        counts = (each.declared, each.slices, each.open, each.evaluated, each.blocks)
        table.add_row(
            each.scenario,
            f"{each.bound_s:.3g}",
            each.strategy,
            str(each.shapes),
            *(f"{count:,}" for count in counts),
            f"{min(each.ratios):,.0f}" if each.ratios else "-",
            f"{each.seconds:.2f}",
        )
    return table


def _summary(strategy: str, done: Sequence[Effort]) -> str:
    ratios = sorted(ratio for each in done for ratio in each.ratios)
    seconds = [each.seconds for each in done]
    if not ratios:
        return f"{strategy}: no search evaluated anything"
    kept = sum(ratio >= GOAL for ratio in ratios)
    return (
        f"{strategy}: {len(done)} searches, median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s; "
        f"slices with {GOAL} times fewer evaluations or better {kept} of {len(ratios)}, median "
        f"{statistics.median(ratios):,.0f}, least {ratios[0]:,.1f}"
    )


if __name__ == "__main__":
    main()
