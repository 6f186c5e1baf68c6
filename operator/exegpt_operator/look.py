"""Looks at a deployment and all that belongs to it; writes nothing. Blocks: the loop runs it in threads."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from exegpt_operator import names, talk
from exegpt_operator.api import Api, ApiRefused
from exegpt_operator.compare import key
from exegpt_operator.manifests import gateway, profiles
from exegpt_operator.manifests.images import Images
from exegpt_operator.manifests.pods import TOKEN_KEY
from exegpt_operator.manifests.workers import num_pods
from exegpt_operator.observed import (
    HISTOGRAM_FILE,
    HistogramRef,
    Lengths,
    Malformed,
    lengths,
    parse,
)
from exegpt_operator.planning import Question, plan_id, without_proof, workload_spec
from exegpt_operator.reading import (
    deployment_of,
    free_slots,
    managers_of,
    named_objects,
    pod_of,
    profile_of,
    refused_pods,
)
from exegpt_operator.reasons import Reason
from exegpt_operator.seen import PlanSeen, PodSeen, ProfileSeen, Refusal, Seen, ServingSeen
from exegpt_operator.times import seconds_of
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import Deployment, Histogram
from exegpt_planner.model_spec import parse_model_spec
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.serving import Serving
from exegpt_planner.strict import parse_json
from exegpt_planner.workload import Workload, read_workload

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
REMEMBERED = 128
PLAN_RETRY_S = 300.0  # until a search that failed is made again from the same inputs
INPUTS = f"{names.GROUP}/inputs"  # of a plan's ConfigMap
RUNNER_IMAGE = f"{names.GROUP}/runner-image"
WEIGHT_BYTES = f"{names.GROUP}/weight-bytes"
WHY = f"{names.GROUP}/why"
GENERATION = f"{names.GROUP}/generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen of a deployment, and what acting on it needs beside."""

    resource: Object
    seen: Seen
    question: Question | None = None
    plan_json: str = ""
    workload_json: str = "null"  # of the plan in force
    token: str = ""


