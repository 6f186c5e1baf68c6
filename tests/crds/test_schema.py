"""The custom resource definitions against the planner's models of the same kinds, and what users see of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from exegpt_planner.manifest import NAME_MAX, DeploymentSpec

CRDS = Path(__file__).resolve().parents[2] / "crds"
ONE_MACHINE_ONLY = {"workload.trace"}
LEFT_TO_RULES = {"workload.input", "workload.output"}  # the planner also takes a trace instead
Schema = dict[str, Any]


def definition(plural: str) -> Schema:
    found: Schema = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    return found


def version(plural: str) -> Schema:
    (only,) = definition(plural)["spec"]["versions"]
    found: Schema = only
    return found


def schema(plural: str) -> Schema:
    found: Schema = version(plural)["schema"]["openAPIV3Schema"]
    return found


def fields(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every property below `node`, those of list items too."""
    if "items" in node:
        yield from fields(node["items"], path)
    for name, below in node.get("properties", {}).items():
        here = f"{path}.{name}".removeprefix(".")
        yield here, below
        yield from fields(below, here)


def planned() -> Schema:
    """The planner's model as a schema of the same form: references resolved, null left out."""
    whole = DeploymentSpec.model_json_schema(by_alias=True)
    definitions = whole.pop("$defs")

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return plain(definitions[node["$ref"].rpartition("/")[2]]) | plain(rest)
        options = [each for each in node.get("anyOf", ()) if each != {"type": "null"}]
        if len(options) == 1:
            rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
            return plain(options[0]) | plain(rest)
        return {key: plain(value) for key, value in node.items()}

    found: Schema = plain(whole)
    return found


def limits(node: Schema) -> tuple[object, object]:
    """The least and the largest allowed, each with whether it is itself excluded."""
    ends = []
    for name in ("minimum", "maximum"):
        exclusive = node.get(f"exclusiveM{name[1:]}")
        if exclusive is True:
            ends.append((node[name], True))
        elif exclusive is not None:
            ends.append((exclusive, True))
        else:
            ends.append((node.get(name), False))
    return ends[0], ends[1]


@pytest.mark.parametrize("plural", ["exegptdeployments", "exegptprofiles"])
def test_every_field_says_what_it_is(plural: str) -> None:
    silent = [path for path, node in fields(schema(plural)) if not node.get("description")]
    assert silent == ["metadata"]  # the API server's own, of which a definition may say nothing


@pytest.mark.parametrize("plural", ["exegptdeployments", "exegptprofiles"])
def test_no_key_comes_of_an_unquoted_comma(plural: str) -> None:
    def empty(node: Any, path: str = "") -> Iterator[str]:
        if isinstance(node, dict):
            for key, below in node.items():
                if below is None:
                    yield f"{path}/{key}"
                yield from empty(below, f"{path}/{key}")
        elif isinstance(node, list):
            for below in node:
                yield from empty(below, path)

    assert not list(empty(definition(plural)))


@pytest.mark.parametrize("plural", ["exegptdeployments", "exegptprofiles"])
def test_nobody_is_ready_before_the_operator_has_looked(plural: str) -> None:
    (condition,) = schema(plural)["properties"]["status"]["default"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Ready",
        "Unknown",
        "Pending",
    )


def test_the_fields_are_those_of_the_planner() -> None:
    spec = schema("exegptdeployments")["properties"]["spec"]
    ours = dict(fields(planned()))
    theirs = dict(fields(spec))
    assert set(ours) - set(theirs) == ONE_MACHINE_ONLY
    assert set(theirs) <= set(ours)
    for path, node in theirs.items():
        assert node.get("enum") == ours[path].get("enum"), path
        if node["type"] in ("integer", "number") and not path.startswith("workload."):
            assert limits(node) == limits(ours[path]), path


def test_what_is_required_is_required_by_the_planner() -> None:
    spec = schema("exegptdeployments")["properties"]["spec"]
    for path, node in [("", spec), *fields(spec)]:
        ours = planned() if not path else dict(fields(planned()))[path]
        required = {f"{path}.{name}".removeprefix(".") for name in node.get("required", ())}
        assert required - LEFT_TO_RULES == {
            f"{path}.{name}".removeprefix(".") for name in ours.get("required", ())
        }, path


def test_defaults_are_those_of_the_planner() -> None:
    smallest = {
        "model": {"uri": "hf://facebook/opt-125m"},
        "cluster": {"gpus": 1},
        "latencyBound": {"seconds": 1},
    }
    filled = DeploymentSpec.model_validate(smallest).model_dump(mode="json", by_alias=True)
    spec = schema("exegptdeployments")["properties"]["spec"]
    for path, node in fields(spec):
        if "default" not in node or node["type"] == "object" or "tolerations" in path:
            continue
        value = filled
        for name in path.split("."):
            value = value[name]
        assert value == node["default"], path


def test_names_are_limited_as_in_the_planner() -> None:
    (rule,) = schema("exegptdeployments")["x-kubernetes-validations"]
    assert f"self.metadata.name.size() <= {NAME_MAX} " in rule["rule"]


def test_a_list_of_deployments_shows_what_matters() -> None:
    columns = version("exegptdeployments")["additionalPrinterColumns"]
    shown = [each["name"].upper() for each in columns if not each.get("priority")]
    assert shown == ["MODEL", "STRATEGY", "BOUND", "P99", "READY", "REASON", "AGE"]
    assert [each["name"].upper() for each in columns if each.get("priority")] == [
        "PLAN",
        "GPUS",
        "N_D",
        "DRIFT",
    ]
