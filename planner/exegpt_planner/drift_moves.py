"""What can be done when lengths have drifted, from the cheapest: keep, other knobs, another layout, more pods.

`keep` does nothing. `knobs` changes B_E, N_D, B_D or C of the same shape, at each worker's next step. `layout` is the
best of all strategies and shapes on the same devices: where a unit's layers lie as before nothing that runs is
touched, else weights are loaded and queries encoded anew. `pods` is looked for where none of these keeps the bound: the
fewest devices on which it holds. Each is searched as a plan is, under the observed law; `choice` says which to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from exegpt_planner.bound import Bound
from exegpt_planner.cliffs import Held
from exegpt_planner.completion import law_on
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.errors import IncompleteProfile, InfeasibleBound
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import KNOWN, Plan, make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, Prediction, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.search import Point, search
from exegpt_planner.shapes import Shape, device_each, room_of
from exegpt_planner.strategies import Site, StrategySpace
from exegpt_planner.strict import StrictModel
from exegpt_planner.waa_sites import WaaSite, site_of
from exegpt_planner.workload import Workload

Kind = Literal["keep", "knobs", "layout", "pods"]
NO_PLAN = (InfeasibleBound, IncompleteProfile)
MoreDevices = Callable[
    [int], ProfileTable | None
]  # the table for so many devices, where there is one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What a plan depends on beside lengths; `memory` is of one of the `workers`."""

    table: ProfileTable
    model: ModelSpec
    bound: Bound
    memory: MemoryBudget
    strategies: Sequence[str] = KNOWN
    workers: int = 1

    def plan(self, workload: Workload) -> Plan:
        """The best here; raises `InfeasibleBound` or `IncompleteProfile`."""
        return make_plan(
            table=self.table,
            model=self.model,
            workload=workload,
            bound=self.bound,
            memory=self.memory,
            strategies=self.strategies,
            workers=self.workers,
            with_sensitivity=False,
        )

    def held(self, workload: Workload) -> Held:
        """What schedules are held to here under these lengths."""
        promise = self.bound.promise(law_on(self.table, workload), self.table)
        return Held.of(workload, promise, self.bound)

    def site(self, schedule: Schedule, workload: Workload) -> Site | WaaSite:
        """Where a schedule runs; raises `InfeasibleBound` if its weights leave no room."""
        law = law_on(self.table, workload)
        if isinstance(schedule, WaaSchedule):
            return site_of(schedule, self.table, law, (self.model, self.memory))
        whole = device_each(self.table, schedule.units, 0).layout
        layout = whole if schedule.layout is None else schedule.layout
        room = room_of(layout, self.model, self.table.key.dtype, self.memory)
        if room is None:
            raise InfeasibleBound("the schedule's weights leave no room for KV on these devices")
        shape = Shape(
            units=schedule.units,
            layout=layout,
            micro_batches=schedule.micro_batches,
            room=room,
        )
        return Site(
            strategy=schedule.strategy,
            shape=shape,
            number=0,
            table=self.table,
            law=law,
        )


class Price(StrictModel):
    """What a change costs while it is made; it costs no query."""

    words: str
    weight_bytes: int = Field(ge=0)  # loaded anew, on all devices together
    encode_s: float = Field(ge=0)  # of encoding again what was in decode
    devices: int = Field(ge=0)  # more than before


class Move(StrictModel):
    """One of the things to do, under the observed lengths."""

    kind: Kind
    keeps_bound: bool
    schedule: Schedule | None  # None: there is none, `reason` says why
    prediction: Prediction | None
    price: Price | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Throughput that a dearer move must gain over a cheaper one that keeps the bound, a share of the latter's."""

    knobs: float = (
        0.03  # predictions of throughput are no more exact (docs/theory.md), and nothing pauses
    )
    layout: float = 0.1  # a pause of s seconds is earned back in 10 s


