"""What tests do with an operator on a real API server: run it, act as a person in a namespace, wait and look."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from kubernetes import config

from cluster.control_plane import ControlPlane, free_port
from cluster.fake_node import FakeNodes
from cluster.fake_pods import FakeGateway
from exegpt_operator import names
from exegpt_operator.api import Api
from exegpt_operator.compare import APPLIED
from exegpt_operator.process import LEASE

Object = dict[str, Any]

DEVICE = "test.exegpt.dev/device"
NAME = "translate"
HOME = "operators"  # the namespace with the operators' Lease
OPERATOR = "operator"  # the user that it is in most tests
WITHIN_S = 60.0  # generous: nothing here is about time
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


def writes_of(plane: ControlPlane, user: str, first: int) -> list[str]:
    """What a user wrote since line `first` of the audit log, but for its Lease."""
    return [
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in plane.writes(first)
        if each["user"]["username"] == user and each["objectRef"]["resource"] != "leases"
    ]


def until(
    what: str,
    holds: Callable[[], bool],
    *,
    within_s: float = WITHIN_S,
    tell: Callable[[], str] = str,
) -> None:
    """Polls; fails with what `tell` says."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not {what} within {within_s:g} s\n{tell()}"
        time.sleep(0.1)


def api_of(kubeconfig: Path) -> Api:
    """Calls as whom the kubeconfig says."""
    return Api(config.new_client_from_config(str(kubeconfig)))  # type: ignore[no-untyped-call]


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
class Site:
    """One namespace, and what a person does and sees there."""

    plane: ControlPlane
    nodes: FakeNodes
    api: Api  # the administrator's
    namespace: str
    seen: list[str] = field(default_factory=list)

    @classmethod
    def made(cls, plane: ControlPlane, nodes: FakeNodes, namespace: str) -> Site:
        """In a new namespace."""
        site = cls(plane, nodes, api_of(plane.kubeconfig), namespace)
        site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        return site

    # What a person does.

    def apply(self, name: str = NAME, **spec: Any) -> None:
        """Applies the deployment with these fields of its spec; None: without."""
        self.api.apply(deployment(self.namespace, name, **spec), manager="person")

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Runs kubectl here; what it said."""
        done = self.plane.kubectl(*arguments, "-n", self.namespace, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def patch(self, what: str, **spec: Any) -> None:
        """Merges into the spec of `kind/name`."""
        self.kubectl("patch", what, "--type=merge", "-p", json.dumps({"spec": spec}))

    def annotate(self, name: str = NAME, **values: str | None) -> None:
        """Sets exegpt.dev/observed-{input,output}, or removes what is None."""
        said = [
            f"{names.GROUP}/observed-{side}" + ("-" if value is None else f"={value}")
            for side, value in values.items()
        ]
        self.kubectl("annotate", f"xd/{name}", "--overwrite", *said)

    def delete(self, name: str = NAME) -> None:
        """Deletes the deployment, and sees it gone at once: nothing of ours holds it."""
        self.kubectl("delete", f"xd/{name}", "--timeout=10s")

    # What a person sees.

    def get(self, kind: str, name: str) -> Object:
        """An object that must be there."""
        found = self.api.get(kind, self.namespace, name)
        assert found is not None, f"no {kind} {name}"
        return found

    def status(self, name: str = NAME) -> Object:
        """The deployment's."""
        found: Object = self.get(names.DEPLOYMENT, name).get("status", {})
        return found

    def condition(self, kind: str, name: str = NAME) -> tuple[str, str, str]:
        """(status, reason, message) of a condition of the deployment."""
        for each in self.status(name).get("conditions", []):
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def pods(self, component: str, name: str = NAME) -> list[Object]:
        """The deployment's, of one component."""
        return self.api.list("Pod", self.namespace, names.selector(name, component))

    def serving(self, name: str = NAME) -> dict[str, str]:
        """Workers and gateways: uid by name."""
        pods = [*self.pods("worker", name), *self.pods("gateway", name)]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def gateway(self, name: str = NAME, replica: int = 0) -> FakeGateway:
        """What stands for a gateway."""
        return self.nodes.gateway(self.namespace, f"{names.gateway(name)}-{replica}")

    def works_by(self, name: str = NAME) -> str:
        """The plan that the gateway works by; empty while there is no gateway."""
        try:
            return self.gateway(name).plan_id
        except KeyError:
            return ""

    def plan_id(self, name: str = NAME) -> str:
        """Of the plan in force, by the status."""
        return str(self.status(name).get("plan", {}).get("id", ""))

    def is_settled(self, name: str = NAME) -> bool:
        """Whether what was asked for last is served."""
        found = self.get(names.DEPLOYMENT, name)
        status, generation = found.get("status", {}), found["metadata"]["generation"]
        conditions = {each["type"]: each for each in status.get("conditions", [])}
        is_current = status.get("observedGeneration") == generation
        return bool(is_current and conditions["Ready"]["status"] == "True")

    # Waiting.

    def until(
        self, what: str, holds: Callable[[], bool], *, name: str = NAME, within_s: float = WITHIN_S
    ) -> None:
        """Polls; a failure shows the deployment."""
        until(what, holds, within_s=within_s, tell=lambda: self.described(name))

    def until_ready(self, name: str = NAME, *, within_s: float = WITHIN_S) -> None:
        """Until what was asked for last is served."""
        self.until("Ready", lambda: self.is_settled(name), name=name, within_s=within_s)

    def until_another_plan(self, before: str, name: str = NAME) -> None:
        """Until the plan in force is not `before`, and is served."""
        self.until("another plan", lambda: self.plan_id(name) not in ("", before), name=name)
        self.until_ready(name)

    def until_reason(
        self, kind: str, reason: str, name: str = NAME, *, within_s: float = WITHIN_S
    ) -> str:
        """Until a condition has a reason; its message."""
        self.until(
            f"{kind} {reason}",
            lambda: self.condition(kind, name)[1] == reason,
            name=name,
            within_s=within_s,
        )
        return self.condition(kind, name)[2]

    def described(self, name: str = NAME) -> str:
        """All that helps to see why."""
        return "\n".join(
            self.kubectl(*what, check=False)[-4000:]
            for what in (
                ("get", "xd", name, "-o", "yaml", "--show-managed-fields=false"),
                ("get", "xp,pods,sts,jobs,cm", "-o", "wide"),
                ("get", "events"),
            )
        )


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