class Looker:
    """Reads what decisions are functions of."""

    def __init__(self, api: Api, images: Images, *, sees_nodes: bool) -> None:
        self.api = api
        self._images = images
        self._sees_nodes = sees_nodes

    def deployment(self, namespace: str, name: str) -> Looked | None:
        """A deployment, or None if it is gone or going."""
        resource = self.api.get(names.DEPLOYMENT, namespace, name)
        if resource is None or "deletionTimestamp" in resource["metadata"]:
            return None
        resource = {"apiVersion": names.API_VERSION, "kind": names.DEPLOYMENT, **resource}
        metadata = resource["metadata"]
        deployment, problems = deployment_of(resource)
        now_s = time.time()
        seen = Seen(
            name=name,
            namespace=namespace,
            uid=metadata["uid"],
            generation=metadata["generation"],
            deployment=deployment,
            problems=problems,
            annotations=metadata.get("annotations", {}),
            status=resource.get("status", {}),
            refusal=_refusal(resource.get("status", {}), now_s),
            now_s=now_s,
            is_namespace_ending=is_ending(self.api, namespace),
        )
        if deployment is None:
            return Looked(resource=resource, seen=seen)
        return self._whole(resource, seen, deployment)

    def _whole(self, resource: Object, seen: Seen, deployment: Deployment) -> Looked:
        namespace = seen.namespace
        missing = tuple(
            (kind, name)
            for kind, name in named_objects(deployment.spec)
            if self.api.get(kind, namespace, name) is None
        )
        found, malformed = self._lengths(resource, deployment)
        plan, plan_map = self._plan(seen)
        children = self._children(seen)
        images = replace(self._images, runner=_pinned(plan, children, seen) or self._images.runner)
        profile, table_map = self._profile(namespace, deployment, images)
        question = _question(deployment, found, table_map)
        token = token_of(self.api, namespace, names.token(seen.name))
        pods = self._pods(seen)
        table = _table(table_map)
        workload_json = "null" if plan_map is None else plan_map["data"]["workload.json"]
        planned = _planned(workload_json, table_map)
        return Looked(
            resource=resource,
            question=question,
            plan_json="" if plan_map is None else plan_map["data"]["plan.json"],
            workload_json=workload_json,
            token=token,
            seen=replace(
                seen,
                missing=missing,
                runner_image=images.runner,
                lengths=found,
                malformed=malformed,
                profile=profile,
                plan=plan,
                inputs="" if question is None else question.inputs,
                has_token=bool(token),
                children=children,
                worker_pods=pods["worker"],
                gateway_pods=pods["gateway"],
                refused=self._refused(seen, children, pods),
                free_slots=self._free_slots(deployment, pods["worker"]),
                serving=_reports(pods["gateway"], token, planned),
                serving_json=_serving(deployment, plan, table, workload_json)
                or _serving_there(children, seen.name),
            ),
        )

    def _lengths(self, resource: Object, deployment: Deployment) -> tuple[Lengths | None, str]:
        annotations = resource["metadata"].get("annotations", {})
        try:
            histograms = {
                said.name: self._histogram(deployment, said.name)
                for name in (names.OBSERVED_INPUT, names.OBSERVED_OUTPUT)
                if name in annotations
                for said in [parse(name, annotations[name])]
                if isinstance(said, HistogramRef)
            }
            found = lengths(
                annotations, managers_of(resource), deployment.spec.workload, histograms
            )
        except Malformed as error:
            return None, str(error)
        return found, ""

    def _histogram(self, deployment: Deployment, name: str) -> Histogram | None:
        found = self.api.get("ConfigMap", deployment.metadata.namespace, name)
        text = (found or {}).get("data", {}).get(HISTOGRAM_FILE)
        if text is None:
            return None
        try:
            return parse_json(Histogram, text, source=f"ConfigMap {name}")
        except InvalidSpec as error:
            raise Malformed(f"ConfigMap {name}", error.problems) from None

    def _profile(
        self, namespace: str, deployment: Deployment, images: Images
    ) -> tuple[ProfileSeen | None, Object | None]:
        name = names.profile(profiles.profile_spec(deployment, images))
        resource = self.api.get(names.PROFILE, namespace, name)
        if resource is None:
            return None, None
        profile = profile_of(resource)
        table = None
        if profile.ready == "True":
            table = self.api.get("ConfigMap", namespace, profile.config_map)
        return profile, table

    def _plan(self, seen: Seen) -> tuple[PlanSeen | None, Object | None]:
        maps = self.api.list("ConfigMap", seen.namespace, names.selector(seen.name, "plan"))
        newest = max(maps, key=lambda each: revision_of(each["metadata"]["name"]), default=None)
        if newest is None:
            return None, None
        try:
            return _plan_seen(newest), newest
        except (InvalidSpec, KeyError, ValueError) as error:  # of another version, or by hand
            where = {"namespace": seen.namespace, "name": newest["metadata"]["name"]}
            log.warning("a plan on file is none", extra={"problem": str(error), "about": where})
            return None, None

    def _pods(self, seen: Seen) -> dict[str, tuple[PodSeen, ...]]:
        now_s = time.time()
        return {
            component: tuple(
                pod_of(pod, now_s)
                for pod in self.api.list(
                    "Pod", seen.namespace, names.selector(seen.name, component)
                )
            )
            for component in ("worker", "gateway")
        }

    def _children(self, seen: Seen) -> dict[str, Object]:
        wanted = [
            ("StatefulSet", names.workers(seen.name)),
            ("StatefulSet", names.gateway(seen.name)),
            ("Service", names.workers(seen.name)),
            ("Service", names.endpoint(seen.name)),
            ("ConfigMap", names.serving(seen.name)),
        ]
        found = {key(kind, n): self.api.get(kind, seen.namespace, n) for kind, n in wanted}
        return {
            where: {**child, "kind": where.partition("/")[0]}
            for where, child in found.items()
            if child is not None
        }

    def _refused(
        self,
        seen: Seen,
        children: Mapping[str, Object],
        pods: Mapping[str, tuple[PodSeen, ...]],
    ) -> str:
        """Why StatefulSets cannot make pods that they lack: their conditions do not say, their events do."""
        for component, name in (("worker", names.workers), ("gateway", names.gateway)):
            owner = children.get(key("StatefulSet", name(seen.name)))
            if owner is None or len(pods[component]) >= owner["spec"].get("replicas", 1):
                continue
            fields = {"involvedObject.uid": owner["metadata"]["uid"], "reason": "FailedCreate"}
            events = self.api.list("Event", seen.namespace, fields=fields)
            if words := refused_pods(owner, events):
                return words
        return ""

    def _free_slots(self, deployment: Deployment, pods: tuple[PodSeen, ...]) -> int | None:
        held = [pod for pod in pods if pod.is_scheduled]
        if not self._sees_nodes or len(held) >= num_pods(deployment):
            return None
        cluster = deployment.spec.cluster
        return free_slots(
            self.api.list("Node"),
            self.api.list("Pod"),
            resource=cluster.resource_name,
            each=cluster.gpus_per_pod,
            own={pod.uid for pod in pods},
        )


