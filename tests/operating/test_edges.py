"""Small pure parts: comparing with what is there, times, leases, devices and pods."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client

from exegpt_operator.api import Api, ApiSilent
from exegpt_operator.compare import is_as_wanted, quantity, stamped
from exegpt_operator.lease import LEASE_S, Neighbours, Scope, neighbours, next_lease
from exegpt_operator.names import PROFILE_NAME_MAX, profile
from exegpt_operator.reading import (
    deployment_of,
    free_slots,
    managers_of,
    pod_of,
    refused_pods,
)
from exegpt_operator.reasons import Reason, reason_of
from exegpt_operator.roles import role_of
from exegpt_operator.times import rfc3339, seconds_of
from exegpt_planner.manifest import Cluster
from exegpt_planner.schedule import RraSchedule, WaaSchedule
from operator_world import resource

WANTED: dict[str, Any] = {
    "kind": "StatefulSet",
    "metadata": {"name": "a", "labels": {"x": "y"}},
    "spec": {"replicas": 2, "template": {"cpu": "1000m", "args": ["a", "b"], "env": {}}},
}


def test_defaults_beside_ours_are_fine_and_edits_are_not() -> None:
    there = stamped(WANTED)
    assert is_as_wanted(WANTED, there)
    assert not is_as_wanted(WANTED, None)
    assert not is_as_wanted(WANTED, WANTED), "made by someone else"
    there["spec"] = {
        **there["spec"],
        "policy": "Always",
        "template": {"cpu": "1", "args": ["a", "b"], "other": 3},
    }
    assert is_as_wanted(WANTED, there)
    for edited in ({"cpu": "2"}, {"args": ["a"]}, {"args": ["a", "c"]}):
        spec = {**there["spec"], "template": {**there["spec"]["template"], **edited}}
        assert not is_as_wanted(WANTED, {**there, "spec": spec})
    less = {**WANTED, "spec": {"replicas": 2}}
    assert not is_as_wanted(less, there), "a field that we no longer set"


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("500m", 0.5), ("4Gi", 2**32), ("2k", 2000), ("1e3", 1000)]
)
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "abc", "1.2.3", "x5"])
def test_what_is_no_quantity(text: str) -> None:
    assert quantity(text) is None


def test_times_go_there_and_back() -> None:
    assert rfc3339(1_000_000.7) == "1970-01-12T13:46:40Z"
    assert seconds_of(rfc3339(1_000_000.7)) == 1_000_000
    assert seconds_of("") == 0


def _lease(before: Any, holder: str, now_s: float) -> Any:
    return next_lease(before, name="l", namespace="n", holder=holder, scope="cluster", now_s=now_s)


def test_one_holds_the_lease_until_it_ends() -> None:
    first = _lease(None, "a", 1000.0)
    first["metadata"]["resourceVersion"] = "1"
    assert _lease(first, "b", 1000.0 + LEASE_S - 1) is None
    again = _lease(first, "a", 1005.0)
    assert again["spec"]["acquireTime"] == first["spec"]["acquireTime"]
    assert again["spec"]["leaseTransitions"] == 1
    assert again["metadata"]["resourceVersion"] == "1"
    taken = _lease(first, "b", 1000.0 + LEASE_S + 0.1)
    assert taken["spec"]["holderIdentity"] == "b"
    assert taken["spec"]["leaseTransitions"] == 2


def _node(name: str, devices: int, *, ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "status": {
            "allocatable": {"d": str(devices)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def _pod(uid: str, node: str, devices: int, phase: str = "Running") -> dict[str, Any]:
    containers = [{"resources": {"requests": {"d": str(devices)}}}]
    return {
        "metadata": {"uid": uid, "name": uid},
        "spec": {"nodeName": node, "containers": containers},
        "status": {"phase": phase},
    }


def test_devices_count_where_a_whole_pod_fits() -> None:
    nodes = [_node("a", 8), _node("b", 3), _node("c", 8, ready="False")]
    pods = [_pod("1", "a", 5), _pod("2", "a", 2, "Succeeded"), _pod("3", "b", 2)]
    assert free_slots(nodes, pods, resource="d", each=1, own=set()) == 4
    assert free_slots(nodes, pods, resource="d", each=2, own=set()) == 1
    assert free_slots(nodes, pods, resource="d", each=2, own={"1"}) == 4
    assert free_slots(nodes, pods, resource="other", each=1, own=set()) == 0


def test_a_pod_that_waits_says_for_what() -> None:
    found = pod_of(
        {
            "metadata": {"name": "p", "uid": "u", "creationTimestamp": "1970-01-01T00:00:10Z"},
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}],
                "containerStatuses": [
                    {
                        "name": "c",
                        "ready": False,
                        "restartCount": 3,
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                        "lastState": {"terminated": {"reason": "OOMKilled"}},
                    }
                ],
            },
        },
        now_s=40.0,
    )
    assert (found.is_scheduled, found.unscheduled_because, found.age_s) == (False, "0/1 nodes", 30)
    (container,) = found.containers
    assert (container.waiting, container.ended) == ("CrashLoopBackOff", "OOMKilled")


def test_who_set_an_annotation_is_read_from_managed_fields() -> None:
    fields: dict[str, Any] = {
        "f:metadata": {"f:annotations": {"f:exegpt.dev/observed-input": {}, ".": {}}}
    }
    managed = [{"manager": "kubectl-annotate", "fieldsV1": fields}]
    found = managers_of({"metadata": {"managedFields": managed}})
    assert found == {"exegpt.dev/observed-input": "kubectl-annotate"}


def test_what_a_cluster_cannot_serve_is_named() -> None:
    found, problems = deployment_of(resource(model={"uri": "demo://x", "dtype": "float16"}))
    assert found is None
    assert len(problems) == 2


def test_equal_profiles_share_a_name_that_fits() -> None:
    spec = {"model": {"uri": "hf://a/" + "Very.Long_Name" * 9}, "workers": 2}
    assert profile(spec) == profile(dict(reversed(spec.items())))
    assert profile(spec) != profile(spec | {"workers": 3})
    assert len(profile(spec)) <= PROFILE_NAME_MAX


def test_roles_are_slices_of_a_replica() -> None:
    waa = WaaSchedule(encoders=1, decoders=3, encode_batch=4, pool=8)
    ones, twos = Cluster(gpus=4, gpus_per_pod=1), Cluster(gpus=4, gpus_per_pod=2)
    assert [role_of(waa, ones, pod) for pod in range(8)] == ["encoder", *["decoder"] * 3] * 2
    assert [role_of(waa, twos, pod) for pod in range(2)] == ["both", "decoder"]
    rra = RraSchedule(encode_batch=4, encode_interval=8)
    assert role_of(rra, ones, 0) == "both"


def test_every_reason_means_something_and_is_a_word() -> None:
    for reason in Reason:
        assert str(reason).isalnum()
        assert reason.meaning.endswith(".")
        assert not reason.remedy or reason.remedy.endswith(".")
        assert reason_of(str(reason)) is reason
    with pytest.raises(KeyError):
        reason_of("Nonsense")


def test_refused_pods_are_those_since_we_asked() -> None:
    def event(seconds: float, message: str) -> dict[str, str]:
        return {"lastTimestamp": rfc3339(seconds), "message": message}

    fields = [{"manager": "exegpt-operator", "time": rfc3339(1000)}]
    fields.append({"manager": "kube-controller-manager", "time": rfc3339(2000)})
    owner = {"metadata": {"managedFields": fields}}
    old, new = event(999, "of the time before"), event(1001, "exceeded quota")
    assert refused_pods(owner, []) == ""
    assert refused_pods(owner, [old]) == ""
    assert refused_pods(owner, [new, old, event(1000, "first")]) == "exceeded quota"


def test_an_api_server_that_does_not_answer_is_a_refusal() -> None:
    configuration = client.Configuration(host="http://127.0.0.1:9")  # nobody listens there
    configuration.retries = False
    with pytest.raises(ApiSilent, match="does not answer"):
        Api(client.ApiClient(configuration)).get("Pod", "n", "p")


def held(namespace: str, scope: Scope, since_s: float) -> dict[str, Any]:
    lease = next_lease(
        None, name="l", namespace=namespace, holder=namespace, scope=scope, now_s=since_s
    )
    assert lease is not None
    return lease


def test_a_namespace_is_its_own_operators_and_all_others_the_oldest_ones() -> None:
    leases = [held("a", "cluster", 1.0), held("b", "cluster", 0.0), held("c", "namespace", 2.0)]
    seen = {name: neighbours(leases, namespace=name, now_s=3.0) for name in ("a", "b")}
    assert seen["b"] == Neighbours(own=frozenset({"c"}))
    assert seen["a"] == Neighbours(own=frozenset({"c"}), older="b")
    assert neighbours(leases, namespace="a", now_s=LEASE_S + 0.5).older == "", "it has ended"
    assert neighbours([], namespace="a", now_s=3.0) == Neighbours()
    same = [held("a", "cluster", 1.0), held("b", "cluster", 1.0)]
    assert [neighbours(same, namespace=n, now_s=2.0).older for n in ("a", "b")] == ["", "a"]
