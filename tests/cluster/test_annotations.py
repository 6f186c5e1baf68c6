"""Observed lengths on a real API server: what says nothing, who set them, and the detector's own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cluster.control_plane import ControlPlane
from cluster.fake_node import FakeNodes
from cluster.place import NAME
from cluster.steps import OperatorProcess, Site
from exegpt_operator import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MALFORMED = {
    "text": "long",
    "a negative number": "mean=-3,std=1",
    "no number": "mean=NaN,std=1",
    "a number beyond all lengths": "mean=1e308,std=1",
    "half a law": "mean=30",
    "a ConfigMap that is not there": "histogram=absent",
    "a ConfigMap of garbage": "histogram=garbage",
}
LAW = "mean=20,std=6,max=48"
QUERIES = {"threshold": 0.1, "minQueries": 100, "cooldownSeconds": 0}


def config_map(site: Site, name: str, text: str) -> None:
    site.api.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": site.namespace},
            "data": {"histogram.json": text},
        },
        manager="person",
    )


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, nodes: FakeNodes, operator: OperatorProcess
) -> Iterator[Site]:
    made = Site.made(control_plane, nodes, "annotated")
    config_map(made, "garbage", "{")
    made.apply()
    yield made
    made.delete()


@pytest.mark.parametrize("case", MALFORMED)
def test_what_says_nothing_changes_nothing(served: Site, case: str) -> None:
    served.until_ready()
    plan, pods = served.plan_id(), served.serving()
    served.annotate(output=MALFORMED[case])
    words = served.until_reason("Drifted", "MalformedAnnotation")
    assert "Write mean=" in words
    assert served.is_settled()
    assert served.plan_id() == served.works_by() == plan
    served.annotate(output=None)
    served.until_reason("Drifted", "NoObservations")
    assert served.plan_id() == plan
    assert served.serving() == pods


def test_a_histogram_is_taken_once_its_config_map_is_there(served: Site) -> None:
    served.until_ready()
    plan = served.plan_id()
    served.annotate(output="histogram=late")
    assert "late" in served.until_reason("Drifted", "MalformedAnnotation")
    config_map(served, "late", json.dumps({"lengths": [10, 40], "counts": [3, 1]}))
    served.until("a plan for it", lambda: served.plan_id() not in ("", plan))
    served.until_reason("Drifted", "NoObservations")
    served.annotate(output=None)
    served.until("the spec's again", lambda: served.status()["workload"]["source"] == "Spec")
    served.until_ready()


def test_malformed_from_the_start(site: Site, operator: OperatorProcess) -> None:
    site.apply(suspend=True, workload=None)
    site.annotate(input="long", output=LAW)
    site.patch(f"xd/{NAME}", suspend=False)
    site.until_reason("Scheduled", "MalformedAnnotation")
    assert site.condition("Stalled")[0] == "True"
    site.annotate(input=LAW)
    site.until_ready()


def test_the_detector_gives_way_to_a_person(site: Site, operator: OperatorProcess) -> None:
    site.apply(workload=None, drift=QUERIES)
    site.until_ready()
    assert site.status()["workload"]["source"] == "Prior"
    before = site.plan_id()
    site.gateway().observe(1000, input_tokens=24, output_tokens=16)
    site.until_another_plan(before)
    assert site.status()["workload"]["source"] == "Observed"
    assert site.status()["workload"]["setBy"] == names.DETECTOR
    assert annotated(site)[names.OBSERVED_INPUT] == f"histogram={names.observed(NAME, 'input')}"
    assert site.status()["workload"]["input"].startswith("mean=24.0")

    before = site.plan_id()
    site.annotate(input=LAW, output=LAW)
    site.until_another_plan(before)
    assert site.status()["workload"]["setBy"] == "kubectl-annotate"
    assert site.status()["workload"]["source"] == "Annotation"
    pinned = annotated(site)
    site.until("steered", lambda: site.gateway().plan_id == site.plan_id())
    site.gateway().observe(1000, input_tokens=40, output_tokens=40)
    site.until_reason("Drifted", "Drifted")
    with pytest.raises(AssertionError, match="not overwritten"):
        site.until("overwritten", lambda: annotated(site) != pinned, within_s=5)

    before = site.plan_id()
    site.annotate(input=None, output=None)
    site.until_another_plan(before)
    site.gateway().observe(1000, input_tokens=24, output_tokens=16)
    site.until("the detector's", lambda: site.status()["workload"].get("setBy") == names.DETECTOR)
    site.until_ready()


def annotated(site: Site) -> dict[str, str]:
    found: dict[str, str] = site.get(names.DEPLOYMENT, NAME)["metadata"].get("annotations", {})
    return {key: value for key, value in found.items() if "observed" in key}


def test_the_detector_never_overwrites(site: Site, operator: OperatorProcess) -> None:
    """Even where it has not seen a pin yet: the API server refuses it."""
    from exegpt_operator.api import ApiRefused

    site.apply()
    site.annotate(input=LAW)
    found = site.get(names.DEPLOYMENT, NAME)
    own = {
        "apiVersion": found["apiVersion"],
        "kind": names.DEPLOYMENT,
        "metadata": {
            "name": NAME,
            "namespace": site.namespace,
            "annotations": {names.OBSERVED_INPUT: "mean=1,std=1"},
        },
    }
    with pytest.raises(ApiRefused) as refused:
        site.api.apply(own, manager=names.DETECTOR, force=False)
    assert refused.value.status == 409
    assert "kubectl-annotate" in str(refused.value)
