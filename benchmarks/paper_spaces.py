"""The space that a schedule was found in, and WAA's at the paper's splits: all that the benchmarks ask of sites."""

from __future__ import annotations

from exegpt_planner.schedule import Schedule, Split, WaaSchedule
from exegpt_planner.search import search
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.splits import named_splits
from exegpt_planner.strategies import Site, StrategySpace, sites_of
from exegpt_planner.waa_space import WaaSpace
from paper_points import Scenario


def promise_of(where: Scenario) -> Promise:
    """The paper's: on the mean latency of an answer of the 99th percentile's length."""
    return Promise.of_mean(length=where.law.workload.output.quantile(0.99))


def space_on(where: Scenario, strategy: str, shape: Shape) -> StrategySpace:
    """RRA's or CRA's space on a shape."""
    site = Site(strategy=strategy, shape=shape, number=0, table=where.table, law=where.law)
    return site.space(promise_of(where))


def space_with(where: Scenario, schedule: Schedule) -> StrategySpace:
    """The space that a schedule lies in, under the scenario's lengths."""
    if isinstance(schedule, WaaSchedule):
        return _waa(where, schedule)[schedule.encoders, schedule.decoders]
    micro_batches = getattr(schedule, "micro_batches", 1)
    shape = next(each for each in _alike(where, schedule) if each.micro_batches == micro_batches)
    return space_on(where, schedule.strategy, shape)


def at_named_splits(
    where: Scenario, chosen: WaaSchedule, bound_s: float
) -> tuple[dict[str, float], dict[str, Split]]:
    """Queries/s of the best WAA at the paper's splits, and these: at `chosen`'s knobs and on its layout."""
    spaces = _waa(where, chosen)
    own = spaces[chosen.encoders, chosen.decoders]
    assert isinstance(own, WaaSpace), own
    splits = named_splits(own.model, chosen.encode_batch, chosen.pool)
    reached = {}
    for name, split in splits.items():
        best = search(spaces[split], bound_s).best
        reached[name] = best.throughput if best is not None else 0.0
    return reached, splits


def _waa(where: Scenario, schedule: WaaSchedule) -> dict[Split, StrategySpace]:
    """Every split's space, on the schedule's layout."""
    sites = sites_of("WAA", _alike(where, schedule), where.table, where.law)
    promise = promise_of(where)
    return {site.split: site.space(promise) for site in sites if site.split is not None}


def _alike(where: Scenario, schedule: Schedule) -> list[Shape]:
    """Shapes of the schedule's layout, whatever their micro-batches."""
    return [
        each
        for each in where.shapes
        if each.units == schedule.units
        and (
            schedule.layout == each.layout or (schedule.layout is None and each.layout.devices == 1)
        )
    ]
