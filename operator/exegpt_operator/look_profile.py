"""Looks at a profile and all that belongs to it; writes nothing. Blocks: the loop runs it in threads."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exegpt_operator import names, talk
from exegpt_operator.api import Api
from exegpt_operator.compare import key
from exegpt_operator.decide_profile import ProfileState, Progress, table_name
from exegpt_operator.look import is_ending, token_of
from exegpt_operator.manifests import profiles
from exegpt_operator.manifests.images import Images
from exegpt_operator.reading import deployment_of, pod_of, refused_pods
from exegpt_operator.seen import PodSeen

Object = Mapping[str, Any]


def look_at_profile(
    api: Api, images: Images, namespace: str, name: str
) -> tuple[ProfileState, str] | None:
    """A profile and its token, or None if it is gone or going."""
    resource = api.get(names.PROFILE, namespace, name)
    if resource is None or "deletionTimestamp" in resource["metadata"]:
        return None
    resource = {"apiVersion": names.API_VERSION, "kind": names.PROFILE, **resource}
    token = token_of(api, namespace, names.token(name))
    job = api.get("Job", namespace, name)
    config = api.get("ConfigMap", namespace, f"{name}-job")
    now_s = time.time()
    pods = tuple(
        pod_of(pod, now_s) for pod in api.list("Pod", namespace, names.selector(name, "profile"))
    )
    children = {key("Job", name): job, key("ConfigMap", f"{name}-job"): config}
    return (
        ProfileState(
            resource=resource,
            manifest=_manifest(api, images, namespace, resource),
            table=api.get("ConfigMap", namespace, table_name(name)),
            has_token=bool(token),
            children={where: child for where, child in children.items() if child is not None},
            job_failure=_job_failure(job),
            refused="" if job is None or pods else _refused(api, job),
            pods=pods,
            progress=_progress(pods, token),
            is_namespace_ending=is_ending(api, namespace),
            now_s=now_s,
        ),
        token,
    )


def _manifest(api: Api, images: Images, namespace: str, profile: Object) -> str:
    """The deployment that a profile is measured for: one that plans by it, or else one of its own model."""
    images = replace(images, runner=profile["spec"].get("image", images.runner))
    for resource in api.list(names.DEPLOYMENT, namespace):
        deployment, _ = deployment_of(resource)
        if deployment is None:
            continue
        spec = profiles.profile_spec(deployment, images)
        if names.profile(spec) == profile["metadata"]["name"]:
            return deployment.model_dump_json(by_alias=True, exclude_none=True)
    spec = profile["spec"]
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.DEPLOYMENT,
        "metadata": {"name": "profile"},
        "spec": {
            "model": spec["model"],
            "cluster": {"gpus": spec["workers"], "resourceName": spec["resourceName"]},
            "latencyBound": {"seconds": 1e6},
        },
    }
    return json.dumps(manifest)


def _progress(pods: tuple[PodSeen, ...], token: str) -> dict[str, Progress]:
    found = {}
    for pod in pods:
        if pod.ip and pod.phase == "Running" and token:
            try:
                found[pod.name] = talk.progress(pod.ip, token)
            except talk.Silent:
                continue
    return found


def _refused(api: Api, job: Object) -> str:
    fields = {"involvedObject.uid": job["metadata"]["uid"], "reason": "FailedCreate"}
    return refused_pods(job, api.list("Event", job["metadata"]["namespace"], fields=fields))


def _job_failure(job: Object | None) -> str:
    for condition in (job or {}).get("status", {}).get("conditions", []):
        if condition["type"] == "Failed" and condition["status"] == "True":
            return f"Job {job['metadata']['name'] if job else ''}: {condition.get('message', '')}."
    return ""
