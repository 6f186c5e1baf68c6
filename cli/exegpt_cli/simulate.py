"""`exegpt simulate`: the plan's schedule played query by query, beside the closed forms, and a timeline of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exegpt_cli.output import Format, answer, check_writable, print_table, progress, say
from exegpt_cli.plan import asked
from exegpt_cli.simulate_options import SimulateOptions
from exegpt_cli.summary import knobs
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.events import run
from exegpt_planner.events.drawing import svg
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Run, Until
from exegpt_planner.events.timeline import perfetto, timeline
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import Schedule, WaaSchedule
from exegpt_planner.workload import Workload

WARM_UP = 4  # one query in the warm-up for so many after it
FEW = 100  # answers of the bound's length, below which their 99th percentile is the largest of them or near it
SUFFIXES = (".svg", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure as predicted in closed form and as simulated."""

    name: str  # in a JSON answer; its unit is in it
    words: str
    predicted: float
    simulated: float | None  # None: nothing was seen of it


def run_simulate(options: SimulateOptions, *, output: Format) -> None:
    """Plan as `exegpt plan` does, simulate that schedule, and print both."""
    if options.timeline is not None:
        _check_timeline(options.timeline)
    found = asked(options)
    workload, table, plan = found.workload, found.table, found.plan
    with progress(f"Simulating {options.queries} queries"):
        seen = simulated(plan.schedule, table, workload, options)
    if options.timeline is not None:
        options.timeline.write_text(drawn(seen, plan, options.timeline), encoding="utf-8")
        say(f"The timeline is in {options.timeline}")
    shown = figures(plan, seen)
    num = len(seen.latencies_s(plan.length_tokens))
    beyond = seen.steps_beyond(table)
    if output is Format.JSON:
        answer(_json(plan, shown, num, beyond))
        return
    rows = [[each.words, _number(each.predicted), _number(each.simulated)] for each in shown]
    print_table(knobs(plan.schedule), ("", "predicted", "simulated"), rows)
    if num < FEW:
        say(f"The percentiles are of {num} answers: more --queries make them surer")
    if beyond:
        say(f"{beyond:.1%} of the steps lay beyond the profile, whose curves were prolonged there")


def simulated(
    schedule: Schedule, table: ProfileTable, workload: Workload, options: SimulateOptions
) -> Run:
    """The schedule under a backlog of the workload's queries; one unit of it."""
    rng = np.random.default_rng(options.seed)
    until = Until(queries=options.queries, warm_up=options.queries // WARM_UP)
    return run(schedule, table, Backlog.of(workload, rng), until)


def figures(plan: Plan, seen: Run) -> list[Figure]:
    """Predicted beside simulated."""
    expected, length = plan.prediction, plan.length_tokens
    units = 1 if isinstance(plan.schedule, WaaSchedule) else plan.schedule.units
    latencies_s = seen.latencies_s(length)
    mean_s = float(latencies_s.mean()) if len(latencies_s) else None
    p99_s = float(np.quantile(latencies_s, 0.99)) if len(latencies_s) else None
    of = f"of an answer of {length} tokens, s"
    rate = units * seen.queries_per_s
    return [
        Figure(
            name="queries_per_s",
            words="throughput, queries/s",
            predicted=expected.queries_per_s,
            simulated=rate,
        ),
        Figure(
            name="latency_mean_s",
            words=f"mean latency {of}",
            predicted=expected.latency_mean_s,
            simulated=mean_s,
        ),
        Figure(
            name="latency_p99_s",
            words=f"99th percentile {of}",
            predicted=expected.latency_p99_s,
            simulated=p99_s,
        ),
        Figure(
            name="pool_mean",
            words="queries in decode, mean",
            predicted=expected.pool_mean,
            simulated=seen.pool_mean,
        ),
        Figure(
            name="pool_sd",
            words="queries in decode, standard deviation",
            predicted=expected.pool_sd,
            simulated=seen.pool_sd,
        ),
    ]


def drawn(seen: Run, plan: Plan, path: Path) -> str:
    """The run's timeline in the form that the file's name asks for."""
    shown = timeline(seen)
    if path.suffix == ".json":
        return perfetto(shown)
    return svg(shown, knobs(plan.schedule))


def _check_timeline(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise InvalidSpec("--timeline", [f"{path}: the name must end in {' or '.join(SUFFIXES)}"])
    check_writable(path, "--timeline")


def _number(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.4g}"


def _json(plan: Plan, shown: list[Figure], num: int, beyond: float) -> str:
    return json.dumps(
        {
            "schedule": plan.schedule.model_dump(mode="json"),
            "length_tokens": plan.length_tokens,
            "predicted": {each.name: each.predicted for each in shown},
            "simulated": {each.name: each.simulated for each in shown},
            "answers_of_length": num,
            "steps_beyond_profile": beyond,
        },
        indent=2,
    )
