"""What the comparison found: tables for eyes, and every run as JSON.

Ratios are to exegpt measured the same way: as planned, where an answer's time counts from its start, and in the closed
loop, where it counts from sending. *Calibrated*: tokens/s x (a run's calibration kernel / the median of all runs), what
the machine would have done at its usual speed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engines_load import Run
from engines_own import Question
from engines_peers import PEERS
from engines_tuning import Clock, Level, Tuned, level
from exegpt_cli.bench.stats import clopper_pearson
from exegpt_planner.plan import Plan

OWN = "exegpt"
MOST_WHY = 120  # characters
THROUGHPUT = (
    "engine", "computes in", "batching", "in flight", "runs", "tokens/s", "calibrated", "of exegpt", "why not",
)  # fmt: skip
BOUNDED = ("engine", "in flight", "s99 answers", "their p99, s", "tokens/s", "of exegpt")
PLANS = ("bound, s", "plan", "tokens/s, predicted", "measured", "s99 answers that kept the bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """exegpt's plan for a bound, and a run of it under a backlog."""

    bound: str
    bound_s: float
    knobs: str
    plan: Plan
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that was found."""

    model: str
    task: str
    question: Question
    tuned: dict[str, Tuned]
    planned: list[Planned]

    def runs(self) -> Iterator[Run]:
        """Of every engine."""
        yield from (each.run for each in self.planned)
        for tuned in self.tuned.values():
            yield from tuned.runs

    def as_planned(self, bound: str) -> tuple[Level, str] | None:
        """exegpt's runs under the plan for `bound`, together, and the plan."""
        found = [each for each in self.planned if each.bound == bound]
        if not found:
            return None
        return level([each.run for each in found]), found[0].knobs


def show(report: Report) -> None:
    """Prints the tables."""
    console = Console(width=150)
    console.print(_throughput(report))
    for bound, bound_s in report.question.bounds_s.items():
        console.print(_bounded(report, bound, bound_s, "start"))
        console.print(_bounded(report, bound, bound_s, "sending"))
    console.print(_promise(report))
    kernels = [run.kernel_s for run in report.runs()]
    if kernels:
        console.print(
            f"Calibration kernel, {len(kernels)} runs: median {1e3 * statistics.median(kernels):.2f} ms, "
            f"{1e3 * min(kernels):.2f} to {1e3 * max(kernels):.2f}; most of the hypervisor's time stolen in a run "
            f"{max(run.stolen for run in report.runs()):.0%}"
        )


def _throughput(report: Report) -> Table:
    table = Table(title="Most tokens/s")
    for column in THROUGHPUT:
        table.add_column(column, overflow="fold")
    own = report.as_planned("unbounded")
    usual_s = statistics.median([run.kernel_s for run in report.runs()] or [1.0])
    if own is not None:
        found, knobs = own
        runs = [each.run for each in report.planned if each.bound == "unbounded"]
        table.add_row(
            "exegpt, as planned", "bf16", knobs, f"backlog, {found.in_flight}", str(found.num_runs),
            f"{found.tokens_per_s:.0f}", f"{_calibrated(runs, usual_s):.0f}", "1.00", "",
        )  # fmt: skip
    for name, tuned in report.tuned.items():
        best = tuned.best()
        title, dtype, batching = _words(name)
        if best is None:
            table.add_row(title, dtype, batching, "-", "0", "-", "-", "-", _why(tuned))
            continue
        runs = [run for run in tuned.runs if run.in_flight == best.in_flight]
        table.add_row(
            title, dtype, batching, str(best.in_flight), str(best.num_runs), f"{best.tokens_per_s:.0f}",
            f"{_calibrated(runs, usual_s):.0f}", _ratio(best, own[0] if own else None), _why(tuned),
        )  # fmt: skip
    return table


