"""The decision log: what was planned from what, what it changes, what it promises, and whether that was kept.

Pure: lines are functions of what lies in the cluster, ids included, so that a line written after a restart still
belongs to the one before it. The loop writes them (docs/operator.md has every field).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exegpt_operator import names
from exegpt_operator.compare import is_as_wanted, key
from exegpt_operator.manifests import workers
from exegpt_operator.manifests.images import Images
from exegpt_operator.planning import Answer, plan_id
from exegpt_operator.seen import PlanSeen, Seen
from exegpt_operator.status import summary
from exegpt_operator.watching import counted
from exegpt_planner.drift_moves import Kind, kind_of
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import Schedule
from exegpt_planner.strict import parse_json

Line = dict[str, Any]
_SAYS = ("True", "False")  # of BoundMet: enough answers were seen to say


def change_of(before: Schedule | None, now: Schedule, *, keeps_pods: bool) -> Kind:
    """What a new schedule needs: nothing, other knobs in place, other roles or stages on the same pods, or new pods."""
    if before is None or not keeps_pods:
        return "pods"
    return kind_of(before, now)


def keeps_pods(seen: Seen, images: Images) -> bool:
    """Whether the worker pods that are there are those that are wanted."""
    there = seen.children.get(key("StatefulSet", names.workers(seen.name)))
    if seen.deployment is None or seen.plan is None or there is None:
        return False
    wanted = workers.stateful_set(
        seen.deployment,
        replace(images, runner=seen.runner_image),
        replicas=workers.num_pods(seen.deployment),
        weight_bytes=seen.plan.weight_bytes,
    )
    return is_as_wanted(wanted, there)


def planned(seen: Seen, images: Images, answer: Answer, *, revision: int, why: str) -> Line:
    """The line of a plan that is on file now as `revision`."""
    plan = parse_json(Plan, answer.plan, source="a new plan")
    before = None if seen.plan is None else seen.plan.plan.schedule
    found = plan_id(answer.plan)
    return {
        "decision": _decision(revision, found),
        "inputs": answer.inputs,
        "why": why,
        "answer": found,
        "strategy": summary(plan.schedule),
        "change": change_of(before, plan.schedule, keeps_pods=keeps_pods(seen, images)),
        "expected": _expected(plan),
    }


def refused(answer: Answer, *, why: str) -> Line:
    """The line of a question that has no plan."""
    return {
        "decision": f"refused-{answer.inputs}",
        "inputs": answer.inputs,
        "why": why,
        "answer": answer.reason,
        "problem": answer.message,
        "change": "keep",
    }


def measured(seen: Seen, status: Mapping[str, Any]) -> Line | None:
    """The line that holds a plan against its answers, as soon as there are enough: when BoundMet is known."""
    plan, now = seen.plan, _bound_met(status.get("conditions", ()))
    if plan is None or now not in _SAYS or _bound_met(seen.status.get("conditions", ())) in _SAYS:
        return None
    kept, answers = counted(seen.serving.values())
    return {
        "decision": decision_of(plan),
        "inputs": plan.inputs,
        "answer": plan.id,
        "expected": _expected(plan.plan),
        "measured": {
            "boundSeconds": plan.plan.bound.seconds,
            "answers": answers,
            "kept": kept,
            "share": round(kept / max(answers, 1), 4),
            "isMet": now == "True",
        },
    }


def decision_of(plan: PlanSeen) -> str:
    """The id of the decision that made this plan."""
    return _decision(plan.revision, plan.id)


def _decision(revision: int, found: str) -> str:
    return f"{revision}-{found}"


def _expected(plan: Plan) -> Line:
    return {
        "seconds": round(plan.prediction.promised_s, 3),
        "queriesPerSecond": round(plan.prediction.queries_per_s, 3),
    }


def _bound_met(conditions: Sequence[Mapping[str, Any]]) -> str:
    return next((str(c["status"]) for c in conditions if c["type"] == "BoundMet"), "Unknown")
