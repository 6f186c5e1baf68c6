"""A whole cluster with our charts' needs met: devices, volumes for Python and weights; the calls tests make of it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.control_plane import ControlPlane
from cluster.node import Node

BASE = "localhost/exegpt-tests/base:1"
DEVICE = "test.exegpt.dev/device"
SERVING = "serving"  # the namespace that the charts are in
PYTHON_CLAIM, WEIGHTS_CLAIM = "python", "weights"
PYTHON = "/opt/exegpt/bin/python3.11"
ROOT = Path(__file__).parents[2]
CHARTS, EXAMPLE = ROOT / "charts", ROOT / "examples" / "kubernetes-cpu.yaml"


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


def deployment(namespace: str, name: str = "translate", **spec: Any) -> dict[str, Any]:
    """The example for a cluster without GPUs, by devices of this cluster: two cores hold no more."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    found["metadata"] = {"name": name, "namespace": namespace}
    found["spec"]["cluster"]["resourceName"] = DEVICE
    found["spec"] |= spec
    return found
