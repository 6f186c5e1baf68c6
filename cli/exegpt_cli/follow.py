"""Following the manifest while it is served: what is edited becomes a new schedule at the next step, without a pause.

The worker keeps its weights and its KV, so another model or cluster needs a restart, and says so. It cannot measure
meanwhile either: a plan beyond the profile is refused. Whatever is refused, the schedule in force goes on.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.local import Ready
from exegpt_cli.wanted import Wanted, read_wanted
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import Deployment, read_manifest
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import make_plan


class ManifestWatch:
    """Whether a manifest has changed since the last look."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._digest = self._read()

    def has_changed(self) -> bool:
        """True once for each change; a file that is gone, as while an editor replaces it, has not changed."""
        digest = self._read()
        if digest is None or digest == self._digest:
            return False
        self._digest = digest
        return True

    def _read(self) -> bytes | None:
        try:
            return hashlib.sha256(self._file.read_bytes()).digest()
        except OSError:
            return None


def replanned(
    ready: Ready, file: Path, cache: Cache, *, strategy: str | None, probes: float
) -> Ready:
    """The plan for `file` as it is now, on the worker and the profile of `ready`."""
    _check_same(read_manifest(file), ready.wanted.deployment, file)
    wanted = read_wanted(file, cache, strategy=strategy, probes=probes)
    plan = make_plan(
        table=ready.table,
        model=wanted.model,
        workload=wanted.workload,
        bound=wanted.bound,
        memory=_held(ready, wanted),
        strategies=wanted.strategies,
        workers=wanted.num_workers,
    )
    return replace(ready, wanted=wanted, plan=plan)


def _check_same(new: Deployment, old: Deployment, file: Path) -> None:
    """Raises `InvalidSpec` where the running worker cannot follow."""
    problems = [
        f"spec.{name}: changed while it is served; restart exegpt serve for it"
        for name in ("model", "cluster")
        if getattr(new.spec, name) != getattr(old.spec, name)
    ]
    if problems:
        raise InvalidSpec(str(file), problems)


def _held(ready: Ready, wanted: Wanted) -> MemoryBudget:
    """What the worker holds already."""
    dtype = wanted.deployment.spec.model.dtype
    kv_bytes = ready.plan.kv_tokens_capacity * wanted.model.kv_bytes_per_token(dtype)
    return MemoryBudget(device_bytes=wanted.model.weight_bytes(dtype) + kv_bytes)
