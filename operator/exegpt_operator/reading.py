"""From the API server's objects to what a decision is a function of; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exegpt_operator import names
from exegpt_operator.compare import quantity
from exegpt_operator.seen import ContainerSeen, PodSeen, ProfileSeen
from exegpt_operator.times import seconds_of
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import Deployment, DeploymentSpec
from exegpt_planner.pod_template import PodTemplate
from exegpt_planner.strict import parse

Object = Mapping[str, Any]


def deployment_of(resource: Object) -> tuple[Deployment | None, tuple[str, ...]]:
    """The deployment, or what is wrong with it. Metadata that only the cluster knows is left out."""
    metadata = resource["metadata"]
    data = {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": resource.get("spec", {}),
    }
    try:
        found = parse(Deployment, data, source=metadata["name"])
    except InvalidSpec as error:
        return None, error.problems
    problems = tuple(_unservable(found.spec))
    return (None, problems) if problems else (found, ())


def _unservable(spec: DeploymentSpec) -> Iterable[str]:
    """What a cluster cannot serve of a manifest that one machine could."""
    if spec.model.scheme not in ("hf", "pvc"):
        yield f"spec.model.uri: {spec.model.uri} is for one machine; use pvc:// or hf://"
    if spec.model.dtype == "float16":
        yield "spec.model.dtype: float16 is not computed yet; use bfloat16"
    if spec.workload is not None and spec.workload.trace is not None:
        yield "spec.workload.trace: a file, which is for one machine; give input and output"


def managers_of(resource: Object) -> dict[str, str]:
    """Who set each annotation."""
    found: dict[str, str] = {}
    for entry in resource["metadata"].get("managedFields", []):
        fields = entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:annotations", {})
        found |= {
            name.removeprefix("f:"): entry["manager"] for name in fields if name.startswith("f:")
        }
    return found


def named_objects(spec: DeploymentSpec) -> list[tuple[str, str]]:
    """(kind, name) of every object that the spec refers to."""
    found = []
    if spec.model.scheme == "pvc":
        found.append(("PersistentVolumeClaim", spec.model.location.partition("/")[0]))
    found += _of_template(spec.pod_template)
    return list(dict.fromkeys(found))


def _of_template(template: PodTemplate) -> Iterable[tuple[str, str]]:
    for variable in template.env:
        if (source := variable.value_from) is None:
            continue
        if source.secret_key_ref is not None:
            yield "Secret", source.secret_key_ref.name
        if source.config_map_key_ref is not None:
            yield "ConfigMap", source.config_map_key_ref.name


def pod_of(pod: Object, now_s: float) -> PodSeen:
    """A pod, as far as decisions depend on it."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {"status": "Unknown"})
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_scheduled=scheduled["status"] != "False",
        unscheduled_because=scheduled.get("message", "") if scheduled["status"] == "False" else "",
        age_s=now_s - seconds_of(metadata.get("creationTimestamp", "")),
        is_deleting="deletionTimestamp" in metadata,
        role=metadata.get("labels", {}).get(names.ROLE_LABEL, ""),
        revision=metadata.get("labels", {}).get("controller-revision-hash", ""),
        containers=tuple(
            _container(each)
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in status.get(kind, [])
        ),
    )


def _container(status: Object) -> ContainerSeen:
    waiting = status.get("state", {}).get("waiting", {})
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get(
        "terminated"
    )
    is_init_done = (ended or {}).get("reason") == "Completed"
    return ContainerSeen(
        name=status["name"],
        is_ready=bool(status.get("ready")) or is_init_done,
        restarts=int(status.get("restartCount", 0)),
        waiting=waiting.get("reason", ""),
        ended=(ended or {}).get("reason", ""),
        message=waiting.get("message", "") or (ended or {}).get("message", ""),
    )


def refused_pods(owner: Object, events: Iterable[Object]) -> str:
    """What admission or quota said to the latest pod that a StatefulSet was to make, since we asked for it."""
    asked_s = max(
        (
            seconds_of(entry.get("time", ""))
            for entry in owner["metadata"].get("managedFields", [])
            if entry["manager"] == names.FIELD_MANAGER
        ),
        default=0.0,
    )
    since = [each for each in events if seconds_of(each.get("lastTimestamp") or "") >= asked_s]
    latest = max(since, key=lambda each: seconds_of(each["lastTimestamp"]), default=None)
    return "" if latest is None else str(latest["message"])


def profile_of(resource: Object) -> ProfileSeen:
    """A profile, as a deployment depends on it."""
    status = resource.get("status", {})
    ready = next((each for each in status.get("conditions", []) if each["type"] == "Ready"), None)
    return ProfileSeen(
        name=resource["metadata"]["name"],
        ready=ready["status"] if ready else "Unknown",
        reason=ready["reason"] if ready else "Pending",
        message=ready["message"] if ready else "",
        config_map=status.get("configMap", ""),
        sha256=status.get("sha256", ""),
        device=status.get("device", ""),
    )


def free_slots(
    nodes: Sequence[Object], pods: Sequence[Object], *, resource: str, each: int, own: set[str]
) -> int:
    """Pods of `each` devices that ready nodes have room for; pods whose uid is in `own` count as gone."""
    used: dict[str, float] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName", "")
        is_over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if node and not is_over and pod["metadata"]["uid"] not in own:
            used[node] = used.get(node, 0.0) + _requested(pod, resource)
    free = 0
    for node in nodes:
        allocatable = _quantity(node.get("status", {}).get("allocatable", {}).get(resource, "0"))
        left = allocatable - used.get(node["metadata"]["name"], 0.0)
        if _takes_pods(node):
            free += max(0, math.floor(left / each + 1e-9))
    return free


def _takes_pods(node: Object) -> bool:
    conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and not node.get("spec", {}).get("unschedulable")


def _requested(pod: Object, resource: str) -> float:
    return sum(
        _quantity(container.get("resources", {}).get("requests", {}).get(resource, "0"))
        for container in pod["spec"]["containers"]
    )


def _quantity(text: str | float) -> float:
    return quantity(str(text)) or 0.0
