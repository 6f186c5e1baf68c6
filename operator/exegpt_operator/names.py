"""Names, labels and ports of everything that is made for a deployment or a profile.

Every name is the deployment's own, at most 40 characters, and a suffix: StatefulSets give their pods' names to labels,
which hold 63 characters, and add a revision's hash of 11.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

GROUP = "exegpt.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
DEPLOYMENTS, PROFILES = "exegptdeployments", "exegptprofiles"
DEPLOYMENT, PROFILE = "ExeGPTDeployment", "ExeGPTProfile"

FIELD_MANAGER = "exegpt-operator"
DETECTOR = "exegpt-detector"  # the manager of annotations that come from observing

OBSERVED_INPUT = f"{GROUP}/observed-input"
OBSERVED_OUTPUT = f"{GROUP}/observed-output"
APPROVED_PLAN = f"{GROUP}/approved-plan"

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
ROLE_LABEL = f"{GROUP}/role"  # live: a pod's role in the plan in force

WORKER_PORT = 7400  # of a pod's first worker; each further one has the next
PROFILE_PORT = 7500
CONTROL_PORT = 7600
HTTP_PORT = 8000

PROFILE_NAME_MAX = 50
_DIGEST = 10
_NOT_MEASURED = ("labels", "tolerations", "priorityClassName")


def workers(deployment: str) -> str:
    """The StatefulSet of worker pods, and the headless Service that gives them names."""
    return f"{deployment}-workers"


def gateway(deployment: str) -> str:
    """The gateways' StatefulSet."""
    return f"{deployment}-gateway"


def endpoint(deployment: str) -> str:
    """The Service that users call."""
    return deployment


def token(deployment: str) -> str:
    """The Secret that control and KV calls carry."""
    return f"{deployment}-token"


def serving(deployment: str) -> str:
    """The ConfigMap that the gateway starts from: the plan in force and what it rests on."""
    return f"{deployment}-serving"


def observed(deployment: str, side: str) -> str:
    """The ConfigMap of the lengths that were observed, of prompts (`input`) or answers (`output`)."""
    return f"{deployment}-observed-{side}"


def plan(deployment: str, revision: int) -> str:
    """The ConfigMap of one plan."""
    return f"{deployment}-plan-{revision}"


def labels(instance: str, component: str) -> dict[str, str]:
    """What an object of a deployment or a profile is found by."""
    return {
        NAME_LABEL: "exegpt",
        INSTANCE_LABEL: instance,
        COMPONENT_LABEL: component,
        MANAGED_BY_LABEL: FIELD_MANAGER,
    }


def selector(instance: str, component: str) -> dict[str, str]:
    """The labels that select pods; never to be changed, a StatefulSet's selector is for ever."""
    wanted = (NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL)
    return {key: value for key, value in labels(instance, component).items() if key in wanted}


def digest(value: Mapping[str, Any]) -> str:
    """A short hash of a JSON object, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def profile(spec: Mapping[str, Any]) -> str:
    """The name of the profile with this spec: those that measure the same share one, whatever their pods are called."""
    template = {k: v for k, v in spec.get("podTemplate", {}).items() if k not in _NOT_MEASURED}
    spec = {**spec, "podTemplate": template}
    model = str(spec["model"]["uri"]).rstrip("/").rpartition("/")[2].lower()
    slug = re.sub(r"[^a-z0-9]+", "-", model).strip("-")[: PROFILE_NAME_MAX - _DIGEST - 1]
    return f"{slug.strip('-') or 'model'}-{digest(spec)}"
