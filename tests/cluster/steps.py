"""What tests do with an operator on a real API server: run it, and a namespace with fake nodes and pods."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cluster.control_plane import ControlPlane, free_port
from cluster.fake_node import FakeNodes
from cluster.fake_pods import FakeGateway
from cluster.place import NAME, Object, Place
from exegpt_operator import names
from exegpt_operator.compare import APPLIED
from exegpt_operator.process import LEASE

DEVICE = "test.exegpt.dev/device"
HOME = "operators"  # the namespace with the operators' Lease
OPERATOR = "operator"  # the user that it is in most tests
RUNNER_IMAGE = "localhost/none:1"
LAW = {"mean": 24, "std": 8, "max": 48}


class OperatorProcess:
    """An operator of ours in a process, to be ended in either way and started again."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *options: str,
        module: str = "exegpt_operator.main",
        namespace: str = HOME,
    ) -> None:
        command = [sys.executable, "-m", module, "--namespace", namespace]
        command += ["--runner-image", RUNNER_IMAGE, *options]
        self.namespace = namespace
        self.metrics_port = free_port()
        ports = {"--health-port": free_port(), "--metrics-port": self.metrics_port}
        self.command = command + [str(part) for pair in ports.items() for part in pair]
        self.log = log
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        """Starts it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self._environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "started first"
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it ended, or never ran."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """Without a chance to clean up; as with a container, all its processes go."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """As a kubelet does; it must end by itself, and have said nothing of faults."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)
        assert "Traceback" not in self.said, self.said[-5000:]

    def metrics(self) -> str:
        """What it measures of itself; empty while it does not answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text
        except httpx.TransportError:
            return ""

    @property
    def said(self) -> str:
        """Its log."""
        return self.log.read_text() if self.log.exists() else ""


def operator_kubeconfig(plane: ControlPlane) -> Path:
    """May do anything, by a name of its own in the audit log."""
    plane.authority.issue(OPERATOR, OPERATOR, groups=["system:masters"])
    return plane.authority.kubeconfig(OPERATOR, plane.server)


def free_lease(plane: ControlPlane, namespace: str = HOME) -> None:
    """Ends the wait for the Lease of an operator that is gone."""
    plane.kubectl("delete", "lease", LEASE, "-n", namespace, "--ignore-not-found")


def deployment(namespace: str, name: str = NAME, **spec: Any) -> Object:
    """Two devices, a pod each; planned within a second."""
    wanted = {
        "model": {"uri": "hf://test/demo", "servedName": "demo"},
        "cluster": {"gpus": 2, "gpusPerPod": 1, "resourceName": DEVICE},
        "latencyBound": {"seconds": 5.0},
        "workload": {"input": LAW, "output": LAW},
        "scheduling": {"strategies": ["RRA"]},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.DEPLOYMENT,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {key: value for key, value in (wanted | spec).items() if value is not None},
    }


@dataclass(slots=True)
class Site(Place):
    """One with fake nodes and pods."""

    nodes: FakeNodes
    seen: list[str] = field(default_factory=list)

    @classmethod
    def made(cls, plane: ControlPlane, nodes: FakeNodes, namespace: str) -> Site:
        """In a new namespace."""
        site = cls(plane, namespace, nodes)
        site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        return site

    def apply(self, name: str = NAME, **spec: Any) -> None:
        """Applies the deployment with these fields of its spec; None: without."""
        self.api.apply(deployment(self.namespace, name, **spec), manager="person")

    def gateway(self, name: str = NAME, replica: int = 0) -> FakeGateway:
        """What stands for a gateway."""
        return self.nodes.gateway(self.namespace, f"{names.gateway(name)}-{replica}")

    def works_by(self, name: str = NAME) -> str:
        """The plan that the gateway works by; empty while there is no gateway."""
        try:
            return self.gateway(name).plan_id
        except KeyError:
            return ""


def own_fields(child: Mapping[str, Any]) -> Object:
    """A child as it was asked for: without what a cluster fills in by chance, or hashes with its namespace."""
    metadata = child["metadata"]
    kept = {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata}
    kept["annotations"] = {k: v for k, v in kept.get("annotations", {}).items() if k != APPLIED}
    body = {key: value for key, value in child.items() if key not in ("metadata", "status")}
    if "clusterIPs" in body.get("spec", {}):
        drawn = ("clusterIP", "clusterIPs")
        body["spec"] = {key: value for key, value in body["spec"].items() if key not in drawn}
    return {"metadata": kept, **body}
