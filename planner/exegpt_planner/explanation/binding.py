"""What binds a plan: which limit keeps its throughput from rising, and how much of each is used."""

from __future__ import annotations

import math

from exegpt_planner.completion import law_on
from exegpt_planner.explanation.record import Binding
from exegpt_planner.in_words import LIMITS, use_in_words
from exegpt_planner.plan import NEAR_EDGE, PROFILE_USED, Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule, WaaSchedule
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.models import model_for
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.workload import Workload

BINDING = 0.03  # a limit used to within 3 %: knobs are whole numbers, so none is used up


def what_binds(plan: Plan, edge: float | None = None) -> Binding:
    """`edge` is how far the plan reaches into the profile; None: only what the plan warns of is known."""
    latency = plan.prediction.promised_s / plan.bound.seconds
    memory = plan.prediction.kv_tokens_reserved / plan.kv_tokens_capacity
    left = "" if math.isinf(plan.bound.seconds) else f"; {1 - latency:.0%} of the bound is left"
    is_near_edge = (
        any(PROFILE_USED in each for each in plan.warnings) if edge is None else edge > NEAR_EDGE
    )
    if plan.limits:
        return _of_limits(plan, memory, edge)
    kind, words = "nothing", f"nothing binds but the steps of the knobs and the device itself{left}"
    if latency > 1 - BINDING:
        kind, words = "latency", f"latency binds: the promise uses {latency:.1%} of the bound"
    elif memory > 1 - BINDING:
        kind = "memory"
        words = f"memory binds: {memory:.0%} of the KV capacity is spoken for{left}"
    elif is_near_edge:
        kind, words = "profile", f"the profile's reach binds{left}"
    return Binding.model_validate(
        {
            "kind": kind,
            "latency_used": latency,
            "memory_used": memory,
            "profile_used": edge,
            "words": words,
        }
    )


def _of_limits(plan: Plan, memory: float, edge: float | None) -> Binding:
    """Where more than whole answers are bounded: the most used of the limits."""
    most = max(plan.limits, key=lambda use: use.share)
    every = "; ".join(f"{use_in_words(use)} ({use.share:.0%})" for use in plan.limits)
    kind, words = "nothing", f"no limit binds: {every}"
    if most.share > 1 - BINDING:
        kind, words = "latency", f"of all limits, {LIMITS[most.name]} binds: {every}"
    elif memory > 1 - BINDING:
        kind, words = (
            "memory",
            f"memory binds: {memory:.0%} of the KV capacity is spoken for; {every}",
        )
    return Binding.model_validate(
        {
            "kind": kind,
            "latency_used": most.share,
            "memory_used": memory,
            "profile_used": edge,
            "words": words,
        }
    )


def edge_of(plan: Plan, table: ProfileTable, workload: Workload) -> float:
    """How far a plan reaches into the profile; 1 is its end."""
    schedule = plan.schedule
    match schedule, model_for(schedule, table, law_on(table, workload)):
        case RraSchedule(encode_batch=batch, encode_interval=interval), RraModel() as rra:
            return max(batch / max(1, rra.max_batch), rra.edge(batch, interval))
        case CraSchedule(pool=pool, chunk_tokens=chunk), CraModel() as cra:
            return cra.edge(pool, chunk)
        case WaaSchedule(encode_batch=batch, pool=pool), WaaModel() as waa:
            return waa.edge(batch, pool)
    raise AssertionError(schedule)
