"""RRA's cliffs: an answer of d decode iterations meets q = ceil(d / N_D) encodes, one more beyond each multiple of N_D.

A bound that just holds likes to sit on the edge, as d = q N_D is the most that q encodes carry. A little drift of the
lengths then costs a whole encode, which no longer pool would. `cliff` says how much the outputs' mean may grow before
that, what it costs, and which schedule of the same space keeps the bound after the drift, at what price. Drift is of
the mean at the same deviation and the same longest answer (drift_laws.py); where none is possible there is no cliff.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from pydantic import Field

from exegpt_planner.bound import Bound
from exegpt_planner.completion import law_on
from exegpt_planner.drift_laws import shifted
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.schedule import RraSchedule, Schedule
from exegpt_planner.search import Block, Blocked, Bounds, Point, search
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.strategies import Site, StrategySpace
from exegpt_planner.strict import StrictModel
from exegpt_planner.waa_sites import WaaSite
from exegpt_planner.workload import Workload

NEAR, REACH = 1.05, 1.15  # of the mean: the drifts that are looked at, and an offer stands
PERCENTS = 30  # of the mean, as far as the edge is looked for
MATERIAL = 0.05  # of the bound: an encode that costs less is a step, no cliff


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """What a schedule is held to."""

    workload: Workload
    promise: Promise
    bound_s: float
    percentile: float  # of output lengths, whose answers the promise is about

    @classmethod
    def of(cls, workload: Workload, promise: Promise, bound: Bound) -> Self:
        """By a bound."""
        return cls(
            workload=workload,
            promise=promise,
            bound_s=bound.reference_s,
            percentile=bound.percentile_length,
        )


class AfterDrift(StrictModel):
    """The schedule as it is, once the outputs' mean has grown."""

    mean_factor: float
    length_tokens: int  # the percentile's then
    encodes: int  # q of such an answer
    of_bound: float | None  # promised, a share of the bound; None: beyond profile or memory


class Offer(StrictModel):
    """The schedule of the same space with the most throughput that keeps the bound now and after the drift."""

    schedule: RraSchedule
    mean_factor: float  # of the drift
    queries_per_s: float  # with the planned lengths
    throughput_lost: float  # a share of the chosen schedule's
    of_bound: float  # promised with the planned lengths
    of_bound_after: float

    @property
    def words(self) -> str:
        """In one line."""
        return (
            f"off the cliff, within the bound at +{self.mean_factor - 1:.0%} too, with {self.throughput_lost:.1%} less "
            f"throughput: encode_batch={self.schedule.encode_batch}, encode_interval={self.schedule.encode_interval}"
        )


class Cliff(StrictModel):
    """Where an answer of the bound's length stands between two multiples of N_D."""

    decodes: int  # d
    encode_interval: int  # N_D
    encodes: int  # q
    edge_tokens: int  # of the longest answer that meets as many encodes
    spare_tokens: int = Field(ge=0)  # q N_D - d: by which such an answer may grow
    step_of_bound: float  # what the first token beyond costs, with its encode, a share of the bound
    mean_factor: float | None  # the least growth of the mean that crosses; None: none up to 30 %,
    # or as far as there is a law on these lengths
    after: tuple[AfterDrift, ...]
    offer: Offer | None

    @property
    def is_near(self) -> bool:
        """Whether 15 % more mean crosses it, at a cost that shows, and breaks the bound."""
        return (
            self.mean_factor is not None
            and self.mean_factor <= REACH
            and self.step_of_bound >= MATERIAL
            and any(each.of_bound is None or each.of_bound > 1 for each in self.after)
        )

    def warnings(self) -> tuple[str, ...]:
        """Of a cliff that is near: what it costs, and what is offered."""
        assert self.mean_factor is not None, "none is near"
        worst = self.after[-1]
        then = "is beyond the profile or the memory"
        if worst.of_bound is not None:
            then = f"promises {worst.of_bound:.0%} of it"
        text = (
            f"a cliff is near: with {self.mean_factor - 1:.0%} more mean output the percentile passes "
            f"{self.edge_tokens} tokens, an encode more, {self.step_of_bound:.0%} of the bound; "
            f"at +{worst.mean_factor - 1:.0%} the plan {then}"
        )
        return (text,) if self.offer is None else (text, self.offer.words)


def cliff_warnings(
    site: Site | WaaSite, schedule: Schedule, held: Held, *, with_offer: bool
) -> Iterator[str]:
    """Of a cliff that is near, if one is."""
    found = cliff(site, schedule, held, with_offer=False)
    if found is not None and found.is_near:
        assert isinstance(schedule, RraSchedule), schedule
        assert isinstance(site, Site), site
        offer = _offer(site, schedule, held) if with_offer else None
        yield from found.model_copy(update={"offer": offer}).warnings()


