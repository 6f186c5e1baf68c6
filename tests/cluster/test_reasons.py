"""What can go wrong with pods, each provoked on the real node: the reason, cause and remedy that are said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.measured import Measured
from cluster.place import Place
from cluster.traffic import cut_off
from cluster.whole import DEVICE, SERVING, Cluster, deployment
from exegpt_operator import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

NAMESPACE = "troubled"
SOON_S = 120.0
LOADED_S = 240.0


@pytest.fixture(scope="module")
def place(installed: Cluster) -> Place:
    installed.namespace(NAMESPACE)
    installed.plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hub", "namespace": NAMESPACE},
            "stringData": {"token": "x"},
        }
    )
    return Place(installed.plane, NAMESPACE)


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
def deployed(place: Place, measured: Measured, name: str, **spec: Any) -> Iterator[str]:
    """A deployment that need not measure, gone afterwards with all its pods."""
    wanted = deployment(NAMESPACE, name, **spec)
    measured.put_on_file(place.plane, wanted)
    place.plane.apply(wanted)
    try:
        yield name
    finally:
        place.delete(name)
        place.until("gone", lambda: not place.serving(name), name=name)


@pytest.mark.parametrize("name", CASES)
def test_a_pods_trouble_is_said_in_the_clusters_words(
    place: Place, measured: Measured, name: str
) -> None:
    spec, reason, words = CASES[name]
    if name == "devices":
        measured = measured.for_workers(4)
    with deployed(place, measured, name, **spec):
        place.until_reason("WorkersReady", reason, name, within_s=SOON_S)
        message = place.condition("Ready", name)[2]
        assert all(part in message for part in words), message
        assert place.condition("Stalled", name)[0] == "True"
        if reason in ("Unschedulable", "InsufficientGPUs"):
            place.until("held by nothing", lambda: not place.pods("worker", name), name=name)


def test_a_folder_that_is_no_model_fails_its_profile(place: Place) -> None:
    place.plane.apply(deployment(NAMESPACE, "nothing", model={"uri": "pvc://python/lib"}))
    place.until_reason("Profiled", "ProfileFailed", "nothing", within_s=SOON_S)
    assert "config.json" in place.condition("Ready", "nothing")[2]
    place.delete("nothing")
    place.kubectl("delete", "xp", "--all", "--timeout=30s")


def test_an_image_that_is_not_there(installed: Cluster, place: Place) -> None:
    """An upgrade names one that no registry has: what is applied from then on says so."""
    image = "localhost/exegpt-tests/none:1"
    installed.install(SERVING, **{"images.runner": image})
    try:
        place.plane.apply(deployment(NAMESPACE, "imageless"))
        place.until_reason("Profiled", "ImagePullError", "imageless", within_s=SOON_S)
        assert image in place.condition("Ready", "imageless")[2]
    finally:
        installed.install(SERVING)
        place.delete("imageless")
        place.kubectl("delete", "xp", "--all", "--timeout=30s")


def test_what_a_network_policy_may_cut_off_the_gateway_and_kv(
    installed: Cluster, place: Place, measured: Measured
) -> None:
    with deployed(place, measured, "deaf", scheduling={"strategies": ["WAA"]}) as name:
        place.until_ready(name, within_s=LOADED_S)
        (gateway,) = place.pods("gateway", name)
        (operator,) = place.api.list("Pod", SERVING, {names.NAME_LABEL: "exegpt-operator"})
        with cut_off(ip_of(operator), ip_of(gateway), names.CONTROL_PORT):
            place.until_reason("EndpointReady", "NotReached", name)
        place.until_ready(name)
        pods = {
            pod["metadata"]["labels"][names.ROLE_LABEL]: pod for pod in place.pods("worker", name)
        }
        with cut_off(ip_of(pods["encoder"]), ip_of(pods["decoder"]), names.WORKER_PORT):
            installed.node.kill(pods["decoder"], "worker-0")
            place.until_reason("EndpointReady", "TransferFailed", name, within_s=SOON_S)
        place.until_ready(name, within_s=LOADED_S)


def ip_of(pod: dict[str, Any]) -> str:
    return str(pod["status"]["podIP"])
