"""Whether devices are asked for now: all that a deployment needs, or none, so that none is held in vain."""

from __future__ import annotations

from exegpt_operator.causes import Cause, worst
from exegpt_operator.reasons import Reason, reason_of
from exegpt_operator.seen import Seen
from exegpt_operator.times import rfc3339, seconds_of

UNSCHEDULED_S = 20.0  # until what other pods hold is given back, as one of them fits nowhere
RETRY_S = 60.0  # until devices are asked for again


def in_vain(seen: Seen, wanted: int, attempt: str) -> tuple[Cause | None, str]:
    """Why no device is to be held now, None: ask for those of `wanted` pods; and when they were last asked for in vain.

    `attempt` is that time so far, RFC 3339, empty for never.
    """
    assert seen.deployment is not None, "validated first"
    cluster = seen.deployment.spec.cluster
    stuck = [
        pod
        for pod in seen.worker_pods
        if not pod.is_scheduled and pod.unscheduled_because and pod.age_s >= UNSCHEDULED_S
    ]
    if stuck:
        return worst(stuck, cluster.resource_name), rfc3339(seen.now_s)
    if seen.free_slots is not None and seen.free_slots < wanted:
        each = f"{cluster.gpus_per_pod} {cluster.resource_name}"
        words = f"{wanted} pods of {each} are needed, and nodes have room for {seen.free_slots}."
        return (Reason.INSUFFICIENT_GPUS, words), attempt
    is_held = any(pod.is_scheduled for pod in seen.worker_pods)
    if attempt and not is_held and seen.now_s - seconds_of(attempt) < RETRY_S:
        return _said_last(seen, attempt), attempt
    return None, attempt


def _said_last(seen: Seen, attempt: str) -> Cause:
    """Why the last attempt was in vain."""
    for each in seen.status.get("conditions", []):
        if each["type"] == "WorkersReady" and each["reason"] in (
            Reason.UNSCHEDULABLE,
            Reason.INSUFFICIENT_GPUS,
        ):
            return reason_of(each["reason"]), each["message"]
    return Reason.INSUFFICIENT_GPUS, f"The last attempt was at {attempt}."
