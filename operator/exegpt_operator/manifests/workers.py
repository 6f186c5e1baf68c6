"""Worker pods: one StatefulSet of slices of nodes, a container a device; no plan changes its template.

Roles and stages come by Configure, so RRA, CRA and WAA run on the same pods. Pods start side by side, are replaced only
by our own hand (OnDelete), and find each other before they are ready.
"""

from __future__ import annotations

import math
from typing import Any

from exegpt_operator import names
from exegpt_operator.manifests.images import Images
from exegpt_operator.manifests.pods import TOKEN_KEY, TOKEN_PATH, Object, PodParts, container, pod
from exegpt_planner.manifest import Deployment

CPU = "cpu"
LOAD_BYTES_PER_S = 50e6  # of weights, from a slow network disk
START_S = 120  # loading torch, at least
PROBE_EVERY_S = 5
GRACE_S = 10  # a worker ends at once: its queries are encoded again elsewhere


def stateful_set(
    deployment: Deployment, images: Images, *, replicas: int, weight_bytes: int
) -> Object:
    """The worker pods; `replicas` is of pods: 0 holds no device."""
    name, spec = deployment.metadata.name, deployment.spec
    labels = names.selector(name, "worker")
    parts = PodParts(
        labels=names.labels(name, "worker"),
        template=spec.pod_template,
        images=images,
        model=spec.model,
        token_secret=names.token(name),
        containers=[
            _worker(deployment, images, index, weight_bytes)
            for index in range(spec.cluster.gpus_per_pod)
        ],
        grace_s=GRACE_S,
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": names.workers(name),
            "namespace": deployment.metadata.namespace,
            "labels": names.labels(name, "worker"),
        },
        "spec": {
            "serviceName": names.workers(name),
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels},
            "template": pod(parts),
        },
    }


def num_pods(deployment: Deployment) -> int:
    """Worker pods of all replicas."""
    cluster = deployment.spec.cluster
    return deployment.spec.replicas * cluster.gpus // cluster.gpus_per_pod


def addresses(deployment: Deployment) -> list[list[str]]:
    """host:port of every worker of each replica, by the names that the headless Service gives its pods."""
    name, namespace = deployment.metadata.name, deployment.metadata.namespace
    service, cluster = names.workers(name), deployment.spec.cluster
    found = [
        f"{service}-{index}.{service}.{namespace}.svc:{names.WORKER_PORT + device}"
        for index in range(num_pods(deployment))
        for device in range(cluster.gpus_per_pod)
    ]
    return [found[first : first + cluster.gpus] for first in range(0, len(found), cluster.gpus)]


def service(deployment: Deployment) -> Object:
    """Gives the pods their names, also before they are ready."""
    name = deployment.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.workers(name),
            "namespace": deployment.metadata.namespace,
            "labels": names.labels(name, "worker"),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(name, "worker"),
            "ports": [
                {"name": f"worker-{index}", "port": names.WORKER_PORT + index, "protocol": "TCP"}
                for index in range(deployment.spec.cluster.gpus_per_pod)
            ],
        },
    }


def device_resources(resource_name: str) -> Object:
    """What one device asks for: the extended resource, or a whole CPU."""
    amount = {resource_name: "1"}
    return {"requests": dict(amount), "limits": dict(amount)}


def with_resources(base: Object, given: Any) -> Object:
    """`base` and what the pod template asks for beside it; devices are ours to count."""
    return {
        kind: {**{k: str(v) for k, v in getattr(given, kind).items()}, **base.get(kind, {})}
        for kind in ("requests", "limits")
    }


def _worker(deployment: Deployment, images: Images, index: int, weight_bytes: int) -> Object:
    spec = deployment.spec
    port = names.WORKER_PORT + index
    arguments = ["-m", "exegpt_runner.worker", "--listen", f"0.0.0.0:{port}"]
    arguments += ["--token-file", f"{TOKEN_PATH}/{TOKEN_KEY}"]
    if spec.cluster.resource_name == CPU:
        arguments += ["--threads", "1"]
    found = container(
        f"worker-{index}", images.runner, arguments, images=images, template=spec.pod_template
    )
    start_s = START_S + weight_bytes / LOAD_BYTES_PER_S
    return found | {
        "ports": [{"name": f"worker-{index}", "containerPort": port, "protocol": "TCP"}],
        "resources": with_resources(
            device_resources(spec.cluster.resource_name), spec.pod_template.resources
        ),
        "startupProbe": {
            "grpc": {"port": port},
            "periodSeconds": PROBE_EVERY_S,
            "timeoutSeconds": PROBE_EVERY_S,
            "failureThreshold": math.ceil(start_s / PROBE_EVERY_S),
        },
        "readinessProbe": {
            "grpc": {"port": port, "service": "serving"},
            "periodSeconds": PROBE_EVERY_S,
            "timeoutSeconds": PROBE_EVERY_S,
        },
        # Answered by the transport's own threads, whatever is computed: a busy worker lives.
        "livenessProbe": {
            "grpc": {"port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }
