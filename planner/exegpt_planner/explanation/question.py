"""All that a plan depends on, so that it can be asked again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from exegpt_planner.bound import Bound
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.layout import Typical
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.shapes import Shape, shapes
from exegpt_planner.strategies import STRATEGIES, Site, sites_of, unplannable
from exegpt_planner.waa_sites import WaaSite, site_of
from exegpt_planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned, for whom, on what."""

    name: str  # the model's, for people
    table: ProfileTable
    model: ModelSpec
    workload: Workload
    bound: Bound
    memory: MemoryBudget  # of a device
    strategies: tuple[str, ...]
    devices: int

    def plan(
        self,
        *,
        with_sensitivity: bool = True,
        allowed: Callable[[Site | WaaSite], bool] | None = None,
    ) -> Plan:
        """The plan; raises `InfeasibleBound` with what would do."""
        return make_plan(
            table=self.table,
            model=self.model,
            workload=self.workload,
            bound=self.bound,
            memory=self.memory,
            strategies=self.strategies,
            workers=self.devices,
            with_sensitivity=with_sensitivity,
            allowed=allowed,
        )

    def within(self, seconds: float) -> Question:
        """The same under another bound."""
        return replace(self, bound=self.bound.model_copy(update={"seconds": seconds}))

    def shapes(self) -> list[Shape]:
        """Every shape whose weights fit."""
        typical = Typical.of(law_on(self.table, self.workload), self.table)
        return list(shapes(self.table, self.model, self.memory, typical, self.devices))

    def sites(self) -> list[Site | WaaSite]:
        """Where any of the strategies may be planned; WAA's pairs of shapes, of which there are too many, left out."""
        law, found = law_on(self.table, self.workload), self.shapes()
        return [
            site
            for name in STRATEGIES
            if name in self.strategies and unplannable(name, self.table, law, self.devices) is None
            if name != "WAA" or self.table.parallel is None
            for site in sites_of(name, found, self.table, law)
        ]

    def site(self, schedule: Schedule, law: CompletionLaw | None = None) -> Site | WaaSite:
        """Where a schedule runs that was planned for this question; under another law of lengths, if one is given."""
        law = law_on(self.table, self.workload) if law is None else law
        if isinstance(schedule, WaaSchedule):
            return site_of(schedule, self.table, law, (self.model, self.memory))
        every = (each for each in self.sites() if isinstance(each, Site))
        return replace(next(each for each in every if _is_of(each, schedule)), law=law)


# Called before each search, with what it looks for.
Step = Callable[[str], None]
# The same question on so many devices; raises `InvalidSpec` where there is no such cluster.
Grow = Callable[[int], Question]


def _is_of(site: Site, schedule: RraSchedule | CraSchedule) -> bool:
    shape = site.shape
    layout = shape.layout if shape.layout.devices > 1 else None
    ours = site.strategy, shape.units, layout, shape.micro_batches
    return ours == (
        schedule.strategy,
        schedule.units,
        schedule.layout,
        schedule.micro_batches,
    )
