"""The cluster's fixtures. Without Go the tier says why it skips; with EXEGPT_CLUSTER_REQUIRED that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import binaries
from cluster.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]


def _lacking(what: str) -> None:
    """Skips, or fails where a skipped tier must not pass for a tested one."""
    if os.environ.get("EXEGPT_CLUSTER_REQUIRED"):
        pytest.fail(f"the cluster tier is required here, and {what}", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def programs() -> Path:
    """etcd, API server, controllers, scheduler, kubectl and helm, built from source if they are not here yet."""
    missing = [name for name in binaries.CONTROL_PLANE if not (binaries.folder() / name).exists()]
    if missing and shutil.which("go") is None:
        _lacking(f"there is no Go to build {', '.join(missing)} with")
    return binaries.build(binaries.CONTROL_PLANE)


@pytest.fixture(scope="session")
def control_plane(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server with its controllers and our resource definitions, without nodes."""
    made = ControlPlane.started(
        tmp_path_factory.mktemp("control-plane") / "run", programs, for_nodes=False
    )
    try:
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            made.kubectl("apply", "--server-side", "-f", str(path))
        for kind in ("exegptdeployments", "exegptprofiles"):
            made.kubectl(
                "wait", "--for=condition=Established", f"crd/{kind}.exegpt.dev", "--timeout=30s"
            )
        yield made
    finally:
        made.stop()
