"""The space that a schedule was found in, and WAA's at the paper's splits: all that the benchmarks ask of sites."""

from __future__ import annotations

from dataclasses import replace

from exegpt_planner.schedule import Schedule, Split, WaaSchedule
from exegpt_planner.search import search
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.splits import named_splits
from exegpt_planner.strategies import Site, StrategySpace
from exegpt_planner.waa_sites import WaaSite, site_of
from paper_points import Scenario


def promise_of(where: Scenario) -> Promise:
    """The paper's: on the mean latency of an answer of the 99th percentile's length."""
    return Promise.of_mean(length=where.law.workload.output.quantile(0.99))


def space_on(
    where: Scenario, strategy: str, shape: Shape, bound_s: float | None = None
) -> StrategySpace:
    """RRA's or CRA's space on a shape; what cannot keep a bound that is known need not be looked at."""
    site = Site(strategy=strategy, shape=shape, number=0, table=where.table, law=where.law)
    promise = promise_of(where)
    return site.space(promise if bound_s is None else replace(promise, bound_s=bound_s))


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
    """Queries/s of the best WAA at the paper's splits of the devices, on `chosen`'s layouts; and these splits.

    0 where those layouts cannot be split so, or keep no bound.
    """
    own = waa_site(where, chosen)
    splits = named_splits(own.model, chosen.encode_batch, chosen.pool)
    sizes = own.encoders.layout.devices, own.shape.layout.devices
    promise = replace(promise_of(where), bound_s=bound_s)
    reached = {}
    for split in set(splits.values()):
        reached[split] = 0.0
        if any(taken % size for taken, size in zip(split, sizes, strict=True)):
            continue
        encoders, decoders = (taken // size for taken, size in zip(split, sizes, strict=True))
        divided = chosen.model_copy(update={"encoders": encoders, "decoders": decoders})
        best = search(waa_site(where, divided).space(promise), bound_s).best
        reached[split] = 0.0 if best is None else best.throughput
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