def _bounded(report: Report, bound: str, bound_s: float, clock: Clock) -> Table:
    counted = "from its start" if clock == "start" else "from sending, closed loop"
    table = Table(
        title=f"Most tokens/s whose answers of {report.question.law.s99} tokens take {bound_s:.2f} s at most "
        f"({bound}; p99, {counted})"
    )
    for column in BOUNDED:
        table.add_column(column)
    own: Level | None
    if clock == "start":
        planned = report.as_planned(bound)
        own = planned[0] if planned else None
        if planned is not None:
            found, knobs = planned
            over = "" if found.keeps(clock, bound_s) else " (over)"
            table.add_row(
                "exegpt, as planned", knobs, str(found.num_s99), f"{found.p99_s.get(clock, 0):.2f}{over}",
                f"{found.tokens_per_s:.0f}", "1.00",
            )  # fmt: skip
    else:
        own = report.tuned[OWN].best_within(clock, bound_s)
    for name, tuned in report.tuned.items():
        best = tuned.best_within(clock, bound_s)
        if not tuned.runs:
            continue
        title, _, _ = _words(name)
        if best is None:
            least = min(tuned.levels(), key=lambda each: each.p99_s.get(clock, float("inf")))
            shown = f"{least.p99_s[clock]:.2f} at best" if clock in least.p99_s else "-"
            table.add_row(
                title, str(least.in_flight), str(least.num_s99), shown, "none keeps it", "-"
            )
            continue
        star = "" if clock == "sending" or _tells(name) else " *"
        table.add_row(
            title, str(best.in_flight), str(best.num_s99), f"{best.p99_s[clock]:.2f}{star}",
            f"{best.tokens_per_s:.0f}", _ratio(best, own),
        )  # fmt: skip
    if clock == "start":
        table.caption = "* the server doesn't say when an answer's encode began: from sending"
    return table


def _promise(report: Report) -> Table:
    table = Table(title="exegpt's plans")
    for column in PLANS:
        table.add_column(column)
    for each in report.planned:
        found = each.run.from_start_s
        kept = sum(latency_s <= each.bound_s for latency_s in found)
        low, high = clopper_pearson(kept, len(found)) if found else (0.0, 1.0)
        table.add_row(
            f"{each.bound} {each.bound_s:.2f}", each.knobs, f"{each.plan.prediction.tokens_per_s:.0f}",
            f"{each.run.tokens_per_s:.0f}", f"{kept} of {len(found)} ({low:.0%} .. {high:.0%})",
        )  # fmt: skip
    return table


def _why(tuned: Tuned) -> str:
    """The last line of what went wrong; all of it is in the JSON."""
    return (tuned.problem or "").strip().splitlines()[-1][:MOST_WHY] if tuned.problem else ""


def _words(name: str) -> tuple[str, str, str]:
    if name == OWN:
        return "exegpt, closed loop", "bf16", "continuous (CRA)"
    peer = PEERS[name]
    return peer.title, peer.dtype, peer.batching


def _tells(name: str) -> bool:
    return name == OWN or PEERS[name].tells_start


def _calibrated(runs: list[Run], usual_s: float) -> float:
    return statistics.mean(run.tokens_per_s * run.kernel_s / usual_s for run in runs)


def _ratio(found: Level, own: Level | None) -> str:
    return "-" if own is None else f"{found.tokens_per_s / own.tokens_per_s:.2f}"


def write(report: Report, path: Path) -> None:
    """Every run, and what was asked, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    question = report.question
    found = {
        "model": report.model,
        "task": report.task,
        "s99": question.law.s99,
        "bounds_s": question.bounds_s,
        "unbounded_s": question.unbounded_s,
        "engines": {
            name: {
                "title": _words(name)[0],
                "dtype": _words(name)[1],
                "batching": _words(name)[2],
                "problem": tuned.problem,
                "levels": [asdict(each) for each in tuned.levels()],
                "runs": [asdict(run) for run in tuned.runs],
            }
            for name, tuned in report.tuned.items()
        },
        "planned": [
            {
                "bound": each.bound,
                "bound_s": each.bound_s,
                "schedule": each.plan.schedule.model_dump(),
                "predicted": each.plan.prediction.model_dump(),
                "run": asdict(each.run),
            }
            for each in report.planned
        ],
    }
    path.write_text(json.dumps(found, indent=1))
