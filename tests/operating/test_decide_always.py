"""The operator's decision: what holds whatever happens."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from exegpt_operator import names
from exegpt_operator.actions import (
    Apply,
    DeletePod,
    Emit,
    LabelPod,
    MakeToken,
    StartPlanning,
)
from exegpt_operator.devices import RETRY_S
from exegpt_operator.seen import PodSeen
from operating.test_decide import WORKERS, change, done
from operator_world import World

PERTURBATIONS = (
    "suspend", "resume", "bound", "lose", "few", "many", "edit", "delete", "refuse", "accept", "review", "auto",
    "drift", "annotate", "mangle", "silent", "heard",
)  # fmt: skip


def perturb(world: World, what: str) -> None:  # noqa: C901 - one arm a perturbation
    spec = world.resource["spec"]
    match what:
        case "suspend":
            change(world, suspend=True)
        case "resume":
            change(world, suspend=False)
        case "bound":
            change(world, latencyBound={"seconds": spec["latencyBound"]["seconds"] + 1})
        case "lose" if world.worker_pods:
            world.worker_pods.pop()
        case "few":
            world.devices = 1
        case "many":
            world.devices = 8
        case "edit" if WORKERS in world.children:
            there = dict(world.children[WORKERS])
            world.children[WORKERS] = {**there, "spec": {**there["spec"], "replicas": 7}}
        case "delete":
            world.children.pop(WORKERS, None)
        case "refuse":
            world.refuses = "Infeasible"
        case "accept":
            world.refuses = ""
        case "review":
            change(world, scheduling={"planPolicy": "Review"})
        case "auto":
            change(world, scheduling={"planPolicy": "Auto"})
        case "drift":
            world.queries, world.drift = 5000, 0.0 if world.drift else 0.4
        case "annotate":
            world.annotations[names.OBSERVED_OUTPUT] = "mean=50,std=10,max=100"
            world.annotations[names.OBSERVED_INPUT] = "mean=50,std=10,max=100"
        case "mangle":
            world.annotations[names.OBSERVED_INPUT] = "mean=???"
        case "silent":
            world.gateway_answers = False
        case "heard":
            world.gateway_answers = True


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PERTURBATIONS), st.integers(0, 6)), max_size=12))
def test_whatever_happens_it_settles_and_comes_back(plot: list[tuple[str, int]]) -> None:
    """No two revisions share a number, no device is held beyond what is wanted, and peace brings Ready."""
    world = World()
    for what, turns in plot:
        perturb(world, what)
        for _ in range(turns):
            decision = world.turn()
            ready, reconciling, stalled = (
                world.condition(kind)[0] for kind in ("Ready", "Reconciling", "Stalled")
            )
            assert not (reconciling == "True" and stalled == "True")
            assert not (ready == "True" and "True" in (reconciling, stalled))
            assert decision.look_again_s >= 0
            if "edit" not in {each for each, _ in plot}:  # which is taken back once there is a plan
                assert len(world.worker_pods) <= 2
    for what in ("resume", "accept", "auto", "many", "heard", "bound"):
        perturb(world, what)
    world.drift = 0.0
    world.annotations.clear()
    world.now_s += RETRY_S
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    revisions = [each["revision"] for each in world.status["history"]]
    assert revisions == sorted(set(revisions), reverse=True)


def test_every_action_kind_was_met() -> None:
    """The tests above leave no kind of action untried."""
    world = World()
    world.settle()
    kinds = {type(each) for each in world.done}
    assert {Apply, MakeToken, StartPlanning, LabelPod} <= kinds
    world.worker_pods = [replace(pod, revision="old") for pod in world.worker_pods]
    there = dict(world.children[WORKERS])
    world.children[WORKERS] = {**there, "status": {"updateRevision": "new"}}
    world.turn()
    assert len(done(world, DeletePod)) == 2
    assert isinstance(world.events[0], Emit)
    assert all(isinstance(pod, PodSeen) for pod in world.worker_pods)
