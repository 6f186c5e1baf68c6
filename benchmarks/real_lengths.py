"""Real lengths: which law fits best, the gain over static batches, and what a wrong law costs in broken bounds.

    python benchmarks/real_lengths.py FILE.csv [FILE.csv ...] [--model opt-13b] [--device a40] [--gpus 4] [--json OUT]

A file has the header input_tokens,output_tokens and a request a line. As in the paper a tenth of the requests, drawn at
random, is to estimate from, the rest to test with. From each law of the tenth a plan is made for FasterTransformer's
30 and 70 % bounds on the rest (99th percentiles, so that a bound kept is one that 99 % of such answers keep) and played
query by query on the rest: how many answers between its 98th and 99th percentile length, and of all, come too late.
In the play KV always fits; how much of it the schedule needs under the rest's lengths stands beside: above 1 it would
not. Requests that do not fit in the model's context are left out and counted: it would refuse them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from exegpt_planner.errors import ExeGPTError
from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Until
from exegpt_planner.lengths import LengthLaw
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.models import model_for
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.workload import Workload, read_trace
from length_fits import FITS, ks_distance
from paper_points import Scenario, scenario

Ints = NDArray[np.int64]

SHARE = 0.1  # of the requests, to estimate from
SEED = 20240427
BOUNDS = {"30 %": 1, "70 %": 2}  # of FasterTransformer's
QUERIES, WARM_UP = 6000, 1500  # played
JOINT, TRUTH = "the tenth's pairs", "the rest's pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A file's requests, (n, 2) each."""

    name: str
    estimate: Ints
    test: Ints
    dropped: int  # longer than the model's context


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How far a law of the tenth is from the rest."""

    name: str  # of the set
    law: str
    inputs: float
    outputs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A plan from one law, played on the rest."""

    name: str  # of the set
    law: str
    part: str
    bound_s: float
    schedule: str
    queries_per_s: float  # of all units; 0: the law says that no schedule keeps the bound
    over_ft: float
    over_early: float
    late_long: (
        float  # share of the answers near the 99th percentile's length that come after the bound
    )
    late_all: float
    kv: float  # what the schedule holds ready for the rest's lengths, of what the devices have


def split(path: Path, context: int) -> Split:
    """A tenth and the rest, of what fits in the context."""
    pairs = read_trace(path)
    fits = pairs.sum(axis=1) <= context
    kept = np.random.default_rng(SEED).permutation(pairs[fits])
    tenth = max(1, int(SHARE * len(kept)))
    return Split(
        name=path.stem,
        estimate=kept[:tenth],
        test=kept[tenth:],
        dropped=int((~fits).sum()),
    )


def laws(some: Split) -> Iterator[tuple[str, LengthLaw, LengthLaw]]:
    """(name, of inputs, of outputs), fitted to the tenth."""
    inputs, outputs = some.estimate.T
    for name, fit in FITS.items():
        yield name, fit(inputs, int(inputs.max())), fit(outputs, int(outputs.max()))


def distances(some: Split) -> Iterator[Fit]:
    """Of every law."""
    for law, inputs, outputs in laws(some):
        yield Fit(
            name=some.name,
            law=law,
            inputs=ks_distance(inputs, some.test[:, 0]),
            outputs=ks_distance(outputs, some.test[:, 1]),
        )


def workloads(some: Split) -> Iterator[tuple[str, Workload]]:
    """By law: inputs and outputs fitted apart and taken as independent, and the pairs themselves."""
    yield TRUTH, Workload.from_trace(some.test)
    yield JOINT, Workload.from_trace(some.estimate)
    for name, inputs, outputs in laws(some):
        yield name, Workload.independent(inputs, outputs, source=name)


