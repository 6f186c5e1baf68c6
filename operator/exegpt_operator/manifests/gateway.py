"""The gateways' pods, one a replica, the Service to them, and the ConfigMap that they start from.

A StatefulSet, because two conductors must never have the same workers: a pod's ordinal says which replica it conducts,
and there is never a second pod of the same ordinal.
"""

from __future__ import annotations

import math

from exegpt_operator import names
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
from exegpt_operator.manifests.workers import addresses
from exegpt_planner.manifest import Deployment
from exegpt_planner.serving import drain_s

SERVING_FILE = "serving.json"
UNROUTED_S = 5  # until no new query is sent to a pod that ends
LEAST_GRACE_S, MOST_GRACE_S = (
    1024,
    86_400,
)  # limits, not waits: a gateway ends when its answers have


def grace_s(deployment: Deployment) -> int:
    """Longer than any drain; in powers of two beyond the least, so that another bound makes no other pod."""
    needed = UNROUTED_S + drain_s(deployment.spec.latency_bound.seconds) + 10
    return min(max(LEAST_GRACE_S, 1 << math.ceil(math.log2(needed))), MOST_GRACE_S)


def gateway(deployment: Deployment, images: Images, *, replicas: int) -> Object:
    """The gateways; `replicas` is of pods, one conducts each replica of the devices."""
    name = deployment.metadata.name
    parts = PodParts(
        labels=names.labels(name, "gateway"),
        template=deployment.spec.pod_template,
        images=images,
        model=deployment.spec.model,
        token_secret=names.token(name),
        containers=[_container(deployment, images)],
        grace_s=grace_s(deployment),
        weights=False,
        config_map=names.serving(name),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(deployment, names.gateway(name)),
        "spec": {
            "serviceName": names.endpoint(name),
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": names.selector(name, "gateway")},
            "template": pod(parts),
        },
    }


def endpoint(deployment: Deployment) -> Object:
    """The Service that users call: OpenAI's API on port 80."""
    name = deployment.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment, names.endpoint(name)),
        "spec": {
            "selector": names.selector(name, "gateway"),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def config(deployment: Deployment, serving: str) -> Object:
    """What the gateway starts from, as JSON."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(deployment, names.serving(deployment.metadata.name)),
        "data": {SERVING_FILE: serving},
    }


def serving_parts(deployment: Deployment) -> Object:
    """What of it the deployment alone says."""
    spec = deployment.spec
    return {
        "served_name": spec.model.served_name,
        "model_path": model_folder(spec.model),
        "dtype": spec.model.dtype,
        "replicas": addresses(deployment),
    }


def _container(deployment: Deployment, images: Images) -> Object:
    arguments = ["-m", "exegpt_cli.pods.gateway", "--config", f"{CONFIG_PATH}/{SERVING_FILE}"]
    arguments += ["--port", str(names.HTTP_PORT), "--control", f"0.0.0.0:{names.CONTROL_PORT}"]
    arguments += ["--token-file", f"{TOKEN_PATH}/{TOKEN_KEY}"]
    template = deployment.spec.pod_template
    found = container(
        "gateway", images.gateway, arguments, images=images, template=template, has_config=True
    )
    ordinal = "metadata.labels['apps.kubernetes.io/pod-index']"
    found["env"].append(
        {"name": "EXEGPT_REPLICA", "valueFrom": {"fieldRef": {"fieldPath": ordinal}}}
    )
    return found | {
        "ports": [
            {"name": "http", "containerPort": names.HTTP_PORT, "protocol": "TCP"},
            {"name": "control", "containerPort": names.CONTROL_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        "startupProbe": _http("/healthz", period_s=2, failures=60),
        "readinessProbe": _http("/readyz", period_s=2, failures=1),
        "livenessProbe": _http("/healthz", period_s=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": UNROUTED_S}}},
    }


def _http(path: str, *, period_s: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _metadata(deployment: Deployment, name: str) -> Object:
    return {
        "name": name,
        "namespace": deployment.metadata.namespace,
        "labels": names.labels(deployment.metadata.name, "gateway"),
    }
