"""The operator as a process on a real API server, with fake nodes and pods: lives, rests, edits by hand, ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import steps
from cluster.control_plane import ControlPlane
from cluster.fake_node import FakeNodes
from cluster.fake_pods import IMAGE_PULL
from cluster.place import NAME, until, writes_of
from cluster.steps import HOME, LAW, OPERATOR, OperatorProcess, Site, own_fields
from exegpt_operator import names
from exegpt_operator.process import LEASE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LONGEST = "a" * 40  # that the definition allows
OURS = {names.NAME_LABEL: "exegpt"}
CHILDREN = ("StatefulSet", "Service", "ConfigMap")


@pytest.mark.smoke
def test_a_life(site: Site, operator: OperatorProcess) -> None:
    site.apply()
    site.until_ready()
    first, pods = site.plan_id(), site.serving()
    assert len(pods) == 3
    site.patch(f"xd/{NAME}", workload={"output": LAW | {"mean": 30}})
    site.until_another_plan(first)
    assert site.works_by() == site.plan_id()
    site.annotate(input="mean=20,std=6,max=48", output="mean=30,std=8,max=64")
    second = site.plan_id()
    site.until_another_plan(second)
    assert site.status()["workload"]["source"] == "Annotation"
    assert site.works_by() == site.plan_id()
    assert site.serving() == pods
    assert "finalizers" not in site.get(names.DEPLOYMENT, NAME)["metadata"]
    site.delete()
    site.until("no child", lambda: not _children(site))


def test_at_rest_nothing_is_written(site: Site, operator: OperatorProcess) -> None:
    site.apply()
    site.until_ready()
    before = len(site.plane.writes())
    with pytest.raises(AssertionError, match="not a write"):
        site.until("a write", lambda: bool(writes_of(site.plane, OPERATOR, before)), within_s=45)


def test_the_longest_name_and_two_replicas(site: Site, operator: OperatorProcess) -> None:
    site.apply(LONGEST, replicas=2, model={"uri": "hf://test/" + "M_" * 60})
    site.until_ready(LONGEST)
    assert len(site.serving(LONGEST)) == 6
    assert site.gateway(LONGEST, replica=1).plan_id == site.plan_id(LONGEST)
    assert site.status(LONGEST)["readyReplicas"] == 2


def test_plans_wait_for_a_person_where_one_wants_that(
    site: Site, operator: OperatorProcess
) -> None:
    dry, review = ({"strategies": ["RRA"], "planPolicy": policy} for policy in ("DryRun", "Review"))
    site.apply(scheduling=dry)
    assert "Auto or Review" in site.until_reason("Ready", "DryRun")
    assert site.plan_id()
    site.apply(scheduling=review)
    assert site.plan_id() in site.until_reason("Ready", "AwaitingApproval")
    assert site.serving() == {}
    approve(site)
    site.until_ready()
    first = site.plan_id()
    site.apply(scheduling=review, workload={"input": LAW, "output": LAW | {"mean": 30}})
    site.until("another plan", lambda: site.plan_id() not in ("", first))
    assert site.plan_id() in site.until_reason("Scheduled", "AwaitingApproval")
    assert site.works_by() == first  # approved, and in force until another one is
    assert site.status()["plan"]["isApproved"] is False
    approve(site)
    site.until("steered", lambda: site.works_by() == site.plan_id())
    site.until_ready()


def approve(site: Site) -> None:
    site.kubectl("annotate", f"xd/{NAME}", "--overwrite", f"{names.APPROVED_PLAN}={site.plan_id()}")


def test_suspended_and_resumed(site: Site, operator: OperatorProcess) -> None:
    site.apply()
    site.until_ready()
    plan = site.plan_id()
    site.patch(f"xd/{NAME}", suspend=True)
    site.until_reason("Ready", "Suspended")
    site.until("nothing held", lambda: not site.serving())
    site.patch(f"xd/{NAME}", suspend=False)
    site.until_ready()
    assert site.plan_id() == plan
    assert site.status()["plan"]["revision"] == 1


def test_deleted_and_applied_again_at_once(site: Site, operator: OperatorProcess) -> None:
    """What the collector has not come to yet is of another deployment, of the same name."""
    site.apply()
    site.until_ready()
    site.delete()
    site.apply()
    uid = site.get(names.DEPLOYMENT, NAME)["metadata"]["uid"]
    site.until("owned anew", lambda: _owners(site) == {uid})
    site.until_ready()
    pods = site.serving()
    site.patch(f"xd/{NAME}", workload={"output": LAW | {"mean": 30}})
    site.until_another_plan(site.plan_id())
    assert site.serving() == pods


def test_another_pod_template_is_served_once_it_is_profiled(
    site: Site, operator: OperatorProcess
) -> None:
    """Until then what runs is left alone, and a gateway that starts anew starts by what was in force."""
    site.apply()
    site.until_ready()
    workers, plan_id = site.serving(), site.plan_id()
    site.nodes.ailments[site.namespace, "profile"] = IMAGE_PULL
    site.patch(
        f"xd/{NAME}", podTemplate={"priorityClassName": "", "env": [{"name": "A", "value": "1"}]}
    )
    site.until("it says what it waits for", lambda: "resolve" in site.condition("Profiled")[2])
    gateway = f"{names.gateway(NAME)}-0"
    site.plane.kubectl("delete", "pod", gateway, "-n", site.namespace)
    del workers[gateway]
    site.until("a gateway anew", lambda: site.works_by() == plan_id)
    assert workers.items() <= site.serving().items()
    del site.nodes.ailments[site.namespace, "profile"]
    site.until("other pods", lambda: not set(site.serving().values()) & set(workers.values()))
    site.until_ready()


def _owners(site: Site) -> set[str]:
    children = [child for kind in CHILDREN for child in _deployments(site, kind)]
    token = site.api.get("Secret", site.namespace, names.token(NAME))
    children += [] if token is None else [token]
    return {owner["uid"] for each in children for owner in each["metadata"]["ownerReferences"]}


EDITS: dict[str, tuple[str, ...]] = {
    "the scale of workers": ("scale", "sts/translate-workers", "--replicas=5"),
    "none of them": ("scale", "sts/translate-workers", "--replicas=0"),
    "their image": ("set", "image", "sts/translate-workers", "worker-0=other:1"),
    "the gateway's environment": ("set", "env", "sts/translate-gateway", "HOME=/root"),
    "a label": ("label", "service/translate", f"{names.MANAGED_BY_LABEL}=me", "--overwrite"),
    "a service": ("delete", "service", "translate"),
    "what gateways start from": ("delete", "configmap", "translate-serving"),
    "a whole set": ("delete", "sts", "translate-gateway"),
}


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, nodes: FakeNodes, operator: OperatorProcess
) -> Iterator[Site]:
    """One that is Ready before each edit of its children."""
    made = Site.made(control_plane, nodes, "edited")
    made.apply()
    yield made
    made.delete()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_by_hand_is_taken_back(served: Site, edit: str) -> None:
    served.until_ready()
    before, pods = _children(served), served.serving()
    served.kubectl(*EDITS[edit])
    served.until("as before", lambda: _children(served) == before)
    served.until_ready()
    if edit == "their image":
        assert served.serving() == pods  # taken back before a pod was made by it


def _children(site: Site) -> dict[str, Any]:
    found = [own_fields(child) for kind in CHILDREN for child in _deployments(site, kind)]
    return {f"{child['kind']}/{child['metadata']['name']}": child for child in found}


def _deployments(site: Site, kind: str) -> list[dict[str, Any]]:
    return site.api.list(kind, site.namespace, OURS | {names.INSTANCE_LABEL: NAME})


@pytest.mark.smoke
def test_a_second_operator_waits_and_takes_over(
    site: Site, operator: OperatorProcess, tmp_path: Path
) -> None:
    plane = site.plane
    plane.authority.issue("second", "second", groups=["system:masters"])
    kubeconfig = plane.authority.kubeconfig("second", plane.server)
    second = OperatorProcess(kubeconfig, tmp_path / "second.log", "--cluster-wide")
    second.start()
    try:
        until("up", lambda: bool(second.metrics()))
        before = len(plane.writes())
        site.apply()
        site.until_ready()
        assert writes_of(plane, "second", before) == []
        pods, first = site.serving(), site.plan_id()
        holder = _holder(site)
        operator.kill()
        site.patch(f"xd/{NAME}", workload={"output": LAW | {"mean": 30}})
        site.until("taken over", lambda: _holder(site) != holder, within_s=30)
        site.until_another_plan(first)
        assert site.serving() == pods
        assert writes_of(plane, "second", before)
    finally:
        second.stop()
        steps.free_lease(plane)
        operator.start()


def _holder(site: Site) -> str:
    lease = site.api.get("Lease", HOME, LEASE)
    return "" if lease is None else str(lease["spec"]["holderIdentity"])


def test_a_namespace_that_ends(
    control_plane: ControlPlane, nodes: FakeNodes, operator: OperatorProcess
) -> None:
    site = Site.made(control_plane, nodes, "ending")
    site.apply()
    site.until_ready()
    before = len(control_plane.writes())
    control_plane.kubectl("delete", "namespace", "ending", "--wait=false")
    site.until("gone", lambda: site.api.get("Namespace", None, "ending") is None)
    assert len(writes_of(control_plane, OPERATOR, before)) < 10  # those under way then
    before = len(control_plane.writes())
    with pytest.raises(AssertionError, match="not a write"):
        until("a write", lambda: bool(writes_of(control_plane, OPERATOR, before)), within_s=10)


def test_deleted_in_every_stage_with_the_operator_down(
    site: Site, control_plane: ControlPlane, nodes: FakeNodes, operator: OperatorProcess
) -> None:
    profiling = Site.made(control_plane, nodes, "profiling")
    nodes.ailments["profiling", "profile"] = IMAGE_PULL
    profiling.apply()
    site.apply("serving")
    site.apply("suspended", suspend=True)
    site.apply("dry", scheduling={"strategies": ["RRA"], "planPolicy": "DryRun"})
    site.until_ready("serving")
    site.until_reason("Ready", "Suspended", "suspended")
    site.until_reason("Ready", "DryRun", "dry")
    profiling.until("being profiled", lambda: "resolve" in profiling.condition("Profiled")[2])
    operator.kill()
    try:
        site.apply("unseen")
        for name in ("serving", "suspended", "dry", "unseen"):
            site.delete(name)
        profiling.delete()
        site.until(
            "no pod",
            lambda: not site.pods("worker", "serving") and not site.pods("gateway", "serving"),
        )
        site.until(
            "no child",
            lambda: (
                not any(
                    child["metadata"].get("ownerReferences", [{}])[0].get("kind")
                    == names.DEPLOYMENT
                    for kind in CHILDREN
                    for child in site.api.list(kind, site.namespace, OURS)
                )
            ),
        )
    finally:
        steps.free_lease(control_plane)
        operator.start()
