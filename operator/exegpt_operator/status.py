"""The status of a deployment beside its conditions: plan, profile, workload, history. Rounded for eyes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exegpt_operator import names
from exegpt_operator.manifests.workers import num_pods
from exegpt_operator.observed import Lengths
from exegpt_operator.seen import PlanSeen, Seen
from exegpt_operator.times import rfc3339
from exegpt_planner.manifest import LengthSpec
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule

HISTORY = 10


def summary(schedule: Schedule) -> str:
    """A schedule in a few words."""
    match schedule:
        case RraSchedule():
            return f"RRA B_E={schedule.encode_batch} N_D={schedule.encode_interval}{_units(schedule.units)}"
        case CraSchedule():
            return f"CRA B_D={schedule.pool} C={schedule.chunk_tokens}{_units(schedule.units)}"
    return f"WAA {schedule.encoders}+{schedule.decoders} B_E={schedule.encode_batch} B_D={schedule.pool}"


def in_words(plan: PlanSeen) -> str:
    """A plan and what it promises, in a sentence."""
    expected = plan.plan.prediction
    return (
        f"Plan {plan.id}: {summary(plan.plan.schedule)}; an answer of {plan.plan.length_tokens} tokens within "
        f"{expected.promised_s:.2f} s of {plan.plan.bound.seconds:g} s, {expected.tokens_per_s:.0f} tokens/s a replica."
    )


def why(seen: Seen) -> str:
    """Why a plan is made now."""
    if seen.plan is None:
        return "first plan"
    if seen.plan.generation != seen.generation:
        return "the spec has changed"
    before = seen.status.get("profile", {}).get("sha256")
    if seen.profile is not None and before not in (None, seen.profile.sha256):
        return "the profile has changed"
    source = "" if seen.lengths is None else seen.lengths.source
    return {"Annotation": "annotated lengths", "Observed": "observed lengths have drifted"}.get(
        source, "the lengths have changed"
    )


def _units(units: int) -> str:
    return f" x{units}" if units > 1 else ""


def at_rest(
    seen: Seen, *, conditions: Sequence[Mapping[str, Any]], times: Mapping[str, str]
) -> dict[str, Any]:
    """The whole status; equal to the one before where nothing has changed. Of `times`, those that are."""
    status: dict[str, Any] = {
        "observedGeneration": seen.generation,
        "conditions": list(conditions),
        **{name: time for name, time in times.items() if time},
    }
    deployment = seen.deployment
    if deployment is not None:
        wanted = num_pods(deployment)
        ready = [pod for pod in seen.worker_pods if pod.is_ready and not pod.is_deleting]
        status |= {
            "servedName": deployment.spec.model.served_name,
            "endpoint": f"http://{names.endpoint(seen.name)}.{seen.namespace}.svc/v1",
            "replicas": deployment.spec.replicas,
            "readyReplicas": len(ready) * deployment.spec.replicas // wanted,
            "selector": ",".join(
                f"{label}={value}"
                for label, value in sorted(names.selector(seen.name, "worker").items())
            ),
        }
    if seen.profile is not None and seen.profile.sha256:
        profile = seen.profile
        status["profile"] = {
            "name": profile.name,
            "configMap": profile.config_map,
            "sha256": profile.sha256,
        }
    if seen.refusal is not None:
        status["refusal"] = {
            "inputs": seen.refusal.inputs,
            "reason": seen.refusal.reason,
            "message": seen.refusal.message,
        }
        if seen.refusal.time:
            status["refusal"]["time"] = seen.refusal.time
    if seen.plan is not None:
        status["plan"] = _plan(seen, seen.plan)
        status["history"] = _history(seen, seen.plan)
    if seen.lengths is not None:
        status["workload"] = _workload(seen, seen.lengths)
    return status


def without_counts(status: Mapping[str, Any]) -> dict[str, Any]:
    """What of a status is news: all but what a busy gateway counts."""
    workload = {
        name: value
        for name, value in status.get("workload", {}).items()
        if name not in ("observedQueries", "drift")
    }
    conditions = [
        {**each, "message": ""} if each["type"] in ("BoundMet", "Drifted") else each
        for each in status.get("conditions", [])
    ]
    return {**status, "workload": workload, "conditions": conditions}


def _plan(seen: Seen, plan: PlanSeen) -> dict[str, Any]:
    prediction, schedule = plan.plan.prediction, plan.plan.schedule
    policy = "" if seen.deployment is None else seen.deployment.spec.scheduling.plan_policy
    approved = seen.annotations.get(names.APPROVED_PLAN) == plan.id
    found: dict[str, Any] = {
        "id": plan.id,
        "revision": plan.revision,
        "configMap": plan.config_map,
        "isApproved": policy == "Auto" or (policy == "Review" and approved),
        "strategy": summary(schedule),
        "predictedSeconds": round(prediction.promised_s, 3),
        "predictedQueriesPerSecond": round(prediction.queries_per_s, 3),
        "runnerImage": plan.runner_image,
    }
    if isinstance(schedule, RraSchedule):
        found["decodeIterations"] = schedule.encode_interval
    return found


def _history(seen: Seen, plan: PlanSeen) -> list[Mapping[str, Any]]:
    before: list[Mapping[str, Any]] = list(seen.status.get("history", []))
    if before and before[0]["id"] == plan.id:
        return before
    newest = {
        "revision": plan.revision,
        "id": plan.id,
        "strategy": summary(plan.plan.schedule),
        "reason": plan.why,
        "time": rfc3339(seen.now_s),
    }
    return [newest, *before][:HISTORY]


def _workload(seen: Seen, lengths: Lengths) -> dict[str, Any]:
    found: dict[str, Any] = {"source": lengths.source}
    if lengths.set_by:
        found["setBy"] = lengths.set_by
    if lengths.workload is not None:
        found |= {"input": _law(lengths.workload.input), "output": _law(lengths.workload.output)}
    if seen.serving:
        most = max(seen.serving.values(), key=lambda each: each.num_queries)
        threshold = 1.0 if seen.deployment is None else seen.deployment.spec.drift.threshold
        found |= {
            "observedQueries": most.num_queries,
            "drift": f"{most.drift / threshold:.2f}",
        }
    return found


def _law(law: LengthSpec | None) -> str:
    if law is None:
        return ""
    if law.histogram is not None:
        lengths, counts = law.histogram.lengths, law.histogram.counts
        mean = sum(a * b for a, b in zip(lengths, counts, strict=True)) / sum(counts)
        return f"mean={mean:.1f} max={max(lengths)}, a histogram of {len(lengths)} lengths"
    mean, std, longest = law.moments
    return f"mean={mean:g} std={std:g} max={longest}"