def shape_of(schedule: Schedule) -> tuple[object, ...]:
    """What other knobs leave as it is: strategy, units or split, layout, micro-batches."""
    match schedule:
        case WaaSchedule():
            return schedule.strategy, schedule.encoders, schedule.decoders, schedule.layout
        case RraSchedule():
            return schedule.strategy, schedule.units, schedule.layout, schedule.micro_batches
        case CraSchedule():
            return schedule.strategy, schedule.units, schedule.layout


def kind_of(before: Schedule, now: Schedule) -> Kind:
    """What a change on the same devices is."""
    if now == before:
        return "keep"
    return "knobs" if shape_of(now) == shape_of(before) else "layout"


def moves(
    plan: Plan,
    setting: Setting,
    observed: Workload,
    *,
    more: MoreDevices | None = None,
    most_devices: int = 0,
) -> tuple[Move, ...]:
    """Everything that can be done, the cheapest first; `more` and `most_devices` say what devices could be had."""
    here = (*_same_shape(plan, setting, observed), _layout(plan, setting, observed))
    if any(each.keeps_bound for each in here):
        return *here, _none("pods", "the devices that there are keep the bound")
    return *here, _pods(setting, observed, more, most_devices)


def choice(found: Sequence[Move], worth: Worth | None = None) -> Move | None:
    """The cheapest move that keeps the bound, unless another on the same devices is worth its price; None: none does.

    New pods are for a bound that nothing else keeps: more devices always have more throughput.
    """
    least = {"keep": 0.0, "knobs": (worth or Worth()).knobs, "layout": (worth or Worth()).layout}
    best: Move | None = None
    for move in found:
        if not move.keeps_bound or move.prediction is None:
            continue
        if best is None or best.prediction is None:
            best = move
        elif move.kind in least:
            needed = best.prediction.queries_per_s * (1 + least[move.kind])
            best = move if move.prediction.queries_per_s > needed else best
    return best


def keep(plan: Plan, setting: Setting, observed: Workload) -> Move:
    """The schedule as it is."""
    held = setting.held(observed)
    try:
        return _keep(plan, setting.site(plan.schedule, observed).space(held.promise), held)
    except NO_PLAN as error:
        return _none("keep", error, schedule=plan.schedule)


def _same_shape(plan: Plan, setting: Setting, observed: Workload) -> tuple[Move, Move]:
    """Keep, and the best knobs of the same shape."""
    held = setting.held(observed)
    try:
        space = setting.site(plan.schedule, observed).space(held.promise)
    except NO_PLAN as error:
        return _none("keep", error, schedule=plan.schedule), _none("knobs", error)
    kept, best = _keep(plan, space, held), search(space, held.bound_s).best
    if best is None:
        return kept, _none("knobs", f"no schedule of this shape keeps {held.bound_s:g} s")
    now, expected = space.schedule(best.point), space.predict(best.point)
    return kept, Move(
        kind="knobs",
        keeps_bound=True,
        schedule=now,
        prediction=expected,
        price=_price(plan, now, expected, setting, observed),
        reason="the most throughput of this shape",
    )


def _keep(plan: Plan, space: StrategySpace, held: Held) -> Move:
    point = _point(space, plan.schedule)
    if point is None:
        why = "the schedule takes more than fits, or than the profile covers"
        return _none("keep", why, schedule=plan.schedule)
    blocked = space.blocked(point)
    if blocked is not None:
        why = f"the schedule {_BLOCKED.get(blocked, 'goes beyond the profile')}"
        return _none("keep", why, schedule=plan.schedule)
    promised_s = space.promised_s(point)
    return Move(
        kind="keep",
        keeps_bound=promised_s <= held.bound_s,
        schedule=plan.schedule,
        prediction=space.predict(point),
        price=_FREE,
        reason=f"promises {promised_s / held.bound_s:.1%} of the bound",
    )


