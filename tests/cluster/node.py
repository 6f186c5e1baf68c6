"""One real node: containerd, kubelet, kube-proxy and CoreDNS as processes of this machine, pods in namespaces.

What had to be found out for a machine like this (cgroup v1 or v2, no CAP_SYS_RESOURCE, no registry): containerd may not
lower OOM scores; the kubelet gets a cgroup root of its own and enforces no allocatable; kube-proxy leaves conntrack and
OOM scores alone; the API server is reached at an address on `lo`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.control_plane import DNS_IP, NODE_IP, ControlPlane
from cluster.processes import Processes

NAME = "node1"
POD_SUBNET = "10.244.0.0/24"
CGROUP = f"exegpt-{NAME}"
NEEDED = ("containerd", "runc", "ctr", "ip", "nft")
CNI = Path("/usr/lib/cni")
PAUSE = "localhost/exegpt-tests/pause:1"


def lacking() -> str:
    """What this machine lacks to run a node; empty if nothing."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if not (CNI / "bridge").exists():
        missing.append("containernetworking-plugins")
    return f"the machine lacks {', '.join(missing)}" if missing else ""


@dataclass(slots=True)
class Node:
    """A running one."""

    plane: ControlPlane
    folder: Path
    processes: Processes

    @classmethod
    def started(cls, plane: ControlPlane, *, images: list[Path]) -> Node:
        """A node that has joined `plane` and holds `images` (docker archives)."""
        made = cls(plane, plane.folder / NAME, Processes(plane.folder / "logs"))
        for name in ("cni", "kubelet"):
            (made.folder / name).mkdir(parents=True)
        made._address()
        made._cgroups()
        made._containerd()
        for path in images:
            made.ctr("images", "import", str(path))
        made._kubelet()
        made._proxy()
        made._dns()
        plane.processes.wait("apiserver", made._is_ready, within_s=90)
        return made

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """Runs containerd's own client."""
        command = ["ctr", "-a", str(self._socket), "-n", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=check, timeout=300)
        return done.stdout

    def kill(self, pod: Mapping[str, Any], container: str, *, paused_s: float = 0.0) -> None:
        """Kills a pod's container outright; frozen for a while first, what it was sent stays under way."""
        if paused_s:
            self.freeze(pod, container)
            time.sleep(paused_s)
        self.ctr("tasks", "kill", "-s", "9", _task(pod, container))
        if paused_s:
            self.thaw(pod, container)

    def freeze(self, pod: Mapping[str, Any], container: str) -> None:
        """Lets nothing of a container run."""
        self.ctr("tasks", "pause", _task(pod, container))

    def thaw(self, pod: Mapping[str, Any], container: str) -> None:
        """Lets it run again, if it is still there."""
        self.ctr("tasks", "resume", _task(pod, container), check=False)

    def advertise(self, resource: str, count: int) -> None:
        """Gives the node so many devices of an extended resource, which the scheduler then counts."""
        patch = {"status": {"capacity": {resource: str(count)}}}
        self.plane.kubectl(
            "patch", "node", NAME, "--subresource=status", "--type=merge", "-p", json.dumps(patch)
        )
        self.plane.processes.wait(
            "apiserver",
            lambda: (
                self.plane.get("node", NAME)["status"]["allocatable"].get(resource) == str(count)
            ),
        )

    def stop(self) -> None:
        """Ends it: kubelet first, then every container, then what carried them."""
        for name in ("coredns", "proxy", "kubelet"):
            if name in self.processes.running:
                self.processes.stop(name)
        namespaces = self._namespaces()
        for task in self.ctr("tasks", "ls", "-q", check=False).split():
            self.ctr("tasks", "kill", "-s", "9", "-a", task, check=False)
        for task in self.ctr("tasks", "ls", "-q", check=False).split():
            self.ctr("tasks", "rm", "-f", task, check=False)
        for container in self.ctr("containers", "ls", "-q", check=False).split():
            self.ctr("containers", "rm", container, check=False)
        self.processes.stop_all()
        self._unmount()
        for namespace in namespaces:
            _quietly("ip", "netns", "del", Path(namespace).name)
        _quietly("ip", "link", "del", f"cni-{NAME}")
        _quietly("nft", "delete", "table", "ip", "kube-proxy")
        _quietly("nft", "delete", "table", "ip6", "kube-proxy")
        _quietly("ip", "addr", "del", f"{NODE_IP}/32", "dev", "lo")
        self._remove_cgroups()

    @property
    def _socket(self) -> Path:
        return self.folder / "containerd.sock"

    def _address(self) -> None:
        _quietly("ip", "addr", "add", f"{NODE_IP}/32", "dev", "lo")
        _run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def _cgroups(self) -> None:
        """A subtree of the kubelet's own in every hierarchy."""
        root = Path("/sys/fs/cgroup")
        if (root / "cgroup.controllers").exists():
            (root / CGROUP).mkdir(exist_ok=True)
            return
        for hierarchy in root.iterdir():
            if hierarchy.name == "unified" or not hierarchy.is_dir():
                continue
            own = hierarchy / CGROUP
            own.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (own / name).exists():
                    (own / name).write_text((hierarchy / name).read_text())

    def _remove_cgroups(self) -> None:
        for own in Path("/sys/fs/cgroup").glob(f"*/{CGROUP}"):
            for folder in sorted(own.rglob("*"), reverse=True):
                if folder.is_dir():
                    _quietly("rmdir", str(folder))
            _quietly("rmdir", str(own))

    def _containerd(self) -> None:
        network = {
            "cniVersion": "0.4.0",
            "name": "exegpt",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": f"cni-{NAME}",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder / "ipam"),
                        "ranges": [[{"subnet": POD_SUBNET}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(network))
        config = self.folder / "containerd.toml"
        config.write_text(f"""version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/containerd-state"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}"
    conf_dir = "{self.folder}/cni"
""")
        self.processes.start("containerd", ["containerd", "--config", config])
        self.processes.wait("containerd", lambda: "Server" in self.ctr("version", check=False))

    def _kubelet(self) -> None:
        pki, issue = self.plane.authority.folder, self.plane.authority.issue
        issue(NAME, f"system:node:{NAME}", groups=["system:nodes"], names=[NAME, NODE_IP])
        kubeconfig = self.plane.authority.kubeconfig(NAME, self.plane.server)
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{NAME}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{NAME}.key"),
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "cgroupRoot": f"/{CGROUP}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "resolvConf": str(self.folder / "resolv.conf"),
            "clusterDNS": [DNS_IP],
            "clusterDomain": "cluster.local",
            "evictionHard": dict.fromkeys(
                (
                    "memory.available",
                    "nodefs.available",
                    "imagefs.available",
                    "nodefs.inodesFree",
                    "imagefs.inodesFree",
                ),
                "0%",
            ),
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "5s",
            "nodeLeaseDurationSeconds": 10,
            "syncFrequency": "10s",
            "podLogsDir": str(self.folder / "pod-logs"),
            "healthzBindAddress": "127.0.0.1",
        }
        path = self.folder / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config))
        self.processes.start(
            "kubelet",
            [
                self.plane.binaries / "kubelet",
                f"--config={path}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={NAME}",
                f"--node-ip={NODE_IP}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'kubelet-pki'}",
            ],
        )

    def _proxy(self) -> None:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.plane.authority.folder / "proxy.kubeconfig")
            },
            "mode": "nftables",
            "hostnameOverride": NAME,
            "clusterCIDR": "10.244.0.0/16",
            "oomScoreAdj": 0,
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "nodePortAddresses": [f"{NODE_IP}/32"],
        }
        path = self.folder / "proxy.yaml"
        path.write_text(yaml.safe_dump(config))
        self.processes.start("proxy", [self.plane.binaries / "kube-proxy", f"--config={path}"])

    def _dns(self) -> None:
        admin = self.plane.kubeconfig
        path = self.folder / "Corefile"
        path.write_text(f""".:53 {{
    bind {NODE_IP}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {admin} x
        pods insecure
        ttl 1
    }}
    cache 1
}}
""")
        self.processes.start("coredns", [self.plane.binaries / "coredns", "-conf", path])
        ports = [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ]
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                "spec": {"clusterIP": DNS_IP, "ports": ports},
            },
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "kube-dns-host",
                    "namespace": "kube-system",
                    "labels": {"kubernetes.io/service-name": "kube-dns"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [NODE_IP], "conditions": {"ready": True}}],
                "ports": ports,
            },
        )

    def _is_ready(self) -> bool:
        done = self.plane.kubectl(
            "wait", "--for=condition=Ready", f"node/{NAME}", "--timeout=1s", check=False
        )
        return done.returncode == 0

    def _namespaces(self) -> list[str]:
        found = set()
        for container in self.ctr("containers", "ls", "-q", check=False).split():
            for part in self.ctr("containers", "info", container, check=False).split('"'):
                if part.startswith(("/run/netns/cni-", "/var/run/netns/cni-")):
                    found.add(part)
        return sorted(found)

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self.folder))), reverse=True):
            _quietly("umount", "-l", mount)


def _task(pod: Mapping[str, Any], container: str) -> str:
    """What containerd calls a container of a pod."""
    (status,) = (each for each in pod["status"]["containerStatuses"] if each["name"] == container)
    return str(status["containerID"].removeprefix("containerd://"))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _quietly(*command: str) -> None:
    """For what may be there already, or gone."""
    subprocess.run(command, check=False, capture_output=True)
