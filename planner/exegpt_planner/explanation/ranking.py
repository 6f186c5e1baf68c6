"""The best of every strategy for every way of sharing out the devices, and why each lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exegpt_planner.errors import IncompleteProfile, InfeasibleBound
from exegpt_planner.explanation.binding import what_binds
from exegpt_planner.explanation.question import Question, Step, site_of
from exegpt_planner.explanation.record import Ranked, Use
from exegpt_planner.explanation.time_spent import uses
from exegpt_planner.plan import Plan
from exegpt_planner.strategies import Site

Family = tuple[str, int, int]  # strategy, units, largest degree
LITTLE = 0.005  # of the time: not worth a word
TALK = ("all-reduces", "sends")


def ranking(
    question: Question, plan: Plan, sites: Sequence[Site], step: Step
) -> tuple[Ranked, ...]:
    """Most throughput first, then what has no schedule."""
    families: dict[Family, None] = {_family(site): None for site in sites}
    chosen = _family(site_of(sites, plan.schedule))
    rows = []
    for family in families:
        if family == chosen:
            rows.append(_row(family, plan, "chosen: the most throughput", is_chosen=True))
            continue
        step(f"{family[0]} on {_units(family)}")
        rows.append(_best(question, plan, sites, family))
    rows.sort(key=_order)
    return (*rows, *_left_out(question, plan, {name for name, _, _ in families}, sites))


def _order(row: Ranked) -> float:
    return 1.0 if row.prediction is None else -row.prediction.queries_per_s


def _best(question: Question, plan: Plan, sites: Sequence[Site], family: Family) -> Ranked:
    try:
        found = question.plan(with_sensitivity=False, allowed=lambda site: _family(site) == family)
    except InfeasibleBound as error:
        return _row(family, None, _unkept(error, plan.bound.seconds))
    except IncompleteProfile as error:
        return _row(family, None, str(error))
    base = plan.prediction.queries_per_s
    less = 1 - found.prediction.queries_per_s / base
    reason = f"{less:.1%} less throughput; {what_binds(found).words}"
    return _row(family, found, reason + _lost(sites, found, plan))


def _unkept(error: InfeasibleBound, bound_s: float) -> str:
    if error.reached is None:
        return str(error)
    return (
        f"no schedule keeps {bound_s:g} s; the fastest found promises "
        f"{error.reached.prediction.promised_s:.3g} s"
    )


def _lost(sites: Sequence[Site], found: Plan, plan: Plan) -> str:
    """What of its devices' time a plan loses beside the chosen one, as far as it is more."""
    ours, theirs = (_losses(sites, each) for each in (found, plan))
    parts = [
        f"{what} {ours[what]:.1%} of the time (chosen: {theirs[what]:.1%})"
        for what in ours
        if ours[what] > theirs[what] + LITTLE
    ]
    return "".join(f"; {part}" for part in parts)


def _losses(sites: Sequence[Site], plan: Plan) -> dict[str, float]:
    """Shares of all devices' time: waiting, and sharing results with each other where that is known."""
    found = uses(site_of(sites, plan.schedule), plan.schedule, plan.prediction)
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
    question: Question, plan: Plan, planned: set[str], sites: Sequence[Site]
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


def _family(site: Site) -> Family:
    return site.strategy, site.shape.units, site.shape.layout.degree


def _units(family: Family) -> str:
    _, units, degree = family
    each = f"{units} units" if units > 1 else "one unit"
    return f"{each}, groups of {degree}" if degree > 1 else each
