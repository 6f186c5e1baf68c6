"""Whether devices are asked for now: all that a deployment needs, or none, so that none is held in vain."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from exegpt_operator.causes import Cause, worst
from exegpt_operator.reasons import Reason, reason_of
from exegpt_operator.seen import PodSeen, Seen
from exegpt_operator.times import rfc3339, seconds_of

UNSCHEDULED_S = 20.0  # until what other pods hold is given back, as one of them fits nowhere
RETRY_S = 60.0  # until devices are asked for again


@dataclass(frozen=True, slots=True)
class Room:
    """How many whole replicas are to hold devices, and why not all of them; when they were last asked for in vain."""

    replicas: int
    lacks: Cause | None
    attempt: str  # RFC 3339, empty for never


def room(seen: Seen, attempt: str) -> Room:
    """Replicas that there is room for; those whose pods all have their devices keep them whatever is asked for."""
    assert seen.deployment is not None, "validated first"
    spec = seen.deployment.spec
    each = spec.cluster.gpus // spec.cluster.gpus_per_pod  # pods of a replica
    pods = [pod for pod in seen.worker_pods if not pod.is_deleting]
    placed = {ordinal_of(pod) for pod in pods if pod.is_scheduled}
    whole = next(n for n in count() if not placed.issuperset(range(n * each, (n + 1) * each)))
    held = min(whole, spec.replicas)
    stuck = [
        pod
        for pod in pods
        if not pod.is_scheduled and pod.unscheduled_because and pod.age_s >= UNSCHEDULED_S
    ]
    if stuck:
        return Room(held, worst(stuck, spec.cluster.resource_name), rfc3339(seen.now_s))
    if seen.free_slots is not None and seen.free_slots < spec.replicas * each:
        slot = f"{spec.cluster.gpus_per_pod} {spec.cluster.resource_name}"
        words = f"{spec.replicas * each} pods of {slot} are needed, and nodes have room for {seen.free_slots}."
        fitting = min(spec.replicas, seen.free_slots // each)
        return Room(fitting, (Reason.INSUFFICIENT_GPUS, words), attempt)
    is_asked = len(pods) > held * each  # some are on their way
    is_soon = bool(attempt) and seen.now_s - seconds_of(attempt) < RETRY_S
    if held < spec.replicas and is_soon and not is_asked:
        return Room(held, _said_last(seen, attempt), attempt)
    return Room(spec.replicas, None, attempt)


def ordinal_of(pod: PodSeen) -> int:
    """Of a StatefulSet's pod."""
    return int(pod.name.rpartition("-")[2])


def _said_last(seen: Seen, attempt: str) -> Cause:
    """Why the last attempt was in vain."""
    for each in seen.status.get("conditions", []):
        if each["type"] == "WorkersReady" and each["reason"] in (
            Reason.UNSCHEDULABLE,
            Reason.INSUFFICIENT_GPUS,
        ):
            return reason_of(each["reason"]), each["message"]
    return Reason.INSUFFICIENT_GPUS, f"The last attempt was at {attempt}."
