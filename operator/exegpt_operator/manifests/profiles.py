"""Profiling: the resource that stands for a table, and the Job that measures it beside as many workers as serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from exegpt_operator import names
from exegpt_operator.compare import quantity
from exegpt_operator.manifests.images import Images
from exegpt_operator.manifests.pods import (
    CONFIG_PATH,
    TOKEN_KEY,
    TOKEN_PATH,
    Object,
    PodParts,
    container,
    model_folder,
    pod,
)
from exegpt_operator.manifests.workers import with_resources
from exegpt_planner.manifest import Deployment, Model
from exegpt_planner.pod_template import PodTemplate, Resources

MANIFEST_FILE = "deployment.json"
FETCHED_WITHIN_S = 600  # the operator has so long to fetch the table before the pod ends
DEADLINE_S = 3600
KEPT_S = 600  # a finished Job, for its log


def profile_spec(deployment: Deployment, images: Images) -> Object:
    """The spec of the ExeGPTProfile that this deployment plans by; equal ones are shared."""
    spec = deployment.spec
    template = spec.pod_template.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    found: Object = {
        "model": {
            "uri": spec.model.uri,
            "revision": spec.model.revision,
            "dtype": spec.model.dtype,
        },
        "resourceName": spec.cluster.resource_name,
        "workers": spec.cluster.gpus,
        "image": images.runner,
    }
    return found | ({"podTemplate": template} if template else {})


def profile(deployment: Deployment, images: Images) -> Object:
    """The ExeGPTProfile; no deployment owns it."""
    spec = profile_spec(deployment, images)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE,
        "metadata": {
            "name": names.profile(spec),
            "namespace": deployment.metadata.namespace,
            "labels": names.labels(names.profile(spec), "profile"),
        },
        "spec": spec,
    }


def job(profile_object: Object, images: Images, *, config_map: str, token_secret: str) -> Object:
    """The Job of an ExeGPTProfile: one pod with all its devices, that waits to be asked for the table."""
    metadata, spec = profile_object["metadata"], profile_object["spec"]
    images = replace(images, runner=spec.get("image", images.runner))
    template = PodTemplate.model_validate(spec.get("podTemplate", {}), by_alias=True)
    parts = PodParts(
        labels=names.labels(metadata["name"], "profile"),
        template=template,
        images=images,
        model=Model.model_validate(spec["model"], by_alias=True),
        token_secret=token_secret,
        containers=[_profiler(spec, images, template)],
        grace_s=10,
        config_map=config_map,
        restart_policy="Never",
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": names.labels(metadata["name"], "profile"),
        },
        "spec": {
            "backoffLimit": 2,
            "activeDeadlineSeconds": DEADLINE_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": pod(parts),
        },
    }


def _profiler(spec: Any, images: Images, template: PodTemplate) -> Object:
    arguments = ["-m", "exegpt_cli.pods.profiler", "--manifest", f"{CONFIG_PATH}/{MANIFEST_FILE}"]
    model = Model.model_validate(spec["model"], by_alias=True)
    arguments += ["--model", model_folder(model)]
    arguments += ["--listen", f"0.0.0.0:{names.PROFILE_PORT}"]
    arguments += ["--token-file", f"{TOKEN_PATH}/{TOKEN_KEY}"]
    arguments += ["--wait", str(FETCHED_WITHIN_S)]
    devices = {spec["resourceName"]: str(spec["workers"])}
    resources = {"requests": dict(devices), "limits": dict(devices)}
    found = container(
        "profiler", images.runner, arguments, images=images, template=template, has_config=True
    )
    return found | {
        "ports": [{"name": "profile", "containerPort": names.PROFILE_PORT, "protocol": "TCP"}],
        "resources": with_resources(resources, _times(template.resources, spec["workers"])),
    }


def _times(given: Resources, workers: int) -> Resources:
    """What a worker's container may take, for as many of them in one."""
    return Resources(
        **{
            kind: {
                name: f"{1000 * workers * (quantity(str(amount)) or 0):.0f}m"
                for name, amount in getattr(given, kind).items()
            }
            for kind in ("requests", "limits")
        }
    )
