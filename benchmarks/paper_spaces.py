"""The space that a schedule was found in, and WAA's at the paper's splits: all that the benchmarks ask of sites."""

from __future__ import annotations

from dataclasses import replace

from exegpt_planner.schedule import Schedule, Split, WaaSchedule
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.splits import named_splits
from exegpt_planner.strategies import Site, StrategySpace
from exegpt_planner.waa_search import search_waa
from exegpt_planner.waa_sites import WaaSite, WaaSites, site_of
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
        return waa_site(where, schedule).space(promise_of(where))
    number = schedule.micro_batches
    shape = next(each for each in _alike(where, schedule) if each.micro_batches == number)
    return space_on(where, schedule.strategy, shape)


def waa_site(where: Scenario, schedule: WaaSchedule) -> WaaSite:
    """Where a schedule of WAA runs."""
    return site_of(schedule, where.table, where.law, (where.model, where.memory))


def at_named_splits(
    where: Scenario, chosen: WaaSchedule, bound_s: float
) -> tuple[dict[str, float], dict[str, Split]]:
    """Queries/s of the best WAA at the paper's splits of the devices, named at `chosen`'s knobs; and these."""
    own = waa_site(where, chosen).model
    splits = named_splits(own, chosen.encode_batch, chosen.pool)
    sites = WaaSites.all(where.table, where.law, where.devices, (where.model, where.memory))
    spans = {
        site.encoders.units * site.encoders.layout.devices: span
        for span in sites.spans()
        for site in [sites[span[0]]]
    }
    promise = replace(promise_of(where), bound_s=bound_s)
    reached = {}
    for split in set(splits.values()):
        reached[split] = 0.0
        if split[0] in spans:
            found, _ = search_waa(sites, promise, bound_s, spans[split[0]])
            best = (each.best.throughput for _, _, each in found if each.best is not None)
            reached[split] = max(best, default=0.0)
    return {name: reached[split] for name, split in splits.items()}, splits


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
