"""What every pod of ours has in common: who it may be, what it may touch, and where the model is.

All pass Pod Security *restricted*. No API token; a read-only root with memory-backed /dev/shm and a scratch /tmp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exegpt_operator.manifests.images import EXTRA_PATH, Images
from exegpt_planner.manifest import Model
from exegpt_planner.pod_template import PodTemplate

Object = dict[str, Any]

USER = 65532  # nonroot
MODEL_PATH = "/models"
TOKEN_PATH = "/var/run/exegpt/token"
TOKEN_KEY = "token"
FETCH_COMMAND = ("-m", "exegpt_cli.pods.fetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodParts:
    """What a pod is put together from."""

    labels: dict[str, str]
    template: PodTemplate
    images: Images
    model: Model
    token_secret: str
    containers: Sequence[Object]
    grace_s: int
    weights: bool = True  # False: only what a tokenizer needs is fetched
    annotations: dict[str, str] | None = None
    config_map: str = ""  # mounted at CONFIG_PATH
    restart_policy: str = "Always"


CONFIG_PATH = "/etc/exegpt"


def pod(parts: PodParts) -> Object:
    """A pod template: metadata and spec."""
    template = parts.template
    metadata: Object = {"labels": {**template.labels, **parts.labels}}
    if parts.annotations:
        metadata["annotations"] = dict(parts.annotations)
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": parts.restart_policy,
        "terminationGracePeriodSeconds": parts.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": list(parts.containers),
        "volumes": volumes(parts),
    }
    if parts.model.scheme == "hf":
        spec["initContainers"] = [_fetch(parts)]
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        spec["tolerations"] = [
            each.model_dump(by_alias=True, exclude_none=True) for each in template.tolerations
        ]
    if template.priority_class_name:
        spec["priorityClassName"] = template.priority_class_name
    if parts.images.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in parts.images.pull_secrets]
    return {"metadata": metadata, "spec": spec}


def volumes(parts: PodParts) -> list[Object]:
    """The volumes of such a pod."""
    claim = parts.model.location.partition("/")[0]
    model: Object = {"emptyDir": {}}
    if parts.model.scheme == "pvc":
        model = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    found: list[Object] = [
        {"name": "model", **model},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "token", "secret": {"secretName": parts.token_secret, "defaultMode": 0o440}},
    ]
    if parts.config_map:
        found.append({"name": "config", "configMap": {"name": parts.config_map}})
    if parts.images.extra_claim:
        claim_source = {"claimName": parts.images.extra_claim, "readOnly": True}
        found.append({"name": "extra", "persistentVolumeClaim": claim_source})
    return found


def container(
    name: str,
    image: str,
    arguments: Sequence[str],
    *,
    images: Images,
    template: PodTemplate,
    has_config: bool = False,
) -> Object:
    """A container that runs Python with these arguments; resources, probes and ports are the caller's."""
    mounts: list[Object] = [
        {"name": "model", "mountPath": MODEL_PATH, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "token", "mountPath": TOKEN_PATH, "readOnly": True},
    ]
    if has_config:
        mounts.append({"name": "config", "mountPath": CONFIG_PATH, "readOnly": True})
    if images.extra_claim:
        mounts.append({"name": "extra", "mountPath": EXTRA_PATH, "readOnly": True})
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": images.pull_policy,
        "command": [images.extra_python or "python", *arguments],
        "env": environment(template),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def environment(template: PodTemplate) -> list[Object]:
    """What the deployment sets, and where caches may be written."""
    own = {
        "HOME": "/tmp",
        "XDG_CACHE_HOME": "/tmp/cache",
        "HF_HOME": "/tmp/hf",
    }
    given = [each.model_dump(by_alias=True, exclude_none=True) for each in template.env]
    named = {each["name"] for each in given}
    return given + [{"name": key, "value": value} for key, value in own.items() if key not in named]


def model_folder(model: Model) -> str:
    """Where containers find the model."""
    if model.scheme == "pvc":
        return f"{MODEL_PATH}/{model.location.partition('/')[2]}".rstrip("/")
    return MODEL_PATH


def _fetch(parts: PodParts) -> Object:
    model = parts.model
    arguments = [*FETCH_COMMAND, model.uri, MODEL_PATH, "--revision", model.revision]
    if not parts.weights:
        arguments.append("--without-weights")
    found = container(
        "fetch",
        parts.images.runner if parts.weights else parts.images.gateway,
        arguments,
        images=parts.images,
        template=parts.template,
    )
    found["volumeMounts"][0]["readOnly"] = False
    return found
