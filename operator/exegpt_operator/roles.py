"""Which pod plays which role in a plan: workers of a replica are encoders first, then decoders; pods are slices."""

from __future__ import annotations

from exegpt_operator.seen import Role
from exegpt_planner.manifest import Cluster
from exegpt_planner.schedule import Schedule, WaaSchedule


def role_of(schedule: Schedule, cluster: Cluster, pod: int) -> Role:
    """The role of the pod of that ordinal; `both` where phases alternate, or where it holds workers of each."""
    if not isinstance(schedule, WaaSchedule):
        return "both"
    first = pod * cluster.gpus_per_pod % cluster.gpus
    last = first + cluster.gpus_per_pod - 1
    if last < schedule.encoders:
        return "encoder"
    return "decoder" if first >= schedule.encoders else "both"
