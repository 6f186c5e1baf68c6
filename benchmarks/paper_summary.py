"""What the rows of the paper's evaluation say, beside what the paper says (arXiv 2404.07947, section 7)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paper_rows import FIXED, FREE, Row

LARGE = ("gpt3-101b", "gpt3-175b", "gpt3-341b")
SMALL_TASKS, LARGE_TASKS = ("S", "T", "C1"), ("G", "C1", "C2")  # Figures 6 and 8

Value = Callable[[Row], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One policy's queries/s over another's at the points where both keep the bound."""

    mean: float
    geometric: float
    least: float
    most: float
    most_at: str
    points: int

    def __str__(self) -> str:
        return (
            f"mean {self.mean:.2f}, geometric {self.geometric:.2f}, {self.least:.2f} to {self.most:.2f} "
            f"({self.most_at}), {self.points} points"
        )


def gain(rows: Sequence[Row], of: Value, over: Value) -> Gain | None:
    """Over the rows at which both reach anything; None if there is none."""
    ratios = [(of(row) / over(row), row) for row in rows if of(row) > 0 and over(row) > 0]
    if not ratios:
        return None
    values = [ratio for ratio, _ in ratios]
    top = max(ratios, key=lambda each: each[0])[1]
    return Gain(
        mean=statistics.mean(values),
        geometric=statistics.geometric_mean(values),
        least=min(values),
        most=max(values),
        most_at=f"{top.name}, {top.part}",
        points=len(values),
    )


def is_small(row: Row) -> bool:
    """Of the paper's Figure 6."""
    return not row.cluster.startswith(LARGE[1:]) and row.task in SMALL_TASKS


def is_large(row: Row) -> bool:
    """Of its Figure 8."""
    return row.cluster.startswith(LARGE) and row.task in LARGE_TASKS


def fixed(name: str) -> Value:
    """A policy on the paper's shape."""
    return lambda row: row.fixed.get(name, 0.0)


def free(name: str) -> Value:
    """A policy on the best shape."""
    return lambda row: row.free.get(name, 0.0)


def papers(row: Row) -> float:
    """The paper's own policies."""
    return row.papers


def choice(row: Row) -> float:
    """The planner's choice, CRA included."""
    return row.chosen


def beside_the_paper(rows: Sequence[Row]) -> list[tuple[str, str, Gain | None, Gain | None]]:
    """(what, the paper's figure, ours by RRA and WAA alone, ours with CRA)."""
    ft = fixed("FT")
    groups: list[tuple[str, str, Sequence[Row]]] = [
        ("over FT, all", "mean 2.9 over 20 scenarios", rows),
        ("over FT, 11B to 101B: S, T, C1", "mean 2, most 5.4", [r for r in rows if is_small(r)]),
        (
            "over FT, 101B to 341B: G, C1, C2",
            "mean 3.2, 1.1 to 15.2",
            [r for r in rows if is_large(r)],
        ),
        ("over FT, no bound", "mean 2.2", [r for r in rows if math.isinf(r.bound_s)]),
    ]
    return [
        (what, paper, gain(some, papers, ft), gain(some, choice, ft))
        for what, paper, some in groups
    ]


def over_baselines(rows: Sequence[Row]) -> list[tuple[str, Gain | None, Gain | None]]:
    """(baseline, the choice over it on the paper's shape, over it on its own best shape)."""
    return [
        (name, gain(rows, choice, fixed(name)), gain(rows, choice, free(name)))
        for name in ("FT", "FT-ET", "ORCA", "chunked")
    ]


def unmet(rows: Sequence[Row]) -> dict[str, list[str]]:
    """By policy, the points at which it keeps no bound."""
    found: dict[str, list[str]] = {}
    for where, names in (("fixed", FIXED), ("free", FREE)):
        for name in names:
            points = [
                f"{row.name} {row.part}" for row in rows if getattr(row, where).get(name) == 0
            ]
            if points:
                found[name if where == "free" else f"{name} (fixed shape)"] = points
    return found


def by_task(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """By task, at how many points WAA reaches more than RRA, of how many at which both were planned."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        if "WAA" in row.free and "RRA" in row.free:
            better, of = found.get(row.task, (0, 0))
            found[row.task] = better + (row.free["WAA"] > row.free["RRA"]), of + 1
    return found


def does_waa_fit(rows: Sequence[Row]) -> dict[str, str]:
    """By large cluster: why WAA is not planned there, or its best beside RRA's."""
    found: dict[str, str] = {}
    for row in rows:
        if not row.cluster.startswith(LARGE[1:]):
            continue
        if "WAA" in row.free:
            ratio = row.free["WAA"] / row.free["RRA"] if row.free.get("RRA") else math.nan
            text = f"{row.task} {row.part}: {row.free['WAA']:.3g} queries/s, {ratio:.2f} of RRA"
        else:
            text = f"{row.task}: {row.reasons.get('WAA', 'not asked')}"
        found.setdefault(row.cluster, "")
        if text not in found[row.cluster]:
            found[row.cluster] += ("; " if found[row.cluster] else "") + text
    return found
