"""The cluster's programs, built once from the Go module proxy and kept by the hash of go.sum."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
CONTROL_PLANE = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "helm": "helm.sh/helm/v4/cmd/helm",
}
NODE = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "coredns": "github.com/coredns/coredns",
}
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def folder() -> Path:
    """Where the binaries for this go.sum are, or will be."""
    digest = hashlib.sha256((TOOLS / "go.sum").read_bytes()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return root / "exegpt" / "cluster" / digest


def build(wanted: dict[str, str]) -> Path:
    """The folder with `wanted`; builds what is missing (minutes each the first time, about 13 for all on two cores)."""
    there = folder()
    there.mkdir(parents=True, exist_ok=True)
    missing = {name: package for name, package in wanted.items() if not (there / name).exists()}
    if not missing:
        return there
    flags = _flags()
    for name, package in missing.items():
        partial = there / f".{name}.partial"
        command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(partial), package]
        environment = os.environ | {"CGO_ENABLED": "0"}
        subprocess.run(command, cwd=TOOLS, env=environment, check=True)
        partial.rename(there / name)
    return there


def _flags() -> str:
    """Stamps the versions: helm and kubelets compare them."""
    kubernetes, helm = _version("k8s.io/kubernetes"), _version("helm.sh/helm/v4")
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    flags = ["-s", "-w", f"-X helm.sh/helm/v4/internal/version.version={helm}"]
    for package in _VERSION_PACKAGES:
        flags += [
            f"-X {package}.gitVersion={kubernetes}",
            f"-X {package}.gitMajor={major}",
            f"-X {package}.gitMinor={minor}",
            f"-X {package}.gitTreeState=clean",
        ]
    return " ".join(flags)


def _version(module: str) -> str:
    command = ["go", "list", "-m", "-f", "{{.Version}}", module]
    found = subprocess.run(command, cwd=TOOLS, check=True, capture_output=True, text=True)
    return found.stdout.strip()
