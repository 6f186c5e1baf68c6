"""What each stage does when: intervals of a run's first rounds after the warm-up, and their Perfetto trace.

Every stage's time is covered: where it serves no micro-batch it is idle (a pipeline's bubble, or a wait for a message).
A trace opens at https://ui.perfetto.dev and in chrome://tracing; there a process is an instance, a thread a stage, and
times are microseconds from the window's beginning.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from exegpt_planner.events.records import Kind, Run, Step

STEPS_SHOWN = 240  # that a reader can still tell apart on a page
NOTHING_S = 1e-12  # gaps below are rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One stage's doing, from `start_s` to `end_s` after the window's beginning."""

    instance: int
    stage: int
    kind: Kind | Literal["idle"]
    micro_batch: int | None  # None: idle
    start_s: float
    end_s: float
    queries: int  # in decode
    tokens: int  # encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Some rounds of a run."""

    instances: tuple[str, ...]
    intervals: tuple[Interval, ...]  # by instance, stage and start
    rounds: int
    duration_s: float

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(instance, stage) of every stage."""
        return sorted({(each.instance, each.stage) for each in self.intervals})


def timeline(run: Run, rounds: int | None = None) -> Timeline:
    """The first `rounds` after the warm-up; by default as many as hold STEPS_SHOWN steps, one at least."""
    if rounds is None:
        last = run.steps[min(STEPS_SHOWN, len(run.steps)) - 1].start_s
        rounds = max(1, int((run.rounds_s[1:] <= last).sum()))
    rounds = min(rounds, len(run.rounds_s) - 1)
    begin_s, end_s = float(run.rounds_s[0]), float(run.rounds_s[rounds])
    by_row: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for step in run.steps:
        for stage, (start_s, stop_s) in enumerate(step.spans):
            row = by_row[step.instance, stage]
            if stop_s > begin_s and start_s < end_s:
                window = max(start_s, begin_s) - begin_s, min(stop_s, end_s) - begin_s
                row.append(_busy(step, stage, window))
    filled = [_with_idle(row, by_row[row], end_s - begin_s) for row in sorted(by_row)]
    return Timeline(
        instances=run.instances,
        intervals=tuple(each for row in filled for each in row),
        rounds=rounds,
        duration_s=end_s - begin_s,
    )


def _busy(step: Step, stage: int, window: tuple[float, float]) -> Interval:
    shape = step.shape
    return Interval(
        instance=step.instance,
        stage=stage,
        kind=step.kind,
        micro_batch=step.micro_batch,
        start_s=window[0],
        end_s=window[1],
        queries=int(shape.decode_queries),
        tokens=int(shape.tokens - shape.decode_queries),
    )


def _with_idle(row: tuple[int, int], busy: list[Interval], duration_s: float) -> list[Interval]:
    """A stage's intervals in order, and the gaps between them."""
    filled, now_s = [], 0.0
    for each in [*busy, None]:
        start_s = duration_s if each is None else each.start_s
        if start_s - now_s > NOTHING_S:
            filled.append(_idle(row, now_s, start_s))
        if each is not None:
            filled.append(each)
            now_s = each.end_s
    return filled


def _idle(row: tuple[int, int], start_s: float, end_s: float) -> Interval:
    return Interval(
        instance=row[0],
        stage=row[1],
        kind="idle",
        micro_batch=None,
        start_s=start_s,
        end_s=end_s,
        queries=0,
        tokens=0,
    )


def perfetto(shown: Timeline) -> str:
    """The timeline as a trace in Chrome's JSON format; idle time is what is left blank."""
    events: list[dict[str, Any]] = []
    for index, name in enumerate(shown.instances):
        events.append({"ph": "M", "name": "process_name", "pid": index, "args": {"name": name}})
    for instance, stage in shown.rows:
        named = {"name": f"stage {stage + 1}"}
        events.append(
            {"ph": "M", "name": "thread_name", "pid": instance, "tid": stage, "args": named}
        )
    events += [_event(each) for each in shown.intervals if each.kind != "idle"]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _event(each: Interval) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": each.kind,
        "cat": each.kind,
        "pid": each.instance,
        "tid": each.stage,
        "ts": each.start_s * 1e6,
        "dur": (each.end_s - each.start_s) * 1e6,
        "args": {
            "micro_batch": each.micro_batch,
            "queries": each.queries,
            "tokens": each.tokens,
        },
    }
