"""One point of the paper's evaluation: what every policy reaches in a scenario under a bound."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exegpt_planner import policies
from exegpt_planner.alternatives import Alternative
from exegpt_planner.errors import ExeGPTError, InfeasibleBound
from exegpt_planner.schedule import Split, WaaSchedule
from exegpt_planner.search import search
from exegpt_planner.shapes import Shape
from paper_points import Scenario
from paper_spaces import at_named_splits, space_on

PARTS = ("10 %", "30 %", "70 %", "none")
PLANNED = ("RRA", "CRA", "WAA")
NAMED = ("WAA-C", "WAA-M")  # the paper's splits
STATIC: tuple[policies.Policy, ...] = ("FT", "FT-ET")
FIXED = ("FT", "FT-ET", "ORCA", "chunked", "RRA")  # on the paper's shape
FREE = ("FT", "FT-ET", "ORCA", "chunked", *PLANNED, *NAMED)  # on any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Queries/s by policy: 0 where it keeps no bound, left out where it was not asked or cannot be planned."""

    cluster: str
    task: str
    part: str  # of FasterTransformer's latencies that the bound is
    bound_s: float
    fixed: dict[str, float]
    free: dict[str, float]
    reasons: dict[str, str] = field(default_factory=dict)  # why a planned strategy has no figure
    splits: dict[str, Split] = field(default_factory=dict)  # of WAA, by name
    search_s: float = 0.0

    @property
    def name(self) -> str:
        """In a table."""
        return f"{self.cluster} {self.task}"

    @property
    def papers(self) -> float:
        """What the best of the paper's own policies reaches, RRA and WAA; on any shape."""
        return max(self.free.get(name, 0.0) for name in ("RRA", "WAA"))

    @property
    def choice(self) -> str:
        """The planned strategy that reaches most; "-" if none keeps the bound."""
        best = max(PLANNED, key=lambda name: self.free.get(name, 0.0))
        return best if self.free.get(best, 0.0) else "-"

    @property
    def chosen(self) -> float:
        """What it reaches."""
        return self.free.get(self.choice, 0.0)


class Rows:
    """The rows of a scenario."""

    def __init__(self, scenario: Scenario, *, is_free: bool = True) -> None:
        """Free: the baselines on any shape too."""
        self.scenario = scenario
        self._is_free = is_free
        # an encoder's steps cannot ride on a decoder's
        self._pools = policies.POOLS if scenario.table.encoder is None else ()

    def each(self, parts: tuple[str, ...] = PARTS) -> Iterator[Row]:
        """By bound."""
        by_part = dict(zip(PARTS, self.scenario.batches.bounds_s(), strict=True))
        for part in parts:
            yield self.row(part, by_part[part])

    def row(self, part: str, bound_s: float) -> Row:
        """Under one bound."""
        begin_s = time.perf_counter()
        planned = self._planned(bound_s)
        search_s = time.perf_counter() - begin_s
        free = {each.strategy: each.prediction.queries_per_s for each in planned if each.prediction}
        reasons = {each.strategy: each.reason for each in planned if each.prediction is None}
        free |= {name: 0.0 for name, why in reasons.items() if why.startswith("no schedule keeps")}
        fixed = {
            "FT": self.scenario.batches.best(bound_s, early=False),
            "FT-ET": self.scenario.batches.best(bound_s, early=True),
            "RRA": self._rra_on_fixed(bound_s),
        }
        fixed |= {name: self._best(name, [self.scenario.fixed], bound_s) for name in self._pools}
        if self._is_free:
            baselines = (*STATIC, *self._pools)
            free |= {name: self._best(name, self.scenario.shapes, bound_s) for name in baselines}
        splits: dict[str, Split] = {}
        for each in planned:
            if isinstance(each.schedule, WaaSchedule):
                named, splits = at_named_splits(self.scenario, each.schedule, bound_s)
                free |= named
        return Row(
            cluster=self.scenario.cluster,
            task=self.scenario.task,
            part=part,
            bound_s=bound_s,
            fixed=fixed,
            free=free,
            reasons=reasons,
            splits=splits,
            search_s=search_s,
        )

    def _planned(self, bound_s: float) -> tuple[Alternative, ...]:
        try:
            return self.scenario.plan(bound_s).alternatives
        except InfeasibleBound as error:
            reason = f"no schedule keeps {bound_s:g} s: {error}"
        except ExeGPTError as error:
            reason = str(error)
        return tuple(Alternative(strategy=name, reason=reason) for name in PLANNED)

    def _best(self, policy: policies.Policy, on: Sequence[Shape], bound_s: float) -> float:
        found = policies.best(policy, on, self.scenario.table, self.scenario.law, bound_s)
        return 0.0 if found is None else found.queries_per_s

    def _rra_on_fixed(self, bound_s: float) -> float:
        space = space_on(self.scenario, "RRA", self.scenario.fixed, bound_s)
        best = search(space, bound_s).best
        return best.throughput if best is not None else 0.0
