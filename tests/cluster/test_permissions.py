"""What the chart's roles allow is enough for a whole life, in one namespace and in all of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import steps
from cluster.control_plane import ControlPlane
from cluster.fake_node import FakeNodes
from cluster.place import NAME
from cluster.steps import LAW, OperatorProcess, Site
from cluster.test_refusals import AUTO, DRY, take_a_device
from exegpt_operator import names
from exegpt_operator.status import HISTORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CHART = Path(__file__).parents[2] / "charts" / "exegpt"
RELEASE = "exegpt"
RBAC = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def rendered(plane: ControlPlane, namespace: str, *, cluster_wide: bool) -> list[dict[str, Any]]:
    """Who the operator is and what it may, as the chart says."""
    command = [str(plane.binaries / "helm"), "template", RELEASE, str(CHART), "-n", namespace]
    command += ["--set", f"clusterWide={str(cluster_wide).lower()}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [each for each in yaml.safe_load_all(text) if each and each["kind"] in RBAC]


def kubeconfig_of(plane: ControlPlane, namespace: str, file: Path) -> Path:
    """Of the operator's service account, by a token as its pod would have."""
    token = plane.kubectl("create", "token", RELEASE, "-n", namespace).stdout.strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(params=["one namespace", "all namespaces"])
def installed(
    request: pytest.FixtureRequest, control_plane: ControlPlane, nodes: FakeNodes, tmp_path: Path
) -> Iterator[tuple[Site, OperatorProcess]]:
    """A site, and an operator that is its service account."""
    cluster_wide = request.param == "all namespaces"
    home = "home-wide" if cluster_wide else "home-narrow"
    site = Site.made(control_plane, nodes, home)
    granted = rendered(control_plane, home, cluster_wide=cluster_wide)
    assert cluster_wide == any(each["kind"] == "ClusterRole" for each in granted)
    control_plane.apply(*granted)
    kubeconfig = kubeconfig_of(control_plane, home, tmp_path / "kubeconfig")
    options = ["--cluster-wide"] if cluster_wide else []
    operator = OperatorProcess(kubeconfig, tmp_path / "log", *options, namespace=home)
    operator.start()
    try:
        yield (Site.made(control_plane, nodes, "elsewhere") if cluster_wide else site), operator
    finally:
        for each in granted:
            if each["kind"].startswith("Cluster"):
                control_plane.kubectl("delete", each["kind"], each["metadata"]["name"])
        operator.kill()


def test_what_the_chart_allows_is_enough(installed: tuple[Site, OperatorProcess]) -> None:
    site, operator = installed
    first_line = len(site.plane.writes())
    quick = {"threshold": 0.1, "minQueries": 100, "cooldownSeconds": 0}
    site.apply(workload=None, drift=quick)
    site.until_ready()
    pods = site.serving()
    before = site.plan_id()
    site.gateway().observe(1000, input_tokens=24, output_tokens=16)
    site.until_another_plan(before)
    assert site.status()["workload"]["source"] == "Observed"
    for mean in range(HISTORY):  # until the oldest plans go
        before = site.plan_id()
        site.annotate(input=f"mean={20 + mean},std=6,max=64", output="mean=20,std=6,max=64")
        site.until_another_plan(before)
    plans = site.api.list("ConfigMap", site.namespace, names.selector(NAME, "plan"))
    assert len(plans) == HISTORY
    assert site.serving() == pods
    site.annotate(input=None, output=None)
    site.apply(workload={"input": LAW, "output": LAW}, drift=quick)
    replaced_by_template(site, pods)
    site.patch(f"xd/{NAME}", suspend=True)
    site.until("nothing held", lambda: not site.serving())
    site.patch(f"xd/{NAME}", suspend=False)
    site.until_ready()
    site.delete()
    user = f"system:serviceaccount:{operator.namespace}:{RELEASE}"
    assert refused(site, user, first_line) == []
    assert "forbidden" not in operator.said
    operator.stop()


def replaced_by_template(site: Site, pods: dict[str, str]) -> None:
    """Pods of an older template are deleted by the operator's own hand."""
    site.patch(f"xd/{NAME}", podTemplate={"labels": {"team": "nlp"}})
    site.until("other pods", lambda: not set(site.serving().values()) & set(pods.values()))
    site.until_ready()


def refused(site: Site, user: str, first: int) -> list[str]:
    return [
        f"{each['verb']} {each['objectRef']['resource']}: {each['responseStatus'].get('message')}"
        for each in site.plane.writes(first)
        if each["user"]["username"] == user and each["responseStatus"]["code"] == 403
    ]


def test_without_a_view_of_nodes_devices_are_given_back(
    control_plane: ControlPlane, nodes: FakeNodes, tmp_path: Path
) -> None:
    rare = "test.exegpt.dev/rare"
    cluster = {"gpus": 2, "gpusPerPod": 1, "resourceName": rare}
    site = Site.made(control_plane, nodes, "blind")
    operator = OperatorProcess(
        steps.operator_kubeconfig(control_plane), tmp_path / "log", namespace="blind"
    )
    operator.start()
    try:
        nodes.add("rare-0", {rare: 2})
        site.apply(cluster=cluster, scheduling=DRY)
        site.until_reason("Ready", "DryRun")
        take_a_device(site, rare)
        site.apply(cluster=cluster, scheduling=AUTO)
        site.until_reason("Ready", "InsufficientGPUs")
        site.until("nothing is held", lambda: not site.serving(), within_s=60)
        nodes.add("rare-1", {rare: 1})
        site.until_ready(within_s=150)
    finally:
        operator.stop()
