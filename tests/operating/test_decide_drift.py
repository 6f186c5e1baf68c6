"""The operator's decision on what is measured: the bound, drift, and whose lengths hold."""

from __future__ import annotations

from typing import Any

import pytest

from exegpt_operator import names
from exegpt_operator.actions import Annotate, Apply, StartPlanning, Steer
from exegpt_operator.watching import FEWEST_ANSWERS
from operator_world import OBSERVED, World


def serving() -> World:
    """A world in which all is well."""
    world = World()
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    world.done.clear()
    return world


def done(world: World, kind: type) -> list[Any]:
    return [each for each in world.done if isinstance(each, kind)]


def test_bound_met_needs_answers() -> None:
    world = serving()
    assert world.condition("BoundMet") == ("Unknown", "NoObservations")
    world.answers = (FEWEST_ANSWERS - 1, FEWEST_ANSWERS)
    world.turn()
    assert world.condition("BoundMet") == ("True", "Kept")
    world.answers = (80, 100)
    world.turn()
    assert world.condition("BoundMet") == ("False", "Broken")
    assert world.condition("Ready") == ("True", "Serving")


def test_observed_drift_becomes_annotations_and_a_plan_in_place() -> None:
    world = serving()
    world.queries, world.drift = 5000, 0.3
    world.turn()
    assert world.condition("Drifted") == ("True", "Drifted")
    assert done(world, Annotate) == [], "not within the cool-down of the plan"
    world.now_s += 301
    world.turn()
    assert len(done(world, Annotate)) == 1
    world.drift = 0.0
    world.settle()
    assert world.plan is not None
    assert world.plan.revision == 2
    assert world.status["workload"]["source"] == "Observed"
    assert world.status["workload"]["output"].startswith("mean=33.0 max=90")
    assert world.status["history"][0]["reason"] == "observed lengths have drifted"


def test_drift_that_goes_on_changes_the_histogram_under_the_same_annotations() -> None:
    world = serving()
    for output in ('{"lengths": [20], "counts": [500]}', '{"lengths": [35], "counts": [500]}'):
        world.observed = {**OBSERVED, "output": output}
        world.queries, world.drift = 5000, 0.3
        world.now_s += 301
        world.turn()
        world.drift = 0.0
        world.settle()
    assert world.plan is not None
    assert world.plan.revision == 3
    assert len(done(world, Annotate)) == 1


def test_drift_that_no_plan_answers_is_put_on_file_once_a_cool_down() -> None:
    world = serving()
    world.refuses = "Infeasible"
    world.queries, world.drift = 5000, 0.3
    for turns in (1, 2):
        world.now_s += 301
        world.settle()
        on_file = [
            each for each in done(world, Apply) if "observed" in each.object["metadata"]["name"]
        ]
        assert len(on_file) == 2 * turns
    assert world.condition("Scheduled") == ("False", "Infeasible")


def test_a_malformed_annotation_does_not_hide_that_another_spec_is_not_planned() -> None:
    world = serving()
    world.annotations[names.OBSERVED_OUTPUT] = "mean=many"
    world.resource["spec"]["latencyBound"] = {"seconds": 0.001}
    world.resource["metadata"]["generation"] = 2
    world.settle()
    assert world.condition("Ready") == ("False", "MalformedAnnotation")
    assert world.condition("Stalled")[0] == "True"
    assert all(pod.is_ready for pod in world.worker_pods), "what runs goes on"


def test_an_annotation_by_hand_is_a_pin() -> None:
    world = serving()
    world.annotations[names.OBSERVED_INPUT] = "mean=20,std=5,max=64"
    world.annotations[names.OBSERVED_OUTPUT] = "mean=147,std=70"
    world.managers = dict.fromkeys(
        (names.OBSERVED_INPUT, names.OBSERVED_OUTPUT), "kubectl-annotate"
    )
    world.settle()
    assert world.status["workload"]["source"] == "Annotation"
    assert world.status["workload"]["setBy"] == "kubectl-annotate"
    assert [type(each) for each in world.done if isinstance(each, StartPlanning | Steer)] == [
        StartPlanning,
        Steer,
    ]
    world.now_s += 10_000
    world.queries, world.drift = 5000, 0.9
    world.settle()
    assert done(world, Annotate) == []


@pytest.mark.parametrize(
    "value", ["", "mean=many", "mean=-3,std=1", "mean=nan,std=1", "mean=1e308,std=1"]
)
def test_a_malformed_annotation_keeps_the_last_plan(value: str) -> None:
    world = serving()
    world.annotations[names.OBSERVED_OUTPUT] = value
    world.settle()
    assert world.condition("Drifted") == ("Unknown", "MalformedAnnotation")
    assert world.condition("Ready") == ("True", "Serving")
    assert done(world, StartPlanning) == []