def _point(space: StrategySpace, schedule: Schedule) -> Point | None:
    """Where a schedule lies in a space of its shape; None if outside."""
    match schedule:
        case RraSchedule(encode_batch=x, encode_interval=y):
            # beyond the longest answer no iteration decodes anybody: the last is as good
            point = x, min(y, space.whole.y2)
        case WaaSchedule(encode_batch=x, pool=y):
            point = x, y
        case CraSchedule(pool=x, chunk_tokens=chunk):
            assert isinstance(space, CraSpace), space
            if chunk not in space.chunks:
                return None
            point = x, space.chunks.index(chunk) + 1
    whole = space.whole
    is_inside = whole.x1 <= point[0] <= whole.x2 and whole.y1 <= point[1] <= whole.y2
    return point if is_inside else None


def _layout(plan: Plan, setting: Setting, observed: Workload) -> Move:
    try:
        found = setting.plan(observed)
    except NO_PLAN as error:
        return _none("layout", error)
    is_same = shape_of(found.schedule) == shape_of(plan.schedule)
    return Move(
        kind="layout",
        keeps_bound=True,
        schedule=found.schedule,
        prediction=found.prediction,
        price=_price(plan, found.schedule, found.prediction, setting, observed),
        reason="the shape that runs is the best there is"
        if is_same
        else "the most throughput here",
    )


def _pods(setting: Setting, observed: Workload, more: MoreDevices | None, most: int) -> Move:
    if more is None or most <= setting.workers:
        return _none("pods", "no more devices were offered")
    for workers in range(setting.workers + 1, most + 1):
        table = more(workers)
        if table is None:
            continue
        try:
            found = replace(setting, table=table, workers=workers).plan(observed)
        except NO_PLAN:
            continue
        weights = found.schedule.units * setting.model.weight_bytes(table.key.dtype)
        added = workers - setting.workers
        return Move(
            kind="pods",
            keeps_bound=True,
            schedule=found.schedule,
            prediction=found.prediction,
            price=Price(
                words=f"{added} more device{'s' * (added > 1)}; new pods load "
                f"{weights / 2**30:.1f} GiB, queries wait meanwhile",
                weight_bytes=weights,
                encode_s=0.0,
                devices=added,
            ),
            reason=f"the fewest devices that keep the bound: {workers}",
        )
    return _none("pods", f"no schedule keeps the bound on up to {most} devices")


_BLOCKED = {
    "memory": "needs more KV than fits",
    "load": "encodes too little an iteration to keep up",
    "shape": "has a pool of fewer places than it needs, or more than are ever taken",
}
_FREE = Price(words="nothing", weight_bytes=0, encode_s=0.0, devices=0)


def _price(
    plan: Plan, now: Schedule, expected: Prediction, setting: Setting, observed: Workload
) -> Price:
    """Of a change on the same devices."""
    if now == plan.schedule:
        return _FREE
    if now.layout == plan.schedule.layout:
        what = "knobs" if kind_of(plan.schedule, now) == "knobs" else "roles and knobs"
        words = f"{what} change at each worker's next step; nothing pauses"
        return Price(words=words, weight_bytes=0, encode_s=0.0, devices=0)
    weights = now.units * setting.model.weight_bytes(setting.table.key.dtype)
    pools = (
        plan.schedule.decoders if isinstance(plan.schedule, WaaSchedule) else plan.schedule.units
    )
    # what was held is encoded again: each E[I] tokens cost what a query's encode does
    queries = pools * plan.prediction.kv_tokens / observed.input.mean
    encode_s = queries * expected.encode_share / expected.queries_per_s
    words = (
        f"{weights / 2**30:.1f} GiB of weights are loaded anew on the same pods, and queries in decode encoded "
        f"again, {encode_s:.2g} s of work; their streams pause meanwhile"
    )
    return Price(words=words, weight_bytes=weights, encode_s=encode_s, devices=0)


def _none(kind: Kind, why: object, *, schedule: Schedule | None = None) -> Move:
    return Move(
        kind=kind,
        keeps_bound=False,
        schedule=schedule,
        prediction=None,
        price=None,
        reason=str(why),
    )
