"""Every object that is made, as golden files, and what platform teams expect of pods."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exegpt_operator import names
from exegpt_operator.manifests import gateway, profiles, workers
from exegpt_operator.reading import deployment_of
from exegpt_planner.manifest import Deployment
from exegpt_planner.serving import drain_s
from operator_world import IMAGES, resource

GOLDEN = Path(__file__).parents[1] / "golden" / "manifests"
TEMPLATE = {
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "resources": {"limits": {"memory": "8Gi"}},
    "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
    "labels": {"team": "nlp"},
    "priorityClassName": "high",
}
CASES: dict[str, dict[str, Any]] = {
    "claim": {},
    "hub": {
        "model": {"uri": "hf://org/name", "revision": "abc"},
        "cluster": {"gpus": 8, "gpusPerPod": 4},
        "replicas": 2,
        "podTemplate": TEMPLATE,
    },
    "cpu": {"cluster": {"gpus": 2, "gpusPerPod": 1, "resourceName": "cpu"}},
}


def deployed(case: str) -> Deployment:
    found, problems = deployment_of(resource(**CASES[case]))
    assert found is not None, problems
    return found


def objects(case: str) -> dict[str, dict[str, Any]]:
    deployment = deployed(case)
    profile = profiles.profile(deployment, IMAGES)
    return {
        "workers": workers.stateful_set(
            deployment, IMAGES, replicas=workers.num_pods(deployment), weight_bytes=26_000_000_000
        ),
        "workers-service": workers.service(deployment),
        "gateway": gateway.gateway(deployment, IMAGES, replicas=deployment.spec.replicas),
        "endpoint": gateway.endpoint(deployment),
        "profile": profile,
        "job": profiles.job(profile, IMAGES, config_map="c", token_secret="t"),
    }


@pytest.mark.parametrize("case", CASES)
def test_golden_files(case: str) -> None:
    """Set EXEGPT_WRITE_GOLDEN to write them anew, and read the difference."""
    for name, found in objects(case).items():
        path = GOLDEN / f"{case}-{name}.json"
        text = json.dumps(found, indent=1) + "\n"
        if os.environ.get("EXEGPT_WRITE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, f"{path.name}: run with EXEGPT_WRITE_GOLDEN=1 if so meant"


def pod_specs(case: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, found in objects(case).items():
        if "template" in found["spec"]:
            yield name, found["spec"]["template"]["spec"]


@pytest.mark.parametrize("case", CASES)
def test_pods_are_restricted_and_have_no_api_token(case: str) -> None:
    for name, spec in pod_specs(case):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]


def test_the_template_reaches_every_pod() -> None:
    for name, spec in pod_specs("hub"):
        assert spec["nodeSelector"] == {"gpu": "h100"}, name
        assert spec["tolerations"][0]["key"] == "gpu"
        assert spec["priorityClassName"] == "high"
        for container in [*spec["containers"], *spec["initContainers"]]:
            assert container["env"][0]["valueFrom"]["secretKeyRef"] == {
                "name": "hf",
                "key": "token",
            }


def test_a_secret_stands_in_no_argument() -> None:
    for case in CASES:
        for _, spec in pod_specs(case):
            for container in spec["containers"]:
                assert not [each for each in container["command"] if "HF_TOKEN" in each]


def test_workers_are_probed_by_what_they_are() -> None:
    (_, spec), *_ = pod_specs("claim")
    (worker,) = spec["containers"]
    start = worker["startupProbe"]
    assert start["failureThreshold"] * start["periodSeconds"] > 26e9 / 100e6
    assert "service" not in worker["livenessProbe"]["grpc"], "liveness does not depend on load"
    assert worker["readinessProbe"]["grpc"]["service"] == "serving"


@pytest.mark.parametrize("bound_s", [0.01, 5.9, 277.0, 300.0, 40_000.0])
def test_a_gateway_may_drain_for_longer_than_the_bound(bound_s: float) -> None:
    assert bound_s < drain_s(bound_s) < gateway.grace_s(bounded_by(bound_s))


def test_another_bound_is_the_same_gateway_pod() -> None:
    pods = [gateway.gateway(bounded_by(s), IMAGES, replicas=1) for s in (0.1, 8.0, 250.0)]
    assert pods[0] == pods[1] == pods[2]
    assert gateway.grace_s(bounded_by(1e300)) == gateway.MOST_GRACE_S


def bounded_by(seconds: float) -> Deployment:
    found = deployed("claim")
    bound = found.spec.latency_bound.model_copy(update={"seconds": seconds})
    spec = found.spec.model_copy(update={"latency_bound": bound})
    return found.model_copy(update={"spec": spec})


def test_each_device_is_a_container_with_an_address() -> None:
    deployment = deployed("hub")
    found = workers.addresses(deployment)
    assert [len(replica) for replica in found] == [8, 8]
    assert found[1][4] == "translate-workers-3.translate-workers.nlp.svc:7400"
    assert found[1][5].endswith(":7401")
    spec = objects("hub")["workers"]["spec"]
    assert spec["replicas"] == 4
    assert len(spec["template"]["spec"]["containers"]) == 4
    limits = spec["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8Gi", "test.dev/device": "1"} or limits["nvidia.com/gpu"] == "1"


def test_the_longest_names_fit_a_label() -> None:
    name = "a" * 40
    for made in (names.workers(name), names.gateway(name)):
        assert len(made) + len("-1234567890") <= 63
