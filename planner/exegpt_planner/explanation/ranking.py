"""The best of every strategy for every way of sharing out the devices, and why each lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from exegpt_planner.errors import IncompleteProfile, InfeasibleBound
from exegpt_planner.explanation.binding import what_binds
from exegpt_planner.explanation.question import Question, Step
from exegpt_planner.explanation.record import Ranked, Use
from exegpt_planner.explanation.time_spent import uses
from exegpt_planner.plan import Plan
from exegpt_planner.strategies import Site
from exegpt_planner.waa_sites import WaaSite

Family = tuple[str, int, int]  # strategy, units, largest degree
PAIRS: Family = ("WAA", 0, 0)  # on shapes of their own
LITTLE = 0.005  # of the time: not worth a word
TALK = ("all-reduces", "sends")


def ranking(
    question: Question, plan: Plan, sites: Sequence[Site | WaaSite], step: Step
) -> tuple[Ranked, ...]:
    """Most throughput first, then what has no schedule."""
    families: dict[Family, None] = {_family(site): None for site in sites}
    chosen = _family(question.site(plan.schedule))
    if question.table.parallel is not None:
        families |= dict.fromkeys(_pairs(question, plan))
        chosen = PAIRS if chosen[0] == "WAA" else chosen
    rows = []
    for family in families:
        if family == chosen:
            rows.append(_row(family, plan, "chosen: the most throughput", is_chosen=True))
            continue
        step(f"{family[0]} on {_units(family)}")
        rows.append(_best(question, plan, family))
    rows.sort(key=_order)
    return (*rows, *_left_out(question, plan, {name for name, _, _ in families}, sites))


def _order(row: Ranked) -> float:
    return 1.0 if row.prediction is None else -row.prediction.queries_per_s


def _pairs(question: Question, plan: Plan) -> list[Family]:
    """WAA on pairs of shapes is one family: there are too many to look at each."""
    planned = any(each.strategy == "WAA" and each.schedule for each in plan.alternatives)
    return [PAIRS] if "WAA" in question.strategies and planned else []


def _best(question: Question, plan: Plan, family: Family) -> Ranked:
    alone = replace(question, strategies=(family[0],))
    try:
        found = alone.plan(
            with_sensitivity=False,
            allowed=None if family == PAIRS else lambda site: _family(site) == family,
        )
    except InfeasibleBound as error:
        return _row(family, None, _unkept(error, plan.bound.seconds))
    except IncompleteProfile as error:
        return _row(family, None, str(error))
    base = plan.prediction.queries_per_s
    less = 1 - found.prediction.queries_per_s / base
    reason = f"{less:.1%} less throughput; {what_binds(found).words}"
    return _row(family, found, reason + _lost(question, found, plan))


def _unkept(error: InfeasibleBound, bound_s: float) -> str:
    if error.reached is None:
        return str(error)
    return (
        f"no schedule keeps {bound_s:g} s; the fastest found promises "
        f"{error.reached.prediction.promised_s:.3g} s"
    )


def _lost(question: Question, found: Plan, plan: Plan) -> str:
    """What of its devices' time a plan loses beside the chosen one, as far as it is more."""
    ours, theirs = (_losses(question, each) for each in (found, plan))
    parts = [
        f"{what} {ours[what]:.1%} of the time (chosen: {theirs[what]:.1%})"
        for what in ours
        if ours[what] > theirs[what] + LITTLE
    ]
    return "".join(f"; {part}" for part in parts)


def _losses(question: Question, plan: Plan) -> dict[str, float]:
    """Shares of all devices' time: waiting, and sharing results with each other where that is known."""
    found = uses(question.site(plan.schedule), plan.schedule, plan.prediction)
    weights = [each.devices for each in found]
    shares = {"devices wait": [_share(each, "idle") for each in found]}
    shares["all-reduces and sends take"] = [_talk(each) for each in found]
    total = sum(weights)
    return {
        what: sum(weight * share for weight, share in zip(weights, each, strict=True)) / total
        for what, each in shares.items()
    }


def _share(use: Use, phase: str) -> float:
    return sum(each.share for each in use.spent if each.phase == phase)


def _talk(use: Use) -> float:
    return sum(part.share for spent in use.spent for part in spent.parts if part.name in TALK)


def _left_out(
    question: Question, plan: Plan, planned: set[str], sites: Sequence[Site | WaaSite]
) -> Iterator[Ranked]:
    """Strategies that are planned nowhere, and ways of sharing out the devices for which the weights are too large."""
    for each in plan.alternatives:
        if each.strategy not in planned:
            yield _row((each.strategy, 0, 0), None, each.reason)
    if question.table.parallel is None:
        return
    fitting = {site.shape.units for site in sites}
    for units in range(1, question.devices + 1):
        if question.devices % units == 0 and units not in fitting:
            where = _units(("", units, question.devices // units))
            reason = f"the weights do not fit, or layers are too few, on {where}"
            yield Ranked(
                strategy="any",
                units=units,
                degree=None,
                is_chosen=False,
                schedule=None,
                prediction=None,
                reason=reason,
            )


def _row(family: Family, plan: Plan | None, reason: str, *, is_chosen: bool = False) -> Ranked:
    strategy, units, degree = family
    return Ranked(
        strategy=strategy,
        units=units or None,
        degree=degree or None,
        is_chosen=is_chosen,
        schedule=None if plan is None else plan.schedule,
        prediction=None if plan is None else plan.prediction,
        reason=reason,
    )


def _family(site: Site | WaaSite) -> Family:
    return site.strategy, site.shape.units, site.shape.layout.degree


def _units(family: Family) -> str:
    _, units, degree = family
    if family == PAIRS:
        return "pairs of shapes"
    each = f"{units} units" if units > 1 else "one unit"
    return f"{each}, groups of {degree}" if degree > 1 else each
