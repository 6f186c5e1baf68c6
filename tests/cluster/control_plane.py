"""etcd, API server, controller manager and scheduler, as processes on this machine's loopback."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster.certificates import Authority
from cluster.processes import Processes

SERVICE_CIDR, SERVICE_IP, DNS_IP = "10.96.0.0/16", "10.96.0.1", "10.96.0.10"
NODE_IP = "10.200.0.1"  # on `lo`: where pods and kubelets reach the API server

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@dataclass(slots=True, kw_only=True)
class ApiServer:
    """One that is reached by kubectl."""

    binaries: Path  # the folder of kubectl
    kubeconfig: Path  # the administrator's

    def kubectl(
        self, *arguments: str, given: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl; `given` is its standard input."""
        command = [str(self.binaries / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, check=check, timeout=120
        )

    def apply(self, *objects: Mapping[str, Any], check: bool = True) -> str:
        """Applies objects strictly; what kubectl said."""
        text = "\n---\n".join(json.dumps(each) for each in objects)
        done = self.kubectl(
            "apply", "--server-side", "--validate=strict", "-f", "-", given=text, check=check
        )
        return done.stdout + done.stderr

    def define(self, definitions: Sequence[Path]) -> None:
        """Adds resource definitions, and waits until they can be used."""
        files = [part for path in definitions for part in ("-f", str(path))]
        self.kubectl("apply", "--server-side", *files)
        self.kubectl("wait", "--for=condition=Established", *files, "--timeout=30s")

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list of them."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)
        return found


@dataclass(slots=True, kw_only=True)
class ControlPlane(ApiServer):
    """A running one of ours; several run side by side, each on ports of its own."""

    folder: Path
    processes: Processes
    authority: Authority
    port: int = field(default_factory=free_port)
    etcd: str = field(default_factory=lambda: f"http://127.0.0.1:{free_port()}")
    etcd_peers: str = field(default_factory=lambda: f"http://127.0.0.1:{free_port()}")

    @classmethod
    def started(cls, folder: Path, binaries: Path, *, for_nodes: bool) -> ControlPlane:
        """A new, empty one; `for_nodes` makes it reachable beyond loopback, from this machine's pods."""
        authority = Authority.made_in(folder / "pki")
        kubeconfig = authority.folder / "admin.kubeconfig"
        made = cls(
            binaries=binaries,
            kubeconfig=kubeconfig,
            folder=folder,
            processes=Processes(folder / "logs"),
            authority=authority,
        )
        made._issue()
        made._start(for_nodes=for_nodes)
        return made

    @property
    def server(self) -> str:
        """Where this machine's own processes reach the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def audit_log(self) -> Path:
        """Every write, one JSON object a line."""
        return self.folder / "audit.log"

    def writes(self, since: int = 0) -> list[dict[str, Any]]:
        """The audit log's entries from line `since` on."""
        lines = self.audit_log.read_text().splitlines()[since:]
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Ends it."""
        self.processes.stop_all()

    def _issue(self) -> None:
        issue = self.authority.issue
        names = ["127.0.0.1", NODE_IP, SERVICE_IP, "localhost"]
        names += ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        issue("apiserver", "kube-apiserver", names=names)
        issue("kubelet-client", "apiserver-kubelet-client", groups=["system:masters"])
        issue("front-proxy", "front-proxy-client")
        for file, user, groups in (
            ("admin", "admin", ["system:masters"]),
            ("controllers", "system:kube-controller-manager", []),
            ("scheduler", "system:kube-scheduler", []),
            ("proxy", "system:kube-proxy", []),
        ):
            issue(file, user, groups=groups)
            self.authority.kubeconfig(file, self.server)

    def _start(self, *, for_nodes: bool) -> None:
        start, pki = self.processes.start, self.authority.folder
        start("etcd", [self.binaries / "etcd", *self._etcd()])
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT))
        start("apiserver", [self.binaries / "kube-apiserver", *self._apiserver(for_nodes)])
        self.processes.wait("apiserver", self._is_up)
        start(
            "controllers",
            [
                self.binaries / "kube-controller-manager",
                f"--kubeconfig={pki / 'controllers.kubeconfig'}",
                "--secure-port=0",
                "--use-service-account-credentials",
                f"--root-ca-file={pki / 'ca.crt'}",
                f"--service-account-private-key-file={pki / 'sa.key'}",
                f"--cluster-signing-cert-file={pki / 'ca.crt'}",
                f"--cluster-signing-key-file={pki / 'ca.key'}",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                "--leader-elect=false",
                "--kube-api-qps=300",
                "--kube-api-burst=600",
            ],
        )
        start(
            "scheduler",
            [
                self.binaries / "kube-scheduler",
                f"--kubeconfig={pki / 'scheduler.kubeconfig'}",
                "--secure-port=0",
                "--leader-elect=false",
            ],
        )
        self.processes.wait("controllers", self._has_accounts)

    def _etcd(self) -> Sequence[str]:
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self.etcd}",
            f"--advertise-client-urls={self.etcd}",
            f"--listen-peer-urls={self.etcd_peers}",
            f"--initial-advertise-peer-urls={self.etcd_peers}",
            f"--initial-cluster=default={self.etcd_peers}",
            "--unsafe-no-fsync",
        ]

    def _apiserver(self, for_nodes: bool) -> Sequence[str]:
        pki = self.authority.folder
        advertise = NODE_IP if for_nodes else "127.0.0.1"
        issuer = "https://kubernetes.default.svc.cluster.local"
        return [
            f"--etcd-servers={self.etcd}",
            f"--bind-address={'0.0.0.0' if for_nodes else '127.0.0.1'}",
            f"--advertise-address={advertise}",
            f"--secure-port={self.port}",
            # A loopback address may not be an endpoint.
            *([] if for_nodes else ["--endpoint-reconciler-type=none"]),
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--service-account-issuer={issuer}",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            f"--requestheader-client-ca-file={pki / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy.key'}",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit_log}",
        ]

    def _is_up(self) -> bool:
        return self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0

    def _has_accounts(self) -> bool:
        done = self.kubectl("get", "serviceaccount", "default", "-n", "default", check=False)
        return done.returncode == 0
