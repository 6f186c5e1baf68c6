"""The decision for a profile: its Job until there is a table, then nothing more.

Pure, like a deployment's. A failed measurement stays failed until someone deletes the profile: profiling again by
itself would hold devices for ever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from exegpt_operator import names
from exegpt_operator.actions import Action, Apply, Emit, MakeToken
from exegpt_operator.causes import worst
from exegpt_operator.compare import key_of, stamped
from exegpt_operator.conditions import Condition, changes, false, merged, true, unknown
from exegpt_operator.manifests import profiles
from exegpt_operator.manifests.images import Images
from exegpt_operator.reasons import Reason
from exegpt_operator.seen import PodSeen
from exegpt_operator.summing_up import event_type
from exegpt_operator.times import rfc3339
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import parse_model_spec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.strict import json_object, parse_json

WATCH_S = 30.0
PROGRESS_S = 2.0


@dataclass(frozen=True, slots=True)
class Take:
    """Tell the profiling pod that it may end."""

    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a profiling pod says, if it answers."""

    done: int = 0
    total: int = 0
    doing: str = ""
    table: str = ""  # JSON
    model: str = ""
    device_bytes: int = 0
    reserve_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileState:
    """A profile and all that belongs to it."""

    resource: Mapping[str, Any]
    manifest: str  # JSON of the deployment that it is measured for
    table: Mapping[str, Any] | None = None  # the ConfigMap with the table
    has_token: bool = False
    children: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    job_failure: str = ""
    refused: str = ""  # what admission or quota said to its pod
    pods: tuple[PodSeen, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)  # by pod
    is_namespace_ending: bool = False
    now_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDecision:
    """What to do, what to say, and when to look again."""

    actions: tuple[Action | Take, ...] = ()
    status: Mapping[str, Any] | None = None
    look_again_s: float = WATCH_S


def table_name(profile: str) -> str:
    """The ConfigMap that holds a profile's table."""
    return f"{profile}-table"


def decide_profile(state: ProfileState, images: Images) -> ProfileDecision:
    """The next actions and the status."""
    if state.is_namespace_ending:
        return ProfileDecision()
    actions: list[Action | Take] = []
    look_again_s = WATCH_S
    if state.table is not None:
        actions += [Take(pod) for pod in state.progress]
        condition = true("Ready", Reason.PROFILED)
        if problem := _problem_of(state.table):
            condition = false("Ready", Reason.PROFILE_FAILED, problem)
    elif _is_failed(state):
        return ProfileDecision()
    else:
        condition, look_again_s = _measured(state, images, actions)
    status = _status(state, condition)
    before = state.resource.get("status", {})
    for each in changes(before.get("conditions", []), [condition]):
        actions.append(Emit(event_type(each), str(each.reason), each.message))
    return ProfileDecision(
        actions=tuple(actions),
        status=None if status == before else status,
        look_again_s=look_again_s,
    )


def _problem_of(table: Mapping[str, Any]) -> str:
    """What is wrong with a ConfigMap that is to hold a table, its model and its memory; it may be made by hand."""
    name, data = table["metadata"]["name"], table.get("data", {})
    texts = tuple(str(data.get(file, "")) for file in ("table.json", "model.json", "memory.json"))
    return _problem_in(f"ConfigMap {name}", *texts)


@lru_cache(maxsize=32)  # it is immutable, and looked at again and again
def _problem_in(where: str, table: str, model: str, memory: str) -> str:
    try:
        parse_json(ProfileTable, table, source=f"{where}, table.json")
        parse_model_spec(model, source=f"{where}, model.json")
        MemoryBudget(**json_object(memory, source=f"{where}, memory.json"))
    except InvalidSpec as error:
        return str(error)
    except (TypeError, ValueError) as error:
        return f"{where}, memory.json: {error}"
    return ""


def _is_failed(state: ProfileState) -> bool:
    conditions = state.resource.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "False" for each in conditions)


def _measured(
    state: ProfileState, images: Images, actions: list[Action | Take]
) -> tuple[Condition, float]:
    """How the measuring stands; asks for what it lacks."""
    name = state.resource["metadata"]["name"]
    for pod, progress in state.progress.items():
        if progress.table:
            actions.append(Apply(_table(state, progress)))
            return unknown("Ready", Reason.PROFILING, "The table is being put on file."), 0.0
        if progress.problem:
            actions.append(Take(pod))
            return false("Ready", Reason.PROFILE_FAILED, progress.problem), WATCH_S
    if state.job_failure:
        return false("Ready", Reason.PROFILE_FAILED, state.job_failure), WATCH_S
    if not state.has_token:
        actions.append(MakeToken(names.token(name)))
    config = _config(state)
    job = profiles.job(
        dict(state.resource),
        images,
        config_map=config["metadata"]["name"],
        token_secret=names.token(name),
    )
    actions += [  # neither changes while it measures
        Apply(stamped(wanted)) for wanted in (config, job) if key_of(wanted) not in state.children
    ]
    if state.refused:
        return unknown("Ready", Reason.FORBIDDEN, state.refused), WATCH_S
    if (cause := worst(state.pods, state.resource["spec"]["resourceName"])) is not None:
        return unknown("Ready", cause[0], cause[1]), PROGRESS_S
    for progress in state.progress.values():
        words = f"{progress.doing or 'Timing steps'}: {progress.done} of {progress.total}."
        return unknown("Ready", Reason.PROFILING, words), PROGRESS_S
    return unknown("Ready", Reason.PROFILING, "The profiling pod is starting."), PROGRESS_S


def _config(state: ProfileState) -> dict[str, Any]:
    metadata = state.resource["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{metadata['name']}-job",
            "namespace": metadata["namespace"],
            "labels": names.labels(metadata["name"], "profile"),
        },
        "data": {profiles.MANIFEST_FILE: state.manifest},
    }


def _table(state: ProfileState, progress: Progress) -> dict[str, Any]:
    metadata = state.resource["metadata"]
    memory = {"device_bytes": progress.device_bytes, "reserve_bytes": progress.reserve_bytes}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": table_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "labels": names.labels(metadata["name"], "profile"),
        },
        "immutable": True,
        "data": {
            "table.json": progress.table,
            "model.json": progress.model,
            "memory.json": json.dumps(memory),
        },
    }


def _status(state: ProfileState, condition: Condition) -> dict[str, Any]:
    metadata, before = state.resource["metadata"], state.resource.get("status", {})
    generation = metadata.get("generation", 1)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": merged(
            before.get("conditions", []),
            [condition],
            generation=generation,
            time=rfc3339(state.now_s),
        ),
    }
    if state.table is not None and condition.status == "True":
        text = state.table["data"]["table.json"]
        table = json.loads(text)
        status |= {
            "device": table["key"]["device"],
            "configMap": state.table["metadata"]["name"],
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "errorP95": f"{table['error_p95']:.3f}",
        }
    return status
