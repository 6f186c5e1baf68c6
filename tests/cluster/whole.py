"""A whole cluster with our charts' needs met: devices, volumes for Python and weights; the calls tests make of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import config

from cluster.control_plane import ControlPlane
from cluster.node import Node
from exegpt_operator.api import Api

BASE = "localhost/exegpt-tests/base:1"
DEVICE = "test.exegpt.dev/device"
SERVING = "serving"  # the namespace that the charts are in
PYTHON_CLAIM, WEIGHTS_CLAIM = "python", "weights"
PYTHON = "/opt/exegpt/bin/python3.11"
CHARTS = Path(__file__).parents[2] / "charts"


@dataclass(slots=True)
class Cluster:
    """A running one."""

    plane: ControlPlane
    node: Node
    volume: Path
    weights: Path

    def namespace(self, name: str, *, enforce: str = "restricted") -> str:
        """A namespace that admits restricted pods only, with claims to both volumes."""
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": name,
                    "labels": {"pod-security.kubernetes.io/enforce": enforce},
                },
            }
        )
        for claim, folder in ((PYTHON_CLAIM, self.volume), (WEIGHTS_CLAIM, self.weights)):
            self.plane.apply(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"{name}-{claim}"},
                    "spec": {
                        "capacity": {"storage": "10Gi"},
                        "accessModes": ["ReadOnlyMany"],
                        "hostPath": {"path": str(folder)},
                        "storageClassName": "",
                        "claimRef": {"name": claim, "namespace": name},
                    },
                },
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": claim, "namespace": name},
                    "spec": {
                        "accessModes": ["ReadOnlyMany"],
                        "storageClassName": "",
                        "volumeName": f"{name}-{claim}",
                        "resources": {"requests": {"storage": "10Gi"}},
                    },
                },
            )
        return name

    @property
    def api(self) -> Api:
        """The operator's own client, as the administrator."""
        return Api(config.new_client_from_config(str(self.plane.kubeconfig)))  # type: ignore[no-untyped-call]

    def helm(self, *arguments: str, check: bool = True) -> str:
        """Runs helm; what it said."""
        command = [
            str(self.plane.binaries / "helm"),
            "--kubeconfig",
            str(self.plane.kubeconfig),
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if check and done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return done.stdout + done.stderr

    def install(self, namespace: str, *, name: str = "exegpt", **values: str) -> None:
        """Both charts, with images of this machine; `values` are the operator's, dots and all."""
        self.helm("upgrade", "--install", "exegpt-crds", str(CHARTS / "exegpt-crds"), "--wait")
        values = {
            "images.operator": BASE,
            "images.runner": BASE,
            "images.gateway": BASE,
            "images.pullPolicy": "Never",
            "extra.claim": PYTHON_CLAIM,
            "extra.python": PYTHON,
        } | values
        settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        chart = str(CHARTS / "exegpt")
        self.helm(
            "upgrade",
            "--install",
            name,
            chart,
            "-n",
            namespace,
            *settings,
            "--wait",
            "--timeout=3m",
        )

    def condition(self, namespace: str, name: str, kind: str) -> tuple[str, str, str]:
        """(status, reason, message) of a deployment's condition."""
        status = self.plane.get("xd", name, "-n", namespace).get("status", {})
        for each in status.get("conditions", []):
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def wait_for(
        self, what: str, holds: Callable[[], bool], *, within_s: float, tell: Callable[[], str]
    ) -> float:
        """Seconds until it holds; fails with what `tell` says."""
        begin_s = time.monotonic()
        while not holds():
            if time.monotonic() - begin_s > within_s:
                raise AssertionError(f"not {what} within {within_s:g} s:\n{tell()}")
            time.sleep(0.25)
        return time.monotonic() - begin_s

    def is_ready(self, namespace: str, name: str) -> bool:
        """Whether it is Ready, and what is asked for now is what is ready (as kstatus reads it)."""
        found = self.plane.get("xd", name, "-n", namespace)
        conditions = found.get("status", {}).get("conditions", [])
        return any(
            each["type"] == "Ready"
            and each["status"] == "True"
            and each.get("observedGeneration") == found["metadata"]["generation"]
            for each in conditions
        )

    def wait_ready(self, namespace: str, name: str, *, within_s: float) -> float:
        """Until a deployment is Ready."""
        return self.wait_for(
            "Ready",
            lambda: self.is_ready(namespace, name),
            within_s=within_s,
            tell=lambda: self.describe(namespace, name),
        )

    def describe(self, namespace: str, name: str) -> str:
        """All that a person would look at."""
        plane = self.plane
        parts = [
            plane.kubectl("describe", "xd", name, "-n", namespace, check=False).stdout,
            plane.kubectl("get", "all", "-n", namespace, "-o", "wide", check=False).stdout,
            plane.kubectl("get", "events", "-n", namespace, check=False).stdout[-3000:],
        ]
        for pod in self.pods(namespace):
            logs = plane.kubectl(
                "logs", pod["metadata"]["name"], "-n", namespace, "--all-containers", "--tail=15",
                check=False,
            )  # fmt: skip
            parts.append(f"--- {pod['metadata']['name']}\n{logs.stdout}{logs.stderr}")
        return "\n".join(parts)

    def pods(self, namespace: str, **labels: str) -> list[dict[str, Any]]:
        """Pods with these labels; `component` is short for ours."""
        selector = ",".join(
            f"{'app.kubernetes.io/component' if key == 'component' else key}={value}"
            for key, value in labels.items()
        )
        arguments = ["pods", "-n", namespace, *(["-l", selector] if selector else [])]
        items: list[dict[str, Any]] = self.plane.get(*arguments)["items"]
        return items

    def run_in(self, namespace: str, pod: str, script: str) -> str:
        """What a Python script prints that runs in a pod: load stays inside the cluster."""
        done = self.plane.kubectl(
            "exec", pod, "-n", namespace, "-i", "--", PYTHON, "-", given=script, check=False
        )
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return done.stdout


def deployment(namespace: str, name: str = "translate", **spec: Any) -> dict[str, Any]:
    """The demo model on two devices of this cluster, a pod each."""
    law = {"input": {"mean": 24, "std": 8, "max": 48}, "output": {"mean": 16, "std": 6, "max": 40}}
    wanted: dict[str, Any] = {
        "model": {"uri": f"pvc://{WEIGHTS_CLAIM}", "servedName": "demo"},
        "cluster": {"gpus": 2, "gpusPerPod": 1, "resourceName": DEVICE},
        "latencyBound": {"seconds": 5.0},
        "workload": law,
        "podTemplate": {"resources": {"limits": {"memory": "4Gi"}}},
    }
    return {
        "apiVersion": "exegpt.dev/v1alpha1",
        "kind": "ExeGPTDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": json.loads(json.dumps(wanted | spec)),
    }
