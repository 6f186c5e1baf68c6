"""Images without a registry and without a builder: docker archives put together from files of this machine.

One of them is what a container needs to run this machine's own Python: its shared libraries and a user. The Python
itself, with our packages and torch, is mounted from a volume: as an image it would be five gigabytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

USER = 65532
VOLUME = "/opt/exegpt"  # where the charts mount it
PASSWD = f"root:x:0:0::/:/bin/false\nnonroot:x:{USER}:{USER}::/tmp:/bin/false\n"
PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
"""
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def archive(
    path: Path,
    tag: str,
    *,
    files: Mapping[str, Path],
    texts: Mapping[str, str] = {},
    folders: Iterable[str] = (),
    entrypoint: Iterable[str] = (),
    environment: Iterable[str] = (),
) -> Path:
    """A docker archive of one layer; `files` and `texts` by their places in the image."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in sorted(set(folders) | _parents([*files, *texts])):
            tar.addfile(_folder(folder))
        for place, source in sorted(files.items()):
            tar.add(source.resolve(), place.lstrip("/"), filter=_as_root)
        for place, text in texts.items():
            entry = tarfile.TarInfo(place.lstrip("/"))
            entry.size, entry.mode = len(text.encode()), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    data = layer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(entrypoint),
                "Env": ["PATH=/usr/bin:/bin", *environment],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "tests/cluster/images.py"}],
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as tar:
        for file, content in ((name, config), ("layer.tar", data), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def pause(folder: Path, tag: str) -> Path:
    """What holds a pod's namespaces: a program that waits to be told to end."""
    source = folder / "pause.go"
    source.write_text(PAUSE)
    program = folder / "pause"
    subprocess.run(
        ["go", "build", "-ldflags", "-s -w", "-o", str(program), str(source)],
        check=True,
        env=os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off"},
    )
    return archive(folder / "pause.tar", tag, files={"/pause": program}, entrypoint=["/pause"])


def libraries(folder: Path, tag: str, *, of: Iterable[Path]) -> Path:
    """An image with the shared libraries that these programs and modules need, and nothing to run."""
    found = {library: Path(library) for library in _needed(of)}
    loader = "/lib64/ld-linux-x86-64.so.2"
    found[loader] = Path(loader)
    return archive(
        folder / "libraries.tar",
        tag,
        files=found,
        texts={"/etc/passwd": PASSWD, "/etc/nsswitch.conf": "hosts: files dns\n"},
        folders=["/tmp", "/proc", "/sys", "/dev", "/etc", "/models", VOLUME, "/run"],
        environment=[
            f"LD_LIBRARY_PATH={VOLUME}/lib"
        ],  # the interpreter was built for another place
    )


def python_volume(folder: Path, roots: Iterable[Path]) -> Path:
    """A folder with this interpreter, its libraries, site-packages and our own packages; returns its python."""
    base, site = Path(sys.base_prefix), Path(sys.prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    if not packages.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("bin", "lib"):
            _link_tree(base / part, folder / part)
        _link_tree(site / "lib" / version / "site-packages", packages)
    for root in roots:
        for package in root.glob("exegpt_*"):
            target = packages / package.name
            subprocess.run(["rm", "-rf", str(target)], check=True)
            subprocess.run(["cp", "-r", str(package), str(target)], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder / "bin" / version


def _link_tree(source: Path, target: Path) -> None:
    """A copy by hard links where that is possible: gigabytes, in seconds."""
    for flag in ("-al", "-a"):
        done = subprocess.run(["cp", flag, f"{source}/.", str(target)], capture_output=True)
        if done.returncode == 0:
            return
        target.mkdir(parents=True, exist_ok=True)
    raise OSError(done.stderr.decode())


def _needed(programs: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for program in programs:
        done = subprocess.run(["ldd", str(program)], capture_output=True, text=True)
        for library in _LIBRARY.findall(done.stdout):
            if library.startswith(("/lib", "/usr/lib")):
                found.add(library)
    return found


def _parents(places: Iterable[str]) -> set[str]:
    return {
        str(parent)
        for place in places
        for parent in Path(place).parents
        if str(parent) not in ("/", ".")
    }


def _folder(place: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(place.lstrip("/"))
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if place == "/tmp" else 0o755
    return entry


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444 | (0o111 if entry.mode & 0o100 else 0)
    return entry
