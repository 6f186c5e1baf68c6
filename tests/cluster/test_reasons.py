"""What can go wrong with pods, each provoked on the real node: the reason, cause and remedy that are said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.measured import Measured
from cluster.traffic import cut_off
from cluster.whole import DEVICE, SERVING, Cluster, deployment
from exegpt_operator import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

NAMESPACE = "troubled"
SOON_S = 120.0


@pytest.fixture(scope="module")
def troubled(installed: Cluster) -> Cluster:
    installed.namespace(NAMESPACE)
    installed.plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hub", "namespace": NAMESPACE},
            "stringData": {"token": "x"},
        }
    )
    return installed


def from_secret(key: str) -> dict[str, Any]:
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": key}}}


LIMITS = {"limits": {"memory": "4Gi"}}
CASES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "oom": (
        {"podTemplate": {"resources": {"limits": {"memory": "96Mi"}}}},
        "OOMKilled",
        ("container worker-0", "podTemplate.resources.limits.memory"),
    ),
    "crash": (
        {"podTemplate": {"resources": LIMITS, "env": [{"name": "PYTHONHOME", "value": "/no"}]}},
        "CrashLoop",
        ("container worker-0", "kubectl logs --previous"),
    ),
    "key": (
        {"podTemplate": {"resources": LIMITS, "env": [from_secret("absent")]}},
        "MissingSecret",
        ("key absent", "Secret"),
    ),
    "selector": (
        {"podTemplate": {"resources": LIMITS, "nodeSelector": {"gpu": "none"}}},
        "Unschedulable",
        ("node affinity/selector", "podTemplate"),
    ),
    "devices": (
        {"cluster": {"gpus": 4, "gpusPerPod": 1, "resourceName": DEVICE}},
        "InsufficientGPUs",
        ("4 pods", "room for 2"),
    ),
}


@contextmanager
def deployed(where: Cluster, measured: Measured, name: str, **spec: Any) -> Iterator[str]:
    """A deployment that need not measure, gone afterwards with all its pods."""
    wanted = deployment(NAMESPACE, name, **spec)
    measured.put_on_file(where, wanted)
    where.plane.apply(wanted)
    try:
        yield name
    finally:
        where.plane.kubectl("delete", f"xd/{name}", "-n", NAMESPACE, "--timeout=30s")
        where.wait_for(
            "gone",
            lambda: not where.pods(NAMESPACE, **{"app.kubernetes.io/instance": name}),
            within_s=60,
            tell=lambda: str(where.pods(NAMESPACE)),
        )


@pytest.mark.parametrize("name", CASES)
def test_a_pods_trouble_is_said_in_the_clusters_words(
    troubled: Cluster, measured: Measured, name: str
) -> None:
    spec, reason, words = CASES[name]
    if name == "devices":
        measured = measured.for_workers(4)
    with deployed(troubled, measured, name, **spec):
        troubled.wait_for(
            reason,
            lambda: troubled.condition(NAMESPACE, name, "WorkersReady")[1] == reason,
            within_s=SOON_S,
            tell=lambda: troubled.describe(NAMESPACE, name),
        )
        message = troubled.condition(NAMESPACE, name, "Ready")[2]
        assert all(part in message for part in words), message
        assert troubled.condition(NAMESPACE, name, "Stalled")[0] == "True"
        if reason in ("Unschedulable", "InsufficientGPUs"):
            troubled.wait_for(
                "held by nothing",
                lambda: not troubled.pods(NAMESPACE, component="worker"),
                within_s=60,
                tell=lambda: troubled.describe(NAMESPACE, name),
            )


def test_a_folder_that_is_no_model_fails_its_profile(troubled: Cluster) -> None:
    wanted = deployment(NAMESPACE, "nothing", model={"uri": "pvc://python/lib"})
    troubled.plane.apply(wanted)
    troubled.wait_for(
        "ProfileFailed",
        lambda: troubled.condition(NAMESPACE, "nothing", "Profiled")[1] == "ProfileFailed",
        within_s=SOON_S,
        tell=lambda: troubled.describe(NAMESPACE, "nothing"),
    )
    assert "config.json" in troubled.condition(NAMESPACE, "nothing", "Ready")[2]
    troubled.plane.kubectl("delete", "xd/nothing", "-n", NAMESPACE, "--timeout=30s")
    troubled.plane.kubectl("delete", "xp", "--all", "-n", NAMESPACE, "--timeout=30s")


def test_an_image_that_is_not_there(troubled: Cluster, measured: Measured) -> None:
    """By an operator of its own, in a namespace of its own, with a Role only."""
    namespace = "imageless"
    troubled.namespace(namespace)
    troubled.install(
        namespace,
        name="second",
        **{"clusterWide": "false", "images.runner": "localhost/exegpt-tests/none:1"},
    )
    troubled.plane.apply(deployment(namespace, "imageless"))
    troubled.wait_for(
        "ImagePullError",
        lambda: troubled.condition(namespace, "imageless", "Profiled")[1] == "ImagePullError",
        within_s=SOON_S,
        tell=lambda: troubled.describe(namespace, "imageless"),
    )
    assert "localhost/exegpt-tests/none:1" in troubled.condition(namespace, "imageless", "Ready")[2]
    troubled.plane.kubectl("delete", "xd/imageless", "-n", namespace, "--timeout=30s")
    troubled.helm("uninstall", "second", "-n", namespace, "--wait")
    troubled.plane.kubectl("delete", "namespace", namespace, "--timeout=90s")


def test_what_a_network_policy_may_cut_off_the_gateway_and_kv(
    troubled: Cluster, measured: Measured
) -> None:
    scheduling = {"strategies": ["WAA"]}
    with deployed(troubled, measured, "deaf", scheduling=scheduling) as name:
        troubled.wait_ready(NAMESPACE, name, within_s=240)
        (gateway,) = troubled.pods(NAMESPACE, component="gateway")
        (operator,) = troubled.pods(SERVING, **{"app.kubernetes.io/name": "exegpt-operator"})
        ends = (operator["status"]["podIP"], gateway["status"]["podIP"])
        with cut_off(*ends, names.CONTROL_PORT):
            troubled.wait_for(
                "NotReached",
                lambda: "NotReached" in reasons(troubled, name),
                within_s=60,
                tell=lambda: troubled.describe(NAMESPACE, name),
            )
        troubled.wait_ready(NAMESPACE, name, within_s=120)
        pods = {
            each["metadata"]["labels"]["exegpt.dev/role"]: each
            for each in troubled.pods(NAMESPACE, component="worker")
        }
        source, target = (pods[role]["status"]["podIP"] for role in ("encoder", "decoder"))
        with cut_off(source, target, names.WORKER_PORT):
            assert troubled.node is not None
            troubled.node.kill(pods["decoder"], "worker-0")
            troubled.wait_for(
                "TransferFailed",
                lambda: "TransferFailed" in reasons(troubled, name),
                within_s=SOON_S,
                tell=lambda: troubled.describe(NAMESPACE, name),
            )
        troubled.wait_ready(NAMESPACE, name, within_s=180)


def reasons(cluster: Cluster, name: str) -> set[str]:
    status = cluster.plane.get("xd", name, "-n", NAMESPACE)["status"]
    return {each["reason"] for each in status["conditions"]}
