"""What a cluster lacks or refuses, on a real API server: said in its own words, and gone on with once it is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.tables import KEY, LARGE, table_up_to
from cluster.fake_pods import CRASH_LOOP, IMAGE_PULL, OOM_KILLED, Ailment
from cluster.place import NAME
from cluster.steps import DEVICE, OperatorProcess, Site, deployment
from exegpt_operator import names
from planner.builders import MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DRY = {"strategies": ["RRA"], "planPolicy": "DryRun"}
AUTO = {"strategies": ["RRA"], "planPolicy": "Auto"}


def test_a_claim_that_is_missing_and_then_unbound(site: Site, operator: OperatorProcess) -> None:
    site.apply(model={"uri": "pvc://weights"})
    assert "PersistentVolumeClaim weights" in site.until_reason("Ready", "MissingClaim")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights", "namespace": site.namespace},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    site.api.create(claim)
    site.until("scheduler's words", lambda: "unbound" in site.condition("Profiled")[2])
    assert site.condition("Profiled")[1] == "Unschedulable"
    assert site.condition("Stalled")[0] == "True"
    assert profile(site)["status"]["conditions"][0]["reason"] == "Unschedulable"
    site.plane.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": site.namespace},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "hostPath": {"path": "/nonexistent"},
                "claimRef": {"name": "weights", "namespace": site.namespace},
            },
        }
    )
    site.until_ready()


def profile(site: Site) -> dict[str, Any]:
    (found,) = site.api.list(names.PROFILE, site.namespace)
    return found


def test_a_secret_that_is_missing_and_then_lacks_its_key(
    site: Site, operator: OperatorProcess
) -> None:
    source = {"secretKeyRef": {"name": "hub", "key": "token"}}
    site.apply(podTemplate={"env": [{"name": "HF_TOKEN", "valueFrom": source}]})
    assert "Secret hub" in site.until_reason("Ready", "MissingSecret")
    site.kubectl("create", "secret", "generic", "hub", "--from-literal=other=1")
    site.until("kubelet's words", lambda: "find key token" in site.condition("Profiled")[2])
    site.kubectl("patch", "secret", "hub", "-p", '{"stringData": {"token": "1"}}')
    site.until_ready()


def test_one_device_too_few_holds_none_until_there_is_one(
    site: Site, operator: OperatorProcess
) -> None:
    scarce = "test.exegpt.dev/scarce"
    cluster = {"gpus": 2, "gpusPerPod": 1, "resourceName": scarce}
    site.nodes.add("scarce-0", {scarce: 2})
    site.apply(cluster=cluster, scheduling=DRY)
    site.until_reason("Ready", "DryRun")
    take_a_device(site, scarce)
    site.apply(cluster=cluster, scheduling=AUTO)
    words = site.until_reason("Ready", "InsufficientGPUs")
    assert f"1 {scarce}" in words
    site.until("nothing is held", lambda: not site.serving(), within_s=60)
    site.nodes.add("scarce-1", {scarce: 1})
    site.until_ready(within_s=90)


def take_a_device(site: Site, resource: str) -> None:
    device = {resource: "1"}
    container = {"name": "c", "image": "none", "resources": {"requests": device, "limits": device}}
    site.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "taker", "namespace": site.namespace},
            "spec": {"containers": [container]},
        }
    )
    site.until("bound", lambda: bool(site.get("Pod", "taker")["spec"].get("nodeName")))


def test_a_device_that_no_node_has(site: Site, operator: OperatorProcess) -> None:
    site.apply(cluster={"gpus": 2, "resourceName": "vendor.test/thing"})
    site.until(
        "scheduler's words",
        lambda: "Insufficient vendor.test/thing" in site.condition("Ready")[2],
    )
    assert profile(site)["status"]["conditions"][0]["reason"] == "InsufficientGPUs"
    assert not site.serving()


AILMENTS: dict[str, tuple[str, Ailment, str, str]] = {
    "workers' image": ("worker", IMAGE_PULL, "WorkersReady", "ImagePullError"),
    "workers crash": ("worker", CRASH_LOOP, "WorkersReady", "CrashLoop"),
    "workers' memory": ("worker", OOM_KILLED, "WorkersReady", "OOMKilled"),
    "the gateway crashes": ("gateway", CRASH_LOOP, "EndpointReady", "CrashLoop"),
}


@pytest.mark.parametrize("case", AILMENTS)
def test_pods_that_ail_and_recover(site: Site, operator: OperatorProcess, case: str) -> None:
    component, ailment, kind, reason = AILMENTS[case]
    site.nodes.ailments[site.namespace, component] = ailment
    site.apply()
    words = site.until_reason(kind, reason)
    assert f"Pod {NAME}-" in words
    assert site.condition("Ready")[:2] == ("False", reason)
    assert site.condition("Stalled")[0] == "True"
    del site.nodes.ailments[site.namespace, component]
    site.until_ready()


def test_a_profile_that_fails_is_measured_again_once_deleted(
    site: Site, operator: OperatorProcess
) -> None:
    site.nodes.profile_problems[site.namespace] = "the model has no weights"
    site.apply()
    assert "no weights" in site.until_reason("Ready", "ProfileFailed")
    del site.nodes.profile_problems[site.namespace]
    site.kubectl("delete", "xp", "--all")
    site.until_ready()


def test_pods_that_a_quota_refuses(site: Site, operator: OperatorProcess) -> None:
    site.apply(scheduling=DRY)
    site.until_reason("Ready", "DryRun")
    site.kubectl("create", "quota", "few", "--hard=pods=0")
    site.apply(scheduling=AUTO)
    assert "exceeded quota: few" in site.until_reason("Ready", "Forbidden")
    site.kubectl("delete", "quota", "few")
    site.until_ready(within_s=120)


def hand_made(site: Site, name: str, resource: str) -> dict[str, Any]:
    model = {"uri": "hf://test/demo", "dtype": "bfloat16"}
    spec = {"model": model, "resourceName": resource, "workers": 2}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE,
        "metadata": {"name": name, "namespace": site.namespace},
        "spec": spec,
    }


def test_a_profile_made_by_hand_is_measured(site: Site, operator: OperatorProcess) -> None:
    site.api.apply(hand_made(site, "by-hand", DEVICE), manager="person")
    site.until("measured", lambda: ready(site, "by-hand") == ("True", "Profiled"))
    assert site.get("ConfigMap", "by-hand-table")["data"]["table.json"]
    site.until("taken", lambda: site.get("Job", "by-hand").get("status", {}).get("succeeded") == 1)


def test_a_profile_of_a_device_that_is_not_here(site: Site, operator: OperatorProcess) -> None:
    site.api.apply(hand_made(site, "elsewhere", "vendor.test/thing"), manager="person")
    site.until("in vain", lambda: ready(site, "elsewhere")[1] == "InsufficientGPUs")
    table = table_up_to(LARGE, KEY.model_copy(update={"workers": 2, "device": "thing: test"}))
    data = {"table.json": table.model_dump_json(), "model.json": MODEL.model_dump_json()}
    data["memory.json"] = json.dumps({"device_bytes": 1 << 30, "reserve_bytes": 0})
    metadata = {"name": "brought-table", "namespace": site.namespace}
    table_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    site.api.apply(table_map, manager="person")
    site.api.apply(hand_made(site, "brought", "vendor.test/thing"), manager="person")
    site.until("ready without a Job", lambda: ready(site, "brought") == ("True", "Profiled"))
    assert site.get(names.PROFILE, "brought")["status"]["device"] == "thing: test"
    assert site.api.get("Job", site.namespace, "brought") is None


def ready(site: Site, name: str) -> tuple[str, str]:
    conditions = site.get(names.PROFILE, name).get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in conditions), ("", ""))


def test_an_infeasible_bound_is_refused_once(site: Site, operator: OperatorProcess) -> None:
    site.apply(latencyBound={"seconds": 0.0001})
    site.until_reason("Ready", "Infeasible")
    assert not site.serving()
    site.api.apply(deployment(site.namespace), manager="person")
    site.until_ready()
