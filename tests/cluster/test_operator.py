"""The operator on a real API server, with controllers and without nodes: it watches, says why, and rests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.whole import deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAMESPACE = "watched"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "weights", "namespace": NAMESPACE},
    "spec": {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


@pytest.fixture
def operator(control_plane: ControlPlane, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One in a process, as the administrator."""
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    command = [sys.executable, "-m", "exegpt_operator.main", "--namespace", NAMESPACE]
    command += ["--cluster-wide", "--runner-image", "localhost/none:1"]
    command += ["--health-port", "18080", "--metrics-port", "19090"]
    environment = os.environ | {"KUBECONFIG": str(control_plane.kubeconfig)}
    with (tmp_path / "operator.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
    assert "Traceback" not in (tmp_path / "operator.log").read_text()


def until(holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, "not in time"
        time.sleep(0.2)


def conditions(plane: ControlPlane, kind: str, name: str) -> dict[str, tuple[str, str, str]]:
    found: dict[str, Any] = plane.get(kind, name, "-n", NAMESPACE).get("status", {})
    return {
        each["type"]: (each["status"], each["reason"], each["message"])
        for each in found.get("conditions", [])
    }


def test_it_says_what_the_scheduler_says_rests_and_is_not_missed(
    control_plane: ControlPlane, operator: subprocess.Popen[bytes]
) -> None:
    plane = control_plane
    plane.apply(deployment(NAMESPACE))
    until(lambda: conditions(plane, "xd", "translate").get("Ready", ("",) * 3)[1] == "MissingClaim")
    plane.apply(CLAIM)
    plane.kubectl("annotate", "xd/translate", "-n", NAMESPACE, "looked=again")
    until(
        lambda: "no nodes available" in conditions(plane, "xd", "translate")["Profiled"][2],
        within_s=60,
    )
    assert conditions(plane, "xd", "translate")["Reconciling"][0] == "True"
    (profile,) = plane.get("xp", "-n", NAMESPACE)["items"]
    name = profile["metadata"]["name"]
    assert conditions(plane, "xp", name)["Ready"][:2] == ("Unknown", "Unschedulable")
    assert plane.get("job", name, "-n", NAMESPACE)["metadata"]["ownerReferences"]
    assert "finalizers" not in plane.get("xd", "translate", "-n", NAMESPACE)["metadata"]
    before = len(plane.writes())
    with pytest.raises(AssertionError, match="not in time"):
        until(lambda: bool(ours(plane, before)), within_s=60)
    operator.terminate()
    operator.wait(30)
    plane.kubectl("delete", "xd", "translate", "-n", NAMESPACE, "--timeout=10s")


def ours(plane: ControlPlane, first: int) -> list[str]:
    """Writes of the administrator, who the operator is here, but for its Lease."""
    return [
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in plane.writes(first)
        if each["user"]["username"] == "admin" and each["objectRef"]["resource"] != "leases"
    ]
