"""Our resource definitions on a real API server: what it accepts, what it refuses in which words, what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.control_plane import ApiServer

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.smoke,
    pytest.mark.timeout(1800),
]  # the first time the programs are built


@pytest.fixture(scope="module", autouse=True)
def nothing_left(api_server: ApiServer) -> Iterator[None]:
    """Other tests' operators would look after it."""
    yield
    api_server.kubectl("delete", "xd,xp", "--all", "-n", "default", "--timeout=30s")


def deployment(name: str = "translate", **spec: Any) -> dict[str, Any]:
    """The smallest one, or more."""
    smallest = {
        "model": {"uri": "hf://facebook/opt-13b"},
        "cluster": {"gpus": 4},
        "latencyBound": {"seconds": 5.9},
    }
    return {
        "apiVersion": "exegpt.dev/v1alpha1",
        "kind": "ExeGPTDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {key: value for key, value in (smallest | spec).items() if value is not None},
    }


def test_the_smallest_one_gets_its_defaults_and_a_status(api_server: ApiServer) -> None:
    api_server.apply(deployment("smallest"))
    found = api_server.get("xd", "smallest")
    assert found["spec"]["model"]["revision"] == "main"
    assert found["spec"]["cluster"]["resourceName"] == "nvidia.com/gpu"
    assert found["spec"]["scheduling"]["strategies"] == ["RRA", "WAA", "CRA"]
    assert found["spec"]["drift"] == {"threshold": 0.1, "minQueries": 1000, "cooldownSeconds": 300}
    (ready,) = found["status"]["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "Pending")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("kubernetes*.yaml")), ids=lambda f: f.name)
def test_the_examples_are_taken_whole(api_server: ApiServer, file: Path) -> None:
    given = yaml.safe_load(file.read_text())
    given["metadata"]["name"] = file.stem
    api_server.apply(given)
    assert api_server.get("xd", file.stem)["spec"]["model"]["uri"] == given["spec"]["model"]["uri"]


LAW = {"mean": 128, "std": 62, "max": 256}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a bound of nothing": ({"latencyBound": {"seconds": 0}}, "seconds"),
    "no bound": ({"latencyBound": None}, "latencyBound: Required"),
    "no devices": ({"cluster": {"gpus": 0}}, "gpus"),
    "pods that do not divide": (
        {"cluster": {"gpus": 4, "gpusPerPod": 3}},
        "cluster.gpusPerPod must divide gpus",
    ),
    "a file": ({"model": {"uri": "file:///m"}}, "write hf://org/name or pvc://claim/path"),
    "a revision of a claim": (
        {"model": {"uri": "pvc://w/m", "revision": "v1"}},
        "applies to hf:// models only",
    ),
    "WAA on one device": (
        {"cluster": {"gpus": 1}, "scheduling": {"strategies": ["WAA"]}},
        "WAA alone needs cluster.gpus of at least 2",
    ),
    "a strategy twice": ({"scheduling": {"strategies": ["RRA", "RRA"]}}, "duplicate"),
    "an unknown policy": ({"scheduling": {"planPolicy": "Sometimes"}}, "planPolicy"),
    "a mean beyond the maximum": (
        {"workload": {"input": LAW | {"mean": 300}, "output": LAW}},
        "mean must not exceed max",
    ),
    "moments and a histogram": (
        {
            "workload": {
                "input": LAW | {"histogram": {"lengths": [1], "counts": [1]}},
                "output": LAW,
            }
        },
        "give either mean, std and max, or a histogram",
    ),
    "half a law": ({"workload": {"input": {"mean": 3}, "output": LAW}}, "needs mean, std and max"),
    "fewer counts than lengths": (
        {
            "workload": {
                "input": LAW,
                "output": {"histogram": {"lengths": [1, 2], "counts": [1]}},
            }
        },
        "as many counts as lengths",
    ),
    "a variable without a value": (
        {"podTemplate": {"env": [{"name": "A"}]}},
        "give one of value and valueFrom",
    ),
    "a value from nowhere": (
        {"podTemplate": {"env": [{"name": "A", "valueFrom": {}}]}},
        "give one of secretKeyRef and configMapKeyRef",
    ),
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "an unknown device": {"cluster": {"gpus": 2, "resourceName": "vendor.test/thing"}},
    "pods of two": {"cluster": {"gpus": 4, "gpusPerPod": 2}},
    "a claim": {"model": {"uri": "pvc://weights/opt-13b"}},
    "a revision of the hub": {"model": {"uri": "hf://a/b", "revision": "v1"}},
    "WAA on two": {"cluster": {"gpus": 2}, "scheduling": {"strategies": ["WAA"]}},
    "two laws": {"workload": {"input": LAW, "output": LAW}},
    "a histogram": {
        "workload": {"input": LAW, "output": {"histogram": {"lengths": [1, 2], "counts": [3, 4]}}}
    },
    "a secret": {
        "podTemplate": {
            "env": [
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
            ]
        }
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(api_server: ApiServer, case: str) -> None:
    spec, words = REFUSED[case]
    said = api_server.apply(deployment("refused", **spec), check=False)
    assert words in said, said
    assert api_server.kubectl("get", "xd", "refused", check=False).returncode != 0


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_accepted(api_server: ApiServer, case: str) -> None:
    said = api_server.apply(deployment("accepted", **ACCEPTED[case]))
    assert "serverside-applied" in said
    api_server.kubectl("delete", "xd", "accepted")


@pytest.mark.parametrize(("name", "is_fine"), [("a" * 40, True), ("a" * 41, False), ("a.b", False)])
def test_names_leave_room_for_what_is_made(api_server: ApiServer, name: str, is_fine: bool) -> None:
    said = api_server.apply(deployment(name), check=False)
    assert ("serverside-applied" in said) == is_fine
    assert is_fine or "metadata.name: at most 40 characters" in said


def test_a_misspelt_field_is_refused(api_server: ApiServer) -> None:
    said = api_server.apply(deployment("misspelt", latencybound={"seconds": 1}), check=False)
    assert "latencybound" in said
    assert "serverside-applied" not in said


def test_explain_has_units(api_server: ApiServer) -> None:
    said = " ".join(api_server.kubectl("explain", "xd.spec.latencyBound").stdout.split())
    assert "in seconds" in said
    assert "in percent" in said


def test_a_status_through_the_main_resource_is_ignored(api_server: ApiServer) -> None:
    api_server.apply(deployment("own") | {"status": {"servedName": "mine"}}, check=False)
    assert "servedName" not in api_server.get("xd", "own")["status"]


def test_columns(api_server: ApiServer) -> None:
    api_server.apply(deployment("shown"))
    status = {
        "status": {
            "servedName": "opt-13b",
            "plan": {
                "strategy": "RRA B_E=8 N_D=13",
                "predictedSeconds": 5.123,
                "decodeIterations": 13,
            },
        }
    }
    api_server.kubectl(
        "patch", "xd", "shown", "--subresource=status", "--type=merge", "-p", json.dumps(status)
    )
    head, row = api_server.kubectl("get", "xd", "shown", "-o", "wide").stdout.splitlines()
    columns = ["MODEL", "STRATEGY", "BOUND", "P99", "READY", "REASON", "AGE", "PLAN", "GPUS"]
    assert [word for word in head.split() if word in columns] == columns
    assert head.split()[-2:] == ["N_D", "DRIFT"]
    assert "opt-13b" in row
    assert "5.123" in row


def test_scale_by_the_subresource(api_server: ApiServer) -> None:
    api_server.apply(deployment("scaled"))
    api_server.kubectl("scale", "xd/scaled", "--replicas=3")
    assert api_server.get("xd", "scaled")["spec"]["replicas"] == 3


def test_a_profile_cannot_be_changed(api_server: ApiServer) -> None:
    profile: dict[str, Any] = {
        "apiVersion": "exegpt.dev/v1alpha1",
        "kind": "ExeGPTProfile",
        "metadata": {"name": "opt", "namespace": "default"},
        "spec": {
            "model": {"uri": "hf://facebook/opt-13b", "dtype": "bfloat16"},
            "resourceName": "nvidia.com/gpu",
        },
    }
    api_server.apply(profile)
    said = api_server.apply(profile | {"spec": profile["spec"] | {"workers": 4}}, check=False)
    assert "a profile cannot be changed" in said
