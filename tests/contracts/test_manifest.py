"""The ExeGPTDeployment manifest: defaults, and what each field refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import Deployment, read_manifest

SMALLEST: dict[str, Any] = {
    "apiVersion": "exegpt.dev/v1alpha1",
    "kind": "ExeGPTDeployment",
    "metadata": {"name": "translate"},
    "spec": {
        "model": {"uri": "hf://facebook/opt-13b"},
        "cluster": {"gpus": 4},
        "latencyBound": {"seconds": 5.9},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The smallest manifest with one field, by its path, set; None removes it."""
    data = copy.deepcopy(SMALLEST)
    *folders, name = path.split(".")
    target = data
    for folder in folders:
        target = target.setdefault(folder, {})
    if value is None:
        del target[name]
    else:
        target[name] = value
    return data


def read(tmp_path: Path, data: dict[str, Any]) -> Deployment:
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump(data))
    return read_manifest(path)


def problem(tmp_path: Path, path: str, value: Any) -> str:
    with pytest.raises(InvalidSpec) as caught:
        read(tmp_path, changed(path, value))
    (only,) = caught.value.problems
    return only


def test_the_smallest_manifest_has_the_designs_defaults(tmp_path: Path) -> None:
    spec = read(tmp_path, SMALLEST).spec
    assert spec.model.model_dump() == {
        "uri": "hf://facebook/opt-13b",
        "revision": "main",
        "served_name": "opt-13b",
        "dtype": "bfloat16",
    }
    assert spec.cluster.model_dump() == {
        "gpus": 4,
        "gpus_per_pod": 4,
        "resource_name": "nvidia.com/gpu",
    }
    assert (spec.latency_bound.seconds, spec.latency_bound.percentile_length) == (5.9, 99)
    assert (spec.replicas, spec.suspend, spec.workload) == (1, False, None)
    assert spec.scheduling.strategies == ("RRA", "WAA", "CRA")
    assert spec.scheduling.plan_policy == "Auto"
    assert spec.drift.model_dump() == {
        "threshold": 0.1,
        "min_queries": 1000,
        "cooldown_seconds": 300,
    }


@pytest.mark.parametrize(
    ("uri", "scheme", "location", "served_name"),
    [
        ("hf://facebook/opt-13b", "hf", "facebook/opt-13b", "opt-13b"),
        ("hf://gpt2", "hf", "gpt2", "gpt2"),
        ("pvc://models/llama/3", "pvc", "models/llama/3", "3"),
        ("file:///models/My Model/", "file", "/models/My Model/", "My Model"),
        ("demo://smollm2-135m-instruct", "demo", "smollm2-135m-instruct", "smollm2-135m-instruct"),
    ],
)
def test_a_model_uri_gives_the_served_name(
    tmp_path: Path, uri: str, scheme: str, location: str, served_name: str
) -> None:
    model = read(tmp_path, changed("spec.model.uri", uri)).spec.model
    assert (model.scheme, model.location, model.served_name) == (scheme, location, served_name)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://bucket/model", "scheme 's3' is not accepted; write hf://org/name, pvc://claim/path, file:///"),
        ("facebook/opt-13b", "has no scheme; write hf://org/name"),
        ("hf://a/b/c", "not a hf:// model"),
        ("hf://../b", "not a hf:// model"),
        ("file://models/x", "not a file:// model"),
        ("pvc://Claim/x", "not a pvc:// model"),
        ("demo://", "not a demo:// model"),
    ],
)  # fmt: skip
def test_a_model_uri_of_another_form_is_refused(tmp_path: Path, uri: str, reason: str) -> None:
    assert problem(tmp_path, "spec.model.uri", uri).startswith(f"spec.model.uri: {reason}")


@pytest.mark.parametrize(
    "path", ["spec.model.uri", "spec.cluster.gpus", "spec.latencyBound.seconds", "metadata.name"]
)
def test_what_has_no_default_is_required(tmp_path: Path, path: str) -> None:
    assert problem(tmp_path, path, None) == f"{path}: Field required"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("metadata.name", "Translate", "a DNS-1123 label"),
        ("metadata.name", "-x", "a DNS-1123 label"),
        ("metadata.name", "x" * 41, "at most 40 characters"),
        ("spec.cluster.gpus", 0, "greater than or equal to 1"),
        ("spec.cluster.gpus", True, "valid integer"),
        ("spec.cluster.gpus", "4", "valid integer"),
        ("spec.latencyBound.seconds", 0, "greater than 0"),
        ("spec.latencyBound.seconds", float("inf"), "finite"),
        ("spec.latencyBound.percentileLength", 100, "less than 100"),
        ("spec.model.dtype", "int8", "'bfloat16', 'float16', 'float32' or 'float64'"),
        ("spec.replicas", 0, "greater than or equal to 1"),
        ("spec.suspend", "no", "valid boolean"),
        ("spec.scheduling", {"strategies": []}, "at least 1 item"),
        ("spec.scheduling", {"strategies": ["RRA", "RRA"]}, "names a strategy twice"),
        ("spec.scheduling", {"strategies": ["ORCA"]}, "'RRA', 'WAA' or 'CRA'"),
        ("spec.scheduling", {"planPolicy": "Manual"}, "'Auto', 'Review' or 'DryRun'"),
        ("spec.scheduling", {"planPolicies": "Auto"}, "did you mean 'planPolicy'?"),
        ("spec.drift", {"threshold": 0}, "greater than 0"),
        ("spec.latencyBound.minutes", 1, "known fields: percentileLength, seconds"),
        ("status", {}, "unknown field"),
    ],
)
def test_a_value_that_means_nothing_is_refused(
    tmp_path: Path, path: str, value: Any, reason: str
) -> None:
    found = problem(tmp_path, path, value)
    assert found.startswith(path)
    assert reason in found


