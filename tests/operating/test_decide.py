"""The operator's decision: a deployment's life in exact sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exegpt_operator import names
from exegpt_operator.actions import (
    Apply,
    DeletePod,
    StartPlanning,
)
from exegpt_operator.compare import key
from exegpt_operator.decide import decide
from exegpt_operator.devices import RETRY_S, UNSCHEDULED_S
from exegpt_operator.reasons import reason_of
from exegpt_operator.seen import ContainerSeen
from operator_world import IMAGES, World, resource

WORKERS = key("StatefulSet", names.workers("translate"))
GATEWAY = key("StatefulSet", names.gateway("translate"))


def serving(**spec: Any) -> World:
    """A world in which all is well."""
    world = World(resource=resource(**spec))
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    world.done.clear()
    world.events.clear()
    return world


def change(world: World, **spec: Any) -> None:
    """An edit of the spec."""
    world.resource["spec"] |= spec
    world.resource["metadata"]["generation"] += 1


def done(world: World, kind: type) -> list[Any]:
    return [each for each in world.done if isinstance(each, kind)]


def scaled(world: World, where: str = WORKERS) -> int:
    return int(world.children[where]["spec"]["replicas"])


def test_from_apply_to_ready_in_order() -> None:
    world = World()
    world.settle()
    kinds = [
        f"{each.object['kind']}/{each.object['metadata']['name']}"
        if isinstance(each, Apply)
        else type(each).__name__
        for each in world.done
    ]
    profile = kinds.pop(0)
    assert profile.startswith("ExeGPTProfile/")
    assert kinds == [
        "StartPlanning",
        "MakeToken",
        "Service/translate-workers",
        "Service/translate",
        "ConfigMap/translate-serving",
        "StatefulSet/translate-workers",
        "StatefulSet/translate-gateway",
        "LabelPod",
        "LabelPod",
    ]
    assert world.status["plan"]["revision"] == 1
    assert [each["reason"] for each in world.status["history"]] == ["first plan"]
    assert world.condition("Reconciling")[0] == world.condition("Stalled")[0] == "False"


def test_at_rest_nothing_is_asked_for() -> None:
    world = serving()
    for _ in range(5):
        decision = world.turn()
        assert decision.actions == ()
        assert decision.status is None


def test_ready_is_there_from_the_first_turn() -> None:
    world = World()
    world.turn()
    assert world.condition("Ready")[0] == "False"
    assert world.condition("Reconciling") == ("True", "Reconciling")
    assert world.status["observedGeneration"] == 1


def test_a_profile_that_fails_stalls_and_holds_nothing() -> None:
    world = World(has_profile=True, profile_ready="False", profile_reason="ProfileFailed")
    world.settle()
    assert world.condition("Profiled") == ("False", "ProfileFailed")
    assert world.condition("Stalled") == ("True", "ProfileFailed")
    assert WORKERS not in world.children


def test_infeasible_deploys_nothing_and_asks_once() -> None:
    world = World(refuses="Infeasible")
    world.settle()
    assert world.condition("Ready") == ("False", "Infeasible")
    assert world.condition("Stalled")[0] == "True"
    assert WORKERS not in world.children
    assert len(done(world, StartPlanning)) == 1


def test_a_bound_that_becomes_infeasible_leaves_the_old_plan_in_force() -> None:
    world = serving()
    world.refuses = "Infeasible"
    change(world, latencyBound={"seconds": 0.001})
    world.settle()
    assert world.condition("Scheduled") == ("False", "Infeasible")
    assert scaled(world) == 2
    assert done(world, DeletePod) == []


def test_a_new_bound_makes_a_revision_in_place() -> None:
    world = serving()
    uids = [pod.uid for pod in world.worker_pods]
    change(world, latencyBound={"seconds": 9.0})
    world.settle()
    assert world.plan is not None
    assert world.plan.revision == 2
    assert world.steered == world.plan.id
    assert [pod.uid for pod in world.worker_pods] == uids
    assert [each["reason"] for each in world.status["history"]] == [
        "the spec has changed",
        "first plan",
    ]


def test_a_changed_spec_is_not_ready_before_its_plan_and_changed_lengths_are_all_along() -> None:
    world = World()
    world.settle()
    world.resource["spec"]["latencyBound"] = {"seconds": 6.0}
    world.resource["metadata"]["generation"] = 2
    world.turn()
    assert world.condition("Ready") == ("False", "Planning")
    assert world.condition("Reconciling")[0] == "True"
    world.settle()
    assert world.condition("Ready")[0] == "True"
    world.annotations["exegpt.dev/observed-output"] = "mean=30,std=9,max=90"
    world.annotations["exegpt.dev/observed-input"] = "mean=30,std=9,max=90"
    world.turn()
    assert world.condition("Scheduled") == ("True", "Planning")
    assert world.condition("Ready")[0] == "True"


def test_history_holds_ten() -> None:
    world = serving()
    for turn in range(12):
        change(world, latencyBound={"seconds": 9.0 + turn})
        world.settle()
    assert [each["revision"] for each in world.status["history"]] == list(range(13, 3, -1))


def test_suspend_gives_devices_back_and_resume_needs_no_search() -> None:
    world = serving()
    change(world, suspend=True)
    world.settle()
    assert world.condition("Ready") == ("False", "Suspended")
    assert (scaled(world), scaled(world, GATEWAY)) == (0, 0)
    assert world.worker_pods == []
    change(world, suspend=False)
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert done(world, StartPlanning) == []
    assert world.condition("Stalled")[0] == "False"


def test_another_spec_is_profiled_while_suspended_and_not_planned_before() -> None:
    world = serving()
    change(world, suspend=True)
    world.settle()
    world.has_profile, world.profile_ready = False, "Unknown"
    world.turn()
    assert world.has_profile, "the devices are free for it"
    assert world.condition("Ready") == ("False", "Suspended")
    assert scaled(world) == 0


def test_a_profile_that_waits_for_the_deployments_own_devices_says_so() -> None:
    world = serving()
    world.profile_ready, world.profile_reason = "Unknown", "InsufficientGPUs"
    world.turn()
    assert world.condition("Profiled") == ("Unknown", "InsufficientGPUs")
    assert "suspend it until it is profiled" in world.message("Profiled")
    assert scaled(world) == 2, "what runs goes on"


def test_review_waits_for_the_plans_id() -> None:
    world = World(resource=resource(scheduling={"planPolicy": "Review"}))
    world.settle()
    assert world.condition("Ready") == ("False", "AwaitingApproval")
    assert WORKERS not in world.children
    assert world.plan is not None
    assert world.plan.id in world.message("Ready")
    world.annotations[names.APPROVED_PLAN] = "another"
    world.settle()
    assert WORKERS not in world.children
    world.annotations[names.APPROVED_PLAN] = world.plan.id
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_a_dry_run_starts_nothing() -> None:
    world = World(resource=resource(scheduling={"planPolicy": "DryRun"}))
    world.settle()
    assert world.condition("Ready") == ("False", "DryRun")
    assert world.condition("Scheduled") == ("True", "Planned")
    assert world.children == {}


def test_one_device_too_few_holds_nothing_and_tries_again_when_there_are_enough() -> None:
    world = World(devices=1)
    world.settle()
    assert world.condition("Ready") == ("False", "InsufficientGPUs")
    assert "nodes have room for 1" in world.message("Ready")
    assert WORKERS not in world.children
    world.devices = 2
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_pods_that_fit_nowhere_give_back_what_others_hold() -> None:
    world = World(pods_become_ready=False)
    for _ in range(4):
        world.turn()
    assert len(world.worker_pods) == 2
    words = "0/3 nodes are available: 3 Insufficient test.dev/device."
    world.worker_pods[1] = replace(
        world.worker_pods[1],
        is_scheduled=False,
        unscheduled_because=words,
        age_s=UNSCHEDULED_S,
    )
    world.turn()
    assert scaled(world) == 0
    assert world.condition("WorkersReady") == ("False", "InsufficientGPUs")
    assert words in world.message("Ready")
    world.turn()
    assert scaled(world) == 0, "not asked for again at once"
    world.pods_become_ready = True
    world.now_s += RETRY_S
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        (
            ContainerSeen(name="worker-0", waiting="ImagePullBackOff", message="not found"),
            "ImagePullError",
        ),
        (ContainerSeen(name="worker-0", waiting="CrashLoopBackOff", ended="Error"), "CrashLoop"),
        (
            ContainerSeen(name="worker-0", waiting="CrashLoopBackOff", ended="OOMKilled"),
            "OOMKilled",
        ),
        (ContainerSeen(name="worker-0", waiting="CreateContainerConfigError"), "MissingSecret"),
    ],
)
def test_a_pods_trouble_is_said_with_its_name(container: ContainerSeen, reason: str) -> None:
    world = serving()
    world.pods_become_ready = False
    world.worker_pods[0] = replace(world.worker_pods[0], is_ready=False, containers=(container,))
    world.turn()
    assert world.condition("Ready") == ("False", reason)
    assert "translate-workers-0, container worker-0" in world.message("Ready")
    assert reason_of(reason).remedy in world.message("Ready")


def test_a_lost_decoder_is_not_ready_and_comes_back() -> None:
    world = serving()
    world.pods_become_ready = False
    world.worker_pods[1] = replace(world.worker_pods[1], is_ready=False)
    world.turn()
    assert world.condition("Ready") == ("False", "Starting")
    assert world.condition("WorkersReady")[0] == "False"
    world.pods_become_ready = True
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_a_gateway_whose_test_query_fails_is_not_ready_and_says_why() -> None:
    world = serving()
    world.self_test = "a query of 8 tokens is not answered within 30 s"
    world.settle()
    assert world.condition("EndpointReady") == ("False", "SelfTestFailed")
    assert "not answered within 30 s" in world.message("Ready")
    world.self_test = ""
    world.settle()
    assert world.condition("Ready")[0] == "True"


def test_a_manual_edit_is_reverted() -> None:
    world = serving()
    there = dict(world.children[WORKERS])
    world.children[WORKERS] = {**there, "spec": {**there["spec"], "replicas": 1}}
    world.turn()
    assert scaled(world) == 2
    (applied,) = done(world, Apply)
    assert applied.object["metadata"]["name"] == "translate-workers"


def test_another_image_of_the_operator_restarts_nothing() -> None:
    world = serving()
    decision = decide(world.seen(), replace(IMAGES, runner="registry.test/runner@sha256:ff"))
    assert not [each for each in decision.actions if isinstance(each, Apply) and each.is_owned]


def test_a_missing_claim_is_named() -> None:
    world = World(missing=(("PersistentVolumeClaim", "weights"),))
    world.settle()
    assert world.condition("Validated") == ("False", "MissingClaim")
    assert "weights" in world.message("Ready")


def test_in_a_namespace_that_ends_nothing_is_made() -> None:
    decision = decide(replace(World().seen(), is_namespace_ending=True), IMAGES)
    assert decision.actions == ()
    assert decision.status is None


def test_an_event_a_transition() -> None:
    world = World()
    world.settle()
    said = [(each.reason, each.message.partition(":")[0]) for each in world.events]
    assert len(set(said)) == len(said)
    assert ("Serving", "Ready") in said


def test_transition_times_move_only_with_the_status() -> None:
    world = serving()
    before = {each["type"]: each["lastTransitionTime"] for each in world.status["conditions"]}
    world.answers = (150, 150)
    world.now_s += 60
    world.turn()
    after = {each["type"]: each["lastTransitionTime"] for each in world.status["conditions"]}
    assert {name for name in before if before[name] != after[name]} == {"BoundMet"}
