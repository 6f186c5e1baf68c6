"""What runs is left alone while there is no plan for what is asked for now, and while there is no room for more."""

from __future__ import annotations

import copy
from dataclasses import replace

from exegpt_operator import devices
from exegpt_operator.actions import DeletePod
from exegpt_operator.reasons import Reason
from exegpt_operator.seen import PodSeen
from exegpt_operator.status import without_counts
from exegpt_operator.times import rfc3339
from operating.test_decide import GATEWAY, WORKERS, change, done, scaled, serving
from operator_world import World

FOUR = {"gpus": 4, "gpusPerPod": 1, "resourceName": "test.dev/device"}


def uids(world: World) -> list[str]:
    return [pod.uid for pod in world.worker_pods]


def test_until_another_profile_is_there_no_pod_is_touched() -> None:
    world = serving()
    before = uids(world)
    world.profile_ready, world.profile_reason = "Unknown", "Profiling"
    change(world, cluster=FOUR, podTemplate={"resources": {"limits": {"memory": "9Gi"}}})
    world.settle()
    assert (scaled(world), uids(world), done(world, DeletePod)) == (2, before, [])
    assert world.condition("Ready") == ("False", "Profiling")
    world.profile_ready = "True"
    world.settle()
    assert scaled(world) == 4
    assert world.condition("Ready")[0] == "True"


def test_a_spec_that_nothing_can_serve_scales_nothing() -> None:
    world = serving()
    before = uids(world)
    world.refuses = "Infeasible"
    change(world, cluster=FOUR)
    world.settle()
    assert (scaled(world), uids(world)) == (2, before)
    assert world.condition("Ready") == ("False", "Infeasible")


def test_a_replica_that_does_not_fit_takes_none_that_serves() -> None:
    world = serving()
    before = uids(world)
    world.devices = 3
    change(world, replicas=2)
    world.settle()
    assert (scaled(world), scaled(world, GATEWAY), uids(world)) == (2, 1, before)
    assert world.condition("WorkersReady") == ("False", "InsufficientGPUs")
    assert "4 pods" in world.message("Ready")
    world.devices = 4
    world.settle()
    assert (scaled(world), scaled(world, GATEWAY)) == (4, 2)
    assert world.condition("Ready")[0] == "True"


def test_pods_on_their_way_out_are_no_reason_to_ask_again() -> None:
    world = serving()
    ending = PodSeen(name="translate-workers-0", is_deleting=True, is_scheduled=True)
    seen = replace(world.seen(), worker_pods=(ending,), free_slots=None)
    soon = devices.room(seen, rfc3339(seen.now_s - 5))
    assert (soon.replicas, soon.lacks is not None) == (0, True)
    later = devices.room(seen, rfc3339(seen.now_s - devices.RETRY_S - 1))
    assert (later.replicas, later.lacks) == (1, None)


def test_pods_that_fit_nowhere_do_not_take_a_serving_replica_with_them() -> None:
    world = serving(replicas=2)
    stuck = PodSeen(
        name="translate-workers-3",
        is_scheduled=False,
        unscheduled_because="0/9 nodes are available: 9 Insufficient test.dev/device.",
        age_s=devices.UNSCHEDULED_S,
    )
    seen = replace(world.seen(), worker_pods=(*world.worker_pods[:3], stuck), free_slots=None)
    found = devices.room(seen, "")
    assert found.replicas == 1
    assert found.lacks is not None
    assert found.lacks[0] is Reason.INSUFFICIENT_GPUS


def test_counts_that_move_on_are_no_news() -> None:
    world = serving()
    before = world.status
    world.queries, world.answers = 500, (40, 40)
    world.turn()
    assert world.status != before
    assert without_counts(world.status) == without_counts(before)
    world.answers = (10, 200)
    world.turn()
    assert without_counts(world.status) != without_counts(before), "the bound is broken"


def test_an_edit_of_the_pods_template_is_taken_back_before_a_pod_is_made_by_it() -> None:
    world = World()
    world.settle()
    before = uids(world)
    edited = copy.deepcopy(dict(world.children[WORKERS]))
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    edited["status"] = {"updateRevision": "edited"}
    world.children[WORKERS] = edited
    world.worker_pods = [replace(pod, revision="ours") for pod in world.worker_pods]
    world.turn()
    assert done(world, DeletePod) == []
    assert (
        world.children[WORKERS]["spec"]["template"]["spec"]["containers"][0]["image"] != "other:1"
    )
    assert uids(world) == before