def cliff(
    site: Site | WaaSite, schedule: Schedule, held: Held, *, with_offer: bool = True
) -> Cliff | None:
    """Where a schedule of RRA stands; None for other strategies, without a bound, or if nothing decodes.

    Nor where more than whole answers are bounded: which limit a longer answer breaks first is another question.
    """
    if not isinstance(schedule, RraSchedule) or held.bound_s == float("inf"):
        return None
    assert isinstance(site, Site), site
    if held.promise.limits is not None:
        return None
    decodes, interval = held.promise.length - 1, schedule.encode_interval
    if decodes < 1:
        return None
    model = site.model
    assert isinstance(model, RraModel), site
    encodes = -(-decodes // interval)
    edge = encodes * interval + 1  # tokens of the longest answer that meets as many encodes

    def promised_s(length: int) -> float:
        latency = model.latency(schedule.encode_batch, interval, length)
        return held.promise.promised_s(latency.mean_s, latency.sd_s)

    return Cliff(
        decodes=decodes,
        encode_interval=interval,
        encodes=encodes,
        edge_tokens=edge - site.law.workload.delay,
        spare_tokens=edge - 1 - decodes,
        step_of_bound=(promised_s(edge + 1) - promised_s(edge)) / held.bound_s,
        mean_factor=_crossing(site, held, edge),
        after=tuple(_after(site, schedule, held)),
        offer=_offer(site, schedule, held) if with_offer else None,
    )


def _moved(site: Site, held: Held, mean_factor: float) -> tuple[Site, Promise]:
    """The site and the promise under the grown mean; raises `InvalidSpec` where there is no such law."""
    law = law_on(site.table, shifted(held.workload, mean=mean_factor))
    length = law.workload.percentile_length(held.percentile)
    return replace(site, law=law), replace(held.promise, length=length)


def _crossing(site: Site, held: Held, edge: int) -> float | None:
    """The first whole per cent by which the mean grows and the percentile's length passes the edge."""
    if edge >= site.law.workload.output.max:
        return None
    for percent in range(1, PERCENTS + 1):
        try:
            promise = _moved(site, held, 1 + percent / 100)[1]
        except InvalidSpec:  # the mean is as large as these lengths allow
            return None
        if promise.length > edge:
            return 1 + percent / 100
    return None


def _after(site: Site, schedule: RraSchedule, held: Held) -> Iterator[AfterDrift]:
    for factor in (NEAR, REACH):
        try:
            moved, promise = _moved(site, held, factor)
        except InvalidSpec:
            return
        model = moved.model
        assert isinstance(model, RraModel), moved
        batch, interval = schedule.encode_batch, schedule.encode_interval
        promised_s = None
        fits = batch <= model.max_batch and model.covers(batch, interval)
        if fits and model.kv_need(batch, interval) <= site.shape.room.kv_tokens:
            latency = model.latency(batch, interval, promise.length)
            promised_s = promise.promised_s(latency.mean_s, latency.sd_s)
        yield AfterDrift(
            mean_factor=factor,
            length_tokens=promise.length - moved.law.workload.delay,
            encodes=-(-(promise.length - 1) // interval),
            of_bound=None if promised_s is None else promised_s / held.bound_s,
        )


class _Both:
    """A space whose schedules are held to their promise before and after a drift, and valued by what they do before."""

    def __init__(self, before: StrategySpace, after: StrategySpace) -> None:
        self._before, self._after = before, after

    @property
    def whole(self) -> Block:
        a, b = self._before.whole, self._after.whole
        return Block(max(a.x1, b.x1), min(a.x2, b.x2), max(a.y1, b.y1), min(a.y2, b.y2))

    few = 3

    def roughly(self, block: Block) -> None:
        """Those of `bound` are all."""

    def bound(self, block: Block) -> Bounds:
        before, after = self._before.bound(block), self._after.bound(block)
        return Bounds(
            throughput=before.throughput,
            promised_s=max(before.promised_s, after.promised_s),
            blocked=before.blocked or after.blocked,
        )

    def blocked(self, point: Point) -> Blocked | None:
        return self._before.blocked(point) or self._after.blocked(point)

    def throughput(self, point: Point) -> float:
        return self._before.throughput(point)

    def promised_s(self, point: Point) -> float:
        return max(self._before.promised_s(point), self._after.promised_s(point))


def _offer(site: Site, schedule: RraSchedule, held: Held) -> Offer | None:
    """None where no schedule keeps the bound through the drift."""
    try:
        moved, promise = _moved(site, held, REACH)
        before, after = site.space(held.promise), moved.space(promise)
    except (InvalidSpec, IncompleteProfile):
        return None
    both = _Both(before, after)
    best = search(both, held.bound_s).best if both.whole.num_points > 0 else None
    if best is None:
        return None
    found = before.schedule(best.point)
    assert isinstance(found, RraSchedule), found
    chosen = before.throughput((schedule.encode_batch, schedule.encode_interval))
    return Offer(
        schedule=found,
        mean_factor=REACH,
        queries_per_s=best.throughput,
        throughput_lost=1 - best.throughput / chosen,
        of_bound=before.promised_s(best.point) / held.bound_s,
        of_bound_after=after.promised_s(best.point) / held.bound_s,
    )
