"""A profile's life: a Job, its progress, a table on file, or why there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exegpt_operator import names
from exegpt_operator.actions import Apply, Emit, MakeToken
from exegpt_operator.compare import key_of
from exegpt_operator.decide_profile import (
    ProfileDecision,
    ProfileState,
    Progress,
    Take,
    decide_profile,
    table_name,
)
from exegpt_operator.manifests.profiles import profile
from exegpt_operator.reading import deployment_of
from exegpt_operator.seen import PodSeen
from operator_world import IMAGES, resource

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE, MODEL = (GOLDEN / "profile.json").read_text(), (GOLDEN / "model.json").read_text()


def made() -> dict[str, Any]:
    deployment, _ = deployment_of(resource())
    assert deployment is not None
    found = profile(deployment, IMAGES)
    found["metadata"] |= {"uid": "u", "generation": 1}
    return found


def state(**changes: Any) -> ProfileState:
    return replace(ProfileState(resource=made(), manifest="{}", now_s=1000.0), **changes)


def ready(decision: ProfileDecision) -> tuple[str, str, str]:
    assert decision.status is not None
    (condition,) = decision.status["conditions"]
    return condition["status"], condition["reason"], condition["message"]


def test_first_a_token_a_manifest_and_a_job() -> None:
    decision = decide_profile(state(), IMAGES)
    kinds = [type(each) for each in decision.actions if not isinstance(each, Emit)]
    assert kinds == [MakeToken, Apply, Apply]
    config, job = (each.object for each in decision.actions if isinstance(each, Apply))
    assert (config["kind"], job["kind"]) == ("ConfigMap", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"test.dev/device": "2"}
    assert pod["automountServiceAccountToken"] is False
    assert ready(decision)[:2] == ("Unknown", "Profiling")
    children = {key_of(each): each for each in (config, job)}
    again = decide_profile(state(has_token=True, children=children), IMAGES)
    assert not [each for each in again.actions if not isinstance(each, Emit)]


def test_progress_is_told() -> None:
    pod = PodSeen(name="p", ip="10.0.0.1", phase="Running")
    progress = {"p": Progress(done=30, total=240, doing="timing steps")}
    decision = decide_profile(state(pods=(pod,), progress=progress), IMAGES)
    assert ready(decision)[2].startswith("timing steps: 30 of 240.")
    assert decision.look_again_s < 5


def test_a_table_is_put_on_file_before_the_pod_may_end() -> None:
    progress = {"p": Progress(table=TABLE, model=MODEL, device_bytes=7, reserve_bytes=3)}
    decision = decide_profile(state(progress=progress), IMAGES)
    assert not [each for each in decision.actions if isinstance(each, Take)]
    (applied,) = (each.object for each in decision.actions if isinstance(each, Apply))
    assert applied["metadata"]["name"] == table_name(made()["metadata"]["name"])
    assert json.loads(applied["data"]["memory.json"]) == {"device_bytes": 7, "reserve_bytes": 3}
    done = decide_profile(state(progress=progress, table=applied), IMAGES)
    assert [each for each in done.actions if isinstance(each, Take)] == [Take("p")]
    assert ready(done)[0] == "True"
    assert done.status is not None
    assert done.status["configMap"] == applied["metadata"]["name"]
    assert len(done.status["sha256"]) == 64
    assert done.status["device"] == json.loads(TABLE)["key"]["device"]


def test_a_problem_ends_it_for_good() -> None:
    progress = {"p": Progress(problem="model.safetensors is damaged. Copy it again.")}
    decision = decide_profile(state(progress=progress), IMAGES)
    status, reason, message = ready(decision)
    assert (status, reason) == ("False", "ProfileFailed")
    assert "is damaged" in message
    assert "delete the ExeGPTProfile" in message
    assert Take("p") in decision.actions
    failed = made() | {"status": decision.status}
    assert decide_profile(state(resource=failed), IMAGES).actions == ()


def test_a_job_that_fails_and_a_pod_that_cannot_start_are_told_apart() -> None:
    failed = decide_profile(state(job_failure="Job x: BackoffLimitExceeded."), IMAGES)
    assert ready(failed)[:2] == ("False", "ProfileFailed")
    pod = PodSeen(
        name="p", is_scheduled=False, unscheduled_because="0/1 nodes: Insufficient test.dev/device"
    )
    waiting = decide_profile(state(pods=(pod,)), IMAGES)
    assert ready(waiting)[:2] == ("Unknown", "InsufficientGPUs")


def test_profiles_are_shared_by_equal_deployments_only() -> None:
    first, other = made()["metadata"]["name"], resource(latencyBound={"seconds": 1.0})
    deployment, _ = deployment_of(other)
    assert deployment is not None
    assert profile(deployment, IMAGES)["metadata"]["name"] == first
    deployment, _ = deployment_of(resource(podTemplate={"nodeSelector": {"gpu": "a40"}}))
    assert deployment is not None
    assert profile(deployment, IMAGES)["metadata"]["name"] != first
    named = {"labels": {"team": "nlp"}, "priorityClassName": "high"}
    deployment, _ = deployment_of(resource(podTemplate=named))
    assert deployment is not None
    assert profile(deployment, IMAGES)["metadata"]["name"] == first, "as fast under any name"
    assert made()["kind"] == names.PROFILE


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("table.json", "{", "not JSON"),
        ("table.json", '{"version": "exegpt.profile/v0"}', "version"),
        ("model.json", "[]", "expected a JSON object"),
        ("memory.json", '{"bytes": 3}', "memory.json"),
        ("memory.json", None, "memory.json"),
    ],
)
def test_a_table_by_hand_that_is_none_is_refused(file: str, text: str | None, words: str) -> None:
    memory = '{"device_bytes": 7, "reserve_bytes": 3}'
    data = {"table.json": TABLE, "model.json": MODEL, "memory.json": memory} | {file: text}
    table = {
        "metadata": {"name": "by-hand"},
        "data": {key: value for key, value in data.items() if value is not None},
    }
    status, reason, message = ready(decide_profile(state(table=table), IMAGES))
    assert (status, reason) == ("False", "ProfileFailed")
    assert "ConfigMap by-hand" in message
    assert words in message


def test_a_pod_that_a_quota_refuses_is_said_so() -> None:
    decision = decide_profile(state(refused="pods is forbidden: exceeded quota: few"), IMAGES)
    assert ready(decision)[:2] == ("Unknown", "Forbidden")
    assert "exceeded quota: few" in ready(decision)[2]
