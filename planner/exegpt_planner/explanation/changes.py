"""What one more device, or a bound 10 % looser, would bring."""

from __future__ import annotations

import math

from exegpt_planner.errors import IncompleteProfile, InfeasibleBound, InvalidSpec
from exegpt_planner.explanation.question import Grow, Question, Step
from exegpt_planner.explanation.record import Changed, SmallestCluster
from exegpt_planner.plan import Plan

LOOSER = 1.1
NODE = 8  # more devices are whole nodes: the next number that exists is at most so far
MOST_DEVICES = 64  # that the smallest cluster is looked for up to


def changes(question: Question, plan: Plan, grow: Grow, step: Step) -> tuple[Changed, ...]:
    """Each the answer of a whole search."""
    found = []
    bigger = _next(question.devices, grow)
    if bigger is not None:
        step(f"{bigger.devices} devices")
        found.append(_changed("devices", bigger))
    if not math.isinf(plan.bound.seconds):
        step("a bound 10 % looser")
        found.append(_changed("bound", question.within(LOOSER * plan.bound.seconds)))
    return tuple(found)


def smallest_cluster(grow: Grow, step: Step) -> SmallestCluster:
    """The fewest devices that would do; more are not always better, so that every number is tried."""
    tried = []
    for devices in range(1, MOST_DEVICES + 1):
        try:
            question = grow(devices)
        except InvalidSpec:
            continue
        step(f"{devices} devices")
        tried.append(devices)
        try:
            plan = question.plan(with_sensitivity=False)
        except (InfeasibleBound, IncompleteProfile):
            continue
        return SmallestCluster(
            tried=tuple(tried), schedule=plan.schedule, prediction=plan.prediction
        )
    return SmallestCluster(tried=tuple(tried), schedule=None, prediction=None)


def _next(devices: int, grow: Grow) -> Question | None:
    """On the next larger number of devices that there can be."""
    for number in range(devices + 1, devices + NODE + 1):
        try:
            return grow(number)
        except InvalidSpec:
            continue
    return None


def _changed(change: str, question: Question) -> Changed:
    plan: Plan | None = None
    problem = None
    try:
        plan = question.plan(with_sensitivity=False)
    except (InfeasibleBound, IncompleteProfile, InvalidSpec) as error:
        problem = str(error)
    return Changed.model_validate(
        {
            "change": change,
            "devices": question.devices,
            "bound_s": question.bound.seconds,
            "schedule": plan and plan.schedule,
            "queries_per_s": plan and plan.prediction.queries_per_s,
            "promised_s": plan and plan.prediction.promised_s,
            "problem": problem,
        }
    )
