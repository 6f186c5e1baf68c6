"""The operator as a process on a real API server, with fake nodes and pods: a deployment's life, and its rest."""

from __future__ import annotations

import pytest

from cluster.steps import LAW, NAME, OPERATOR, OperatorProcess, Site, writes_of
from exegpt_operator import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "weights"},
    "spec": {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


def test_a_life(site: Site, operator: OperatorProcess) -> None:
    site.apply()
    site.until_ready()
    first, pods = site.plan_id(), site.serving()
    assert len(pods) == 3
    site.patch(f"xd/{NAME}", workload={"output": LAW | {"mean": 30}})
    site.until("another plan", lambda: site.plan_id() not in ("", first))
    site.until_ready()
    assert site.gateway().plan_id == site.plan_id()
    site.annotate(input="mean=20,std=6,max=48", output="mean=30,std=8,max=64")
    second = site.plan_id()
    site.until("a plan for the annotation", lambda: site.plan_id() != second)
    site.until_ready()
    assert site.status()["workload"]["source"] == "Annotation"
    assert site.gateway().plan_id == site.plan_id()
    assert site.serving() == pods
    assert "finalizers" not in site.get(names.DEPLOYMENT, NAME)["metadata"]


def test_at_rest_nothing_is_written(site: Site, operator: OperatorProcess) -> None:
    site.apply()
    site.until_ready()
    before = len(site.plane.writes())
    with pytest.raises(AssertionError, match="not a write"):
        site.until("a write", lambda: bool(writes_of(site.plane, OPERATOR, before)), within_s=45)