def played(
    where: Scenario, schedule: Schedule, bound_s: float, *, queries: int
) -> tuple[float, float, float]:
    """(queries/s of all units, share of long answers beyond the bound, of all)."""
    backlog = Backlog.of(where.workload, np.random.default_rng(SEED))
    until = Until(queries=queries, warm_up=queries // 4, steps=1)
    found = run(schedule, where.table, backlog, until)
    outputs = np.array([each.output for each in found.queries])
    latencies_s = np.array([each.latency_s for each in found.queries])
    low, high = (where.workload.output.quantile(q) for q in (0.98, 0.99))
    is_long = (low <= outputs) & (outputs <= high)
    units = 1 if isinstance(schedule, WaaSchedule) else schedule.units
    is_late = latencies_s > bound_s
    return units * found.queries_per_s, float(is_late[is_long].mean()), float(is_late.mean())


def kv_share(where: Scenario, plan: Plan) -> float:
    """KV that the schedule needs under the scenario's lengths, of what is there."""
    schedule, model = plan.schedule, model_for(plan.schedule, where.table, where.law)
    match schedule, model:
        case RraSchedule(), RraModel():
            need = model.kv_need(schedule.encode_batch, schedule.encode_interval)
        case CraSchedule(), CraModel():
            need = model.kv_need(schedule.pool, schedule.chunk_tokens)
        case WaaSchedule(), WaaModel():
            need = model.kv_need(schedule.encode_batch, schedule.pool)
        case _:
            raise AssertionError(schedule)
    return need / plan.kv_tokens_capacity


def rows(some: Split, where: Scenario, queries: int) -> Iterator[Played]:
    """Every law under both bounds; `where` is the scenario of the rest."""
    bounds_s = where.batches.bounds_s()
    for part, at in BOUNDS.items():
        bound_s = bounds_s[at]
        static = [where.batches.best(bound_s, early=early) for early in (False, True)]
        for law, workload in workloads(some):
            try:
                plan = replace(where, workload=workload).plan(bound_s, mode="p99")
            except ExeGPTError as error:
                print(f"{some.name}, {part}, {law}: {error}", flush=True)
                nothing = dict.fromkeys(
                    ("queries_per_s", "over_ft", "over_early", "late_long", "late_all", "kv"), 0.0
                )
                yield Played(
                    name=some.name, law=law, part=part, bound_s=bound_s, schedule="none", **nothing
                )
                continue
            rate, late_long, late_all = played(where, plan.schedule, bound_s, queries=queries)
            yield Played(
                name=some.name,
                law=law,
                part=part,
                bound_s=bound_s,
                schedule=plan.schedule.strategy,
                queries_per_s=rate,
                over_ft=rate / static[0] if static[0] else math.nan,
                over_early=rate / static[1] if static[1] else math.nan,
                late_long=late_long,
                late_all=late_all,
                kv=kv_share(where, plan),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--device", default="a40")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--queries", type=int, default=QUERIES, help="to play after the warm-up")
    parser.add_argument("--fits-only", action="store_true", help="neither plans nor plays")
    parser.add_argument("--json", type=Path, help="all figures, to this file")
    options = parser.parse_args()
    console = Console(width=150)
    context = scenario(
        options.model, options.device, options.gpus, Workload.prior(2048)
    ).model.context
    fits: list[Fit] = []
    done: list[Played] = []
    for path in options.files:
        some = split(path, context)
        total = len(some.estimate) + len(some.test)
        print(
            f"{some.name}: {total:,} requests; {some.dropped:,} left out, longer than the context of "
            f"{options.model}, {context:,} tokens",
            flush=True,
        )
        fits += distances(some)
        if not options.fits_only:
            where = scenario(
                options.model, options.device, options.gpus, Workload.from_trace(some.test)
            )
            where = replace(where, task=some.name)
            for row in rows(some, where, options.queries):
                done.append(row)
                print(_line(row), flush=True)
    console.print(_fits(fits))
    if done:
        console.print(_played(done))
    if options.json is not None:
        options.json.write_text(
            json.dumps(
                {"fits": list(map(asdict, fits)), "played": list(map(asdict, done))}, indent=1
            )
        )


def _fits(fits: Sequence[Fit]) -> Table:
    table = Table(title="KS distance from the rest: inputs, outputs; * the least of the outputs'")
    names = list(dict.fromkeys(each.name for each in fits))
    for column in ("law", *names):
        table.add_column(column)
    least = {name: min(each.outputs for each in fits if each.name == name) for name in names}
    for law in FITS:
        of_law = [each for each in fits if each.law == law]
        cells = [
            f"{each.inputs:.3f}, {each.outputs:.3f}{'*' * (each.outputs == least[each.name])}"
            for each in of_law
        ]
        table.add_row(law, *cells)
    return table


def _played(done: Sequence[Played]) -> Table:
    table = Table(title="planned from a law of a tenth, played on the rest")
    for column in (
        "set",
        "bound",
        "law",
        "schedule",
        "queries/s",
        "of FT",
        "of FT-ET",
        "long answers late",
        "all late",
        "KV",
    ):
        table.add_column(column)
    for row in done:
        table.add_row(
            row.name,
            f"{row.part}, {row.bound_s:.3g} s",
            row.law,
            row.schedule,
            f"{row.queries_per_s:.3g}",
            f"{row.over_ft:.2f}",
            f"{row.over_early:.2f}",
            f"{row.late_long:.1%}",
            f"{row.late_all:.2%}",
            f"{row.kv:.2f}",
        )
    return table


def _line(row: Played) -> str:
    return (
        f"{row.name}, {row.part} ({row.bound_s:.3g} s), {row.law}: {row.schedule} {row.queries_per_s:.3g} "
        f"queries/s, {row.over_ft:.2f} of FT, late {row.late_long:.1%} of long, {row.late_all:.2%} of all, "
        f"KV {row.kv:.2f}"
    )


if __name__ == "__main__":
    main()
