"""What this machine and this engine are: the parts of a profile's key that do not depend on the model.

Never imports torch, so that a cached profile is found without starting a worker.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib import metadata
from pathlib import Path

# Sources that decide how long a step takes; a change of any makes another engine.
_ENGINE_SOURCES = (
    "engine.py",
    "kv_arena.py",
    "sampler.py",
    "weights.py",
    "clocks.py",
    "measure.py",
)
_ENGINE_FOLDERS = ("layers", "models")


def device() -> str:
    """This machine's device, e.g. "cpu: Intel(R) Xeon(R) Processor x2"."""
    return f"cpu: {_cpu_model()} x{os.cpu_count() or 1}"


def memory_bytes() -> int:
    """Memory of this machine, or of the control group the process lives in if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (
        _limit("/sys/fs/cgroup/memory.max"),
        _limit("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    )
    return min([physical, *(limit for limit in limits if limit is not None)])


@cache
def versions() -> dict[str, str]:
    """Versions a profile depends on."""
    return {"torch": metadata.version("torch"), "engine": _engine_hash()}


def _engine_hash() -> str:
    folder = Path(__file__).parent
    files = [folder / name for name in _ENGINE_SOURCES]
    files += [path for name in _ENGINE_FOLDERS for path in sorted((folder / name).glob("*.py"))]
    digest = hashlib.sha256()
    for path in files:
        if path.exists():
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return os.uname().machine  # ARM kernels print no model name


def _limit(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