def is_ending(api: Api, namespace: str) -> bool:
    """Whether the namespace is being deleted."""
    try:
        found = api.get("Namespace", None, namespace)
    except ApiRefused as error:
        if error.status == 403:
            return False  # a namespaced install may not look; writes will be refused instead
        raise
    return found is not None and found.get("status", {}).get("phase") == "Terminating"


def token_of(api: Api, namespace: str, name: str) -> str:
    """The token in a Secret; empty if there is none yet."""
    secret = api.get("Secret", namespace, name)
    return "" if secret is None else base64.b64decode(secret["data"][TOKEN_KEY]).decode()


def _pinned(plan: PlanSeen | None, children: Mapping[str, Object], seen: Seen) -> str:
    """The image of the plan in force, while pods run it: another operator, with another image, restarts nothing."""
    there = children.get(key("StatefulSet", names.workers(seen.name)))
    runs = there is not None and there["spec"].get("replicas", 1)
    return plan.runner_image if plan is not None and runs else ""


def _refusal(status: Object, now_s: float) -> Refusal | None:
    """The planner's last word; a failure of its own, other than a plain no, is forgotten after a while."""
    if (said := status.get("refusal")) is None:
        return None
    found = Refusal(**said)
    is_over = now_s - seconds_of(found.time) >= PLAN_RETRY_S
    return None if found.reason == Reason.PLAN_FAILED and is_over else found


def revision_of(name: str) -> int:
    """Of the plan in a ConfigMap of this name."""
    return int(name.rpartition("-")[2])


def _question(
    deployment: Deployment, found: Lengths | None, table: Object | None
) -> Question | None:
    if found is None or table is None:
        return None
    spec, memory = deployment.spec, json.loads(table["data"]["memory.json"])
    workload = found.workload
    return Question(
        table=table["data"]["table.json"],
        model=table["data"]["model.json"],
        workload="null" if workload is None else workload.model_dump_json(by_alias=True),
        bound_s=spec.latency_bound.seconds,
        percentile_length=spec.latency_bound.percentile_length,
        device_bytes=memory["device_bytes"],
        reserve_bytes=memory["reserve_bytes"],
        strategies=spec.scheduling.strategies,
        workers=spec.cluster.gpus,
    )


def _table(table_map: Object | None) -> ProfileTable | None:
    return None if table_map is None else _read_table(table_map["data"]["table.json"])


def _planned(workload_json: str, table_map: Object | None) -> Workload | None:
    if table_map is None:
        return None
    return _read_lengths(workload_json, table_map["data"]["model.json"])


def _plan_seen(plan_map: Object) -> PlanSeen:
    metadata, text = plan_map["metadata"], plan_map["data"]["plan.json"]
    said = metadata["annotations"]
    return PlanSeen(
        id=plan_id(text),
        revision=revision_of(metadata["name"]),
        inputs=said[INPUTS],
        plan=_read_plan(text),
        runner_image=said[RUNNER_IMAGE],
        weight_bytes=int(said[WEIGHT_BYTES]),
        why=said[WHY],
        generation=int(said[GENERATION]),
        config_map=metadata["name"],
    )


# What lies in immutable ConfigMaps need not be read again at each look.


@lru_cache(maxsize=REMEMBERED)
def _read_plan(text: str) -> Plan:
    return parse_json(Plan, text, source="a plan on file")


@lru_cache(maxsize=REMEMBERED)
def _read_table(text: str) -> ProfileTable:
    return parse_json(ProfileTable, text, source="a profile's table")


@lru_cache(maxsize=REMEMBERED)
def _read_lengths(workload_json: str, model_json: str) -> Workload:
    model = parse_model_spec(model_json, source="a profile's model")
    return read_workload(workload_spec(workload_json), model.context)


def _serving(
    deployment: Deployment, plan: PlanSeen | None, table: ProfileTable | None, workload_json: str
) -> str:
    """What gateways start from; empty while the profile, and with it the table, is being measured."""
    if plan is None or table is None:
        return ""
    found = Serving(
        **gateway.serving_parts(deployment),
        plan_id=plan.id,
        plan=without_proof(plan.plan),
        table=table,
        workload=workload_spec(workload_json),
    )
    return found.model_dump_json()


def _serving_there(children: Mapping[str, Object], name: str) -> str:
    """What gateways start from so far: it stays while another profile is being measured."""
    there = children.get(key("ConfigMap", names.serving(name)), {})
    return str(there.get("data", {}).get(gateway.SERVING_FILE, ""))


def _reports(
    pods: tuple[PodSeen, ...], token: str, planned: Workload | None
) -> dict[str, ServingSeen]:
    found = {}
    for pod in pods:
        if pod.ip and not pod.is_deleting and token:
            try:
                found[pod.name] = talk.report(pod.ip, token, planned)
            except talk.Silent:
                continue  # its absence says so
    return found
