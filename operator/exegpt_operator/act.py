"""Does what was decided, in order; each action is safe to repeat. Blocks: the loop runs it in threads."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from exegpt_operator import names, talk
from exegpt_operator.actions import (
    Action,
    Annotate,
    Apply,
    DeletePod,
    Emit,
    LabelPod,
    MakeToken,
    Steer,
)
from exegpt_operator.api import Api, ApiRefused
from exegpt_operator.look import (
    GENERATION,
    INPUTS,
    RUNNER_IMAGE,
    WEIGHT_BYTES,
    WHY,
    Looked,
    revision_of,
)
from exegpt_operator.manifests.pods import TOKEN_KEY
from exegpt_operator.planning import Answer, Question
from exegpt_operator.status import HISTORY
from exegpt_operator.times import rfc3339
from exegpt_planner.model_spec import parse_model_spec

Object = Mapping[str, Any]
TOKEN_BYTES = 32
EVENT_EVERY_S = 60  # one of a reason and a deployment at most


class Actor:
    """Carries decisions out."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def do(self, resource: Object, action: Action, *, now_s: float) -> None:
        """One action on behalf of `resource`; raises `ApiRefused`."""
        namespace = resource["metadata"]["namespace"]
        match action:
            case Apply():
                self._api.apply(
                    _owned(action.object, resource) if action.is_owned else action.object
                )
            case MakeToken():
                self._api.create(_owned(_token(action.name, namespace), resource))
            case DeletePod():
                self._api.delete("Pod", namespace, action.name, uid=action.uid)
            case LabelPod():
                self._api.apply(_label(action, namespace), manager=f"{names.FIELD_MANAGER}-roles")
            case Annotate():
                self._api.apply(
                    _annotated(resource, action.annotations), manager=names.DETECTOR, force=False
                )
            case Emit():
                self._api.create(_event(resource, action, now_s))

    def steer(self, looked: Looked, action: Steer) -> None:
        """Has a gateway work by the plan on file; raises `talk.Silent`."""
        pod = next(each for each in looked.seen.gateway_pods if each.name == action.pod)
        talk.steer(
            pod.ip,
            looked.token,
            plan=looked.plan_json,
            plan_id=action.plan_id,
            workload=looked.workload_json,
        )

    def restart_gateway(self, looked: Looked, action: Steer) -> None:
        """Has a gateway's pod made again, which starts by the plan on file."""
        pod = next(each for each in looked.seen.gateway_pods if each.name == action.pod)
        self._api.delete("Pod", looked.seen.namespace, pod.name, uid=pod.uid)

    def keep_plan(
        self, looked: Looked, question: Question, answer: Answer, *, image: str, why: str
    ) -> int:
        """Puts a plan on file as the next revision, which it returns, and removes those beyond the history."""
        seen = looked.seen
        on_file = [
            plan["metadata"]["name"]
            for plan in self._api.list(
                "ConfigMap", seen.namespace, names.selector(seen.name, "plan")
            )
        ]
        revision = 1 + max(
            map(revision_of, on_file), default=0
        )  # also of those that cannot be read
        model = parse_model_spec(question.model, source="the profile's model")
        dtype = json.loads(question.table)["key"]["dtype"]
        wanted = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": names.plan(seen.name, revision),
                "namespace": seen.namespace,
                "labels": names.labels(seen.name, "plan"),
                "annotations": {
                    INPUTS: answer.inputs,
                    RUNNER_IMAGE: image,
                    WHY: why,
                    GENERATION: str(seen.generation),
                    WEIGHT_BYTES: str(model.weight_bytes(dtype)),
                },
            },
            "immutable": True,
            "data": {"plan.json": answer.plan, "workload.json": question.workload},
        }
        self._api.create(_owned(wanted, looked.resource))
        for name in on_file:
            if revision_of(name) <= revision - HISTORY:
                self._api.delete("ConfigMap", seen.namespace, name)
        return revision

    def keep_status(self, resource: Object, status: Mapping[str, Any]) -> None:
        """Writes a status; a resource that has gone since it was looked at, or is another one, needs none."""
        try:
            self._api.apply_status(resource, status)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise


def _owned(wanted: Object, owner: Object) -> dict[str, Any]:
    reference = {
        "apiVersion": names.API_VERSION,
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {**wanted, "metadata": {**wanted["metadata"], "ownerReferences": [reference]}}


def _token(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": names.labels(name.removesuffix("-token"), "token"),
        },
        "type": "Opaque",
        "stringData": {TOKEN_KEY: secrets.token_urlsafe(TOKEN_BYTES)},
    }


def _label(action: LabelPod, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": action.name,
            "namespace": namespace,
            "uid": action.uid,  # this one, or none
            "labels": {names.ROLE_LABEL: action.role},
        },
    }


def _annotated(resource: Object, annotations: Mapping[str, str]) -> dict[str, Any]:
    metadata = resource["metadata"]
    return {
        "apiVersion": names.API_VERSION,
        "kind": resource["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "annotations": dict(annotations),
        },
    }


def _event(resource: Object, action: Emit, now_s: float) -> dict[str, Any]:
    """An event whose name says object, reason and minute: a second one of them is there already, whoever made it."""
    metadata, time = resource["metadata"], rfc3339(now_s)
    same = {
        "uid": metadata["uid"],
        "reason": action.reason,
        "minute": int(now_s // EVENT_EVERY_S),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{names.digest(same)}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": resource["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "reason": action.reason,
        "message": action.message[:1024],
        "type": action.type,
        "source": {"component": names.FIELD_MANAGER},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