def test_pods_must_be_filled(tmp_path: Path) -> None:
    found = problem(tmp_path, "spec.cluster.gpusPerPod", 3)
    assert found.startswith("spec.cluster: gpusPerPod 3 must divide gpus 4")


def test_a_revision_is_a_repositorys(tmp_path: Path) -> None:
    found = problem(tmp_path, "spec.model", {"uri": "demo://x", "revision": "v2"})
    assert found.startswith("spec.model: revision applies to hf:// models only")


LAW = {"mean": 32, "std": 13, "max": 80}


def counted(*lengths: int, counts: tuple[int, ...] = (1, 1)) -> dict[str, Any]:
    return {"histogram": {"lengths": list(lengths), "counts": list(counts)}}


@pytest.mark.parametrize(
    ("workload", "path", "reason"),
    [
        ({"input": LAW}, "", "needs both input and output, or a trace"),
        ({}, "", "needs both input and output, or a trace"),
        ({"trace": "t.csv", "input": LAW}, "", "give either trace or input and output, not both"),
        ({"input": {"mean": 3}, "output": LAW}, ".input", "needs mean, std and max, or a histo"),
        ({"input": LAW | {"std": 81}, "output": LAW}, ".input", "no truncated normal on (0, 80]"),
        ({"input": LAW, "output": LAW | counted(1, 2)}, ".output", "give either histogram or mean"),
        ({"input": counted(0, 2), "output": LAW}, ".input.histogram", "lengths must be whole"),
        ({"input": counted(1), "output": LAW}, ".input.histogram", "1 lengths but 2 counts"),
        ({"input": LAW | {"max": 8.5}, "output": LAW}, ".input.max", "Input should be a valid in"),
    ],
)
def test_a_workload_that_is_no_law_is_refused(
    tmp_path: Path, workload: dict[str, Any], path: str, reason: str
) -> None:
    found = problem(tmp_path, "spec.workload", workload)
    assert found.startswith(f"spec.workload{path}: {reason}")


def test_a_relative_trace_lies_beside_the_manifest(tmp_path: Path) -> None:
    workload = read(tmp_path, changed("spec.workload", {"trace": "data/t.csv"})).spec.workload
    assert workload is not None
    assert workload.trace == str(tmp_path / "data/t.csv")
    workload = read(tmp_path, changed("spec.workload", {"trace": "/data/t.csv"})).spec.workload
    assert workload is not None
    assert workload.trace == "/data/t.csv"


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ([{"name": "A"}], "needs one of value and valueFrom"),
        ([{"name": "A", "valueFrom": {}}], "needs one of secretKeyRef and configMapKeyRef"),
        ([{"name": "A", "values": "x", "value": "y"}], "did you mean 'value'?"),
    ],
)
def test_an_environment_variable_has_one_value(tmp_path: Path, env: list[Any], reason: str) -> None:
    assert reason in problem(tmp_path, "spec.podTemplate", {"env": env})


@pytest.mark.parametrize(
    "change", [{"kind": "ExeGPTProfile"}, {"kind": None}, {"apiVersion": "exegpt.dev/v1"}]
)
def test_another_kind_is_named_and_nothing_else_is_reported(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSpec, match="expected kind: ExeGPTDeployment and apiVersion"):
        read(tmp_path, SMALLEST | change)


def test_a_file_of_several_documents_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump_all([SMALLEST, SMALLEST]))
    with pytest.raises(InvalidSpec, match="holds 2 YAML documents"):
        read_manifest(path)


def test_all_problems_of_a_manifest_are_listed_at_once(tmp_path: Path) -> None:
    data = changed("spec.cluster.gpus", 0) | {"metadata": {"name": "X"}}
    data["spec"]["latencyBounds"] = data["spec"].pop("latencyBound")
    with pytest.raises(InvalidSpec) as caught:
        read(tmp_path, data)
    assert [each.split(":")[0] for each in caught.value.problems] == [
        "metadata.name",
        "spec.cluster.gpus",
        "spec.latencyBound",
        "spec.latencyBounds",
    ]
