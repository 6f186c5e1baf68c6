"""Images from the Dockerfile without a registry: its base from Debian's packages, the rest by buildah, run by runc.

Everything lies in one folder and goes with it. pip asks whatever index this machine's own pip asks; its configuration
and certificates are mounted while a build runs, and are in no image.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import shutil
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.images import USER

NEEDED = ("buildah", "debootstrap", "runc")
SUITE, BASE = (
    "bookworm",
    "docker.io/library/python:3.11-slim-bookworm",
)  # what the Dockerfile is FROM
MIRROR = "http://deb.debian.org/debian"
STORES = Path("/var/tmp")  # not /tmp, which may be memory
FREE_BYTES = 6 << 30  # the images without torch, each there some times over while it is committed
STAND_IN_PATH, CERTIFICATES = "/mnt", "/etc/ssl/certs/ca-certificates.crt"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def lacking() -> str:
    """What this machine lacks to build and run images; empty if nothing."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"the machine lacks {', '.join(missing)} to build images with"
    if os.geteuid() != 0:
        return "building images needs root"
    if (free := shutil.disk_usage(STORES).free) < FREE_BYTES:
        return f"{STORES} has {free / 2**30:.1f} GiB free, and images need {FREE_BYTES / 2**30:g}"
    return ""


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds images in a store of its own and runs them."""

    folder: Path

    def base(self) -> None:
        """What the Dockerfile is FROM, near enough: Debian, and its Python."""
        root = self.folder / "base"
        include = "--include=ca-certificates,python3,python3-pip"
        _run("debootstrap", "--variant=minbase", include, SUITE, str(root), _mirror())
        (root / "usr/bin/python").symlink_to("python3")
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        (root / "etc/apt/sources.list").write_text("")
        for part in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(root / part)
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, str(root), "/")
        self.buildah("config", f"--env=PATH={PATH}", "--env=LANG=C.UTF-8", container)
        self.buildah("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(root)

    def build(self, target: str, context: Path, *, stand_ins: Path) -> str:
        """The image of a target; what it printed is in the error if it fails."""
        image = f"localhost/exegpt-tests/{target}"
        pip = self.folder / "pip.conf"
        certificates = _write_pip_configuration(pip)
        sources = self.folder / "sources.list"
        sources.write_text(f"deb {_mirror()} {SUITE} main\n")
        mounts = {
            pip: "/etc/pip.conf",
            certificates: CERTIFICATES,
            sources: "/etc/apt/sources.list",
            stand_ins: STAND_IN_PATH,
        }
        volumes = [f"--volume={source}:{place}:ro" for source, place in mounts.items()]
        # Without --layers: buildah 1.28 finds nothing in mounts from stages that it takes from its cache.
        options = ["--isolation=chroot", "--network=host", "--pull-never", *volumes]
        self.buildah("build", *options, f"--target={target}", f"--tag={image}", str(context))
        return image

    def configuration(self, image: str) -> dict[str, Any]:
        """The image's own: user, entry point, environment, labels."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type=image", image))
        configuration: dict[str, Any] = found["OCIv1"]["config"]
        return configuration

    def size_bytes(self, image: str) -> int:
        """All its files."""
        with self.root(image) as root:
            return int(_run("du", "--summarize", "--bytes", str(root)).split()[0])

    @contextmanager
    def root(self, image: str) -> Iterator[Path]:
        """The image's files."""
        container = self.buildah("from", "--pull-never", image).strip()
        try:
            yield Path(self.buildah("mount", container).strip())
        finally:
            self.buildah("rm", container)

    def run(
        self, image: str, *arguments: str, mounts: Mapping[Path, str] = {}, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as our pods do: not root, on a read-only root, without a capability; and without network."""
        own = dict(each.split("=", 1) for each in self.configuration(image)["Env"])
        bundle = self.folder / "bundle"
        with self.root(image) as root:
            bundle.mkdir()
            variables = [f"{name}={value}" for name, value in (own | environment).items()]
            (bundle / "config.json").write_text(
                json.dumps(_container(root, arguments, variables, mounts))
            )
            state = f"--root={self.folder / 'runc'}"
            command = ["runc", state, "run", "--bundle", str(bundle), f"exegpt-{os.getpid()}"]
            try:
                return subprocess.run(command, capture_output=True, text=True, timeout=300)
            finally:
                shutil.rmtree(bundle)

    def buildah(self, *arguments: str) -> str:
        """Runs buildah on the store of this folder."""
        store = [f"--root={self.folder / 'store'}", f"--runroot={self.folder / 'run'}"]
        return _run("buildah", *store, "--storage-driver=overlay", *arguments)

    def remove(self) -> None:
        """Unmounts and deletes everything."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self.folder))), reverse=True):
            _run("umount", mount)
        shutil.rmtree(self.folder)


def stand_in(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> None:
    """An empty wheel in `folder`, which pip prefers to the index's where a local part makes `version` the later one."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    texts = {
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", *metadata, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = [*texts, f"{info}/RECORD"]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for place, text in texts.items():
            wheel.writestr(place, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{place},,\n" for place in listed))


def _container(
    root: Path, arguments: Sequence[str], environment: list[str], mounts: Mapping[Path, str]
) -> dict[str, Any]:
    """The container as runc reads it."""
    own = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["mode=1777"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": ["mode=1777"]},
    ]
    given = [
        {"destination": place, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
        for source, place in mounts.items()
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": list(arguments),
            "env": environment,
            "cwd": "/tmp",
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "mounts": [*own, *given],
        "linux": {"namespaces": [{"type": t} for t in ("pid", "ipc", "uts", "mount", "network")]},
    }


def _write_pip_configuration(path: Path) -> Path:
    """Writes what this machine's pip is told of indices, by files or variables; the certificates it trusts."""
    listed = _run(sys.executable, "-m", "pip", "config", "list").splitlines()
    settings: dict[str, str] = {}
    for line in sorted(listed, key=lambda each: each.startswith(":env:")):  # variables win
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = ast.literal_eval(value)
    certificates = Path(
        settings.get("cert") or ssl.get_default_verify_paths().cafile or CERTIFICATES
    )
    kept = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout")
    file = configparser.RawConfigParser()
    own = {"cert": CERTIFICATES, "find-links": STAND_IN_PATH}
    file["global"] = {name: settings[name] for name in kept if name in settings} | own
    path.touch(mode=0o600)
    with path.open("w") as opened:
        file.write(opened)
    return certificates.resolve()


def _mirror() -> str:
    """Where this machine gets the suite's packages from, or Debian's own address where it is of another suite."""
    if shutil.which("apt-get") is None:
        return MIRROR
    targets = _run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)").splitlines()
    found = [line.split()[1] for line in targets if line.split()[0] == SUITE]
    return found[0] if found else MIRROR


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        end = (done.stdout + done.stderr)[-4000:]
        raise AssertionError(f"{' '.join(command[:2])} failed with {done.returncode}:\n{end}")
    return done.stdout
