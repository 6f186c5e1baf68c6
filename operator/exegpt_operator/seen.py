"""What the operator sees of a deployment: everything that a decision is a function of, read afresh each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exegpt_operator.observed import Lengths
from exegpt_planner.manifest import Deployment
from exegpt_planner.plan import Plan

Object = Mapping[str, Any]
Role = Literal["encoder", "decoder", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSeen:
    """One container of a pod."""

    name: str
    is_ready: bool = False
    restarts: int = 0
    waiting: str = ""  # the kubelet's reason, e.g. ImagePullBackOff
    ended: str = ""  # the reason of its latest end, e.g. OOMKilled
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod."""

    name: str
    uid: str = ""
    ip: str = ""
    phase: str = "Pending"
    is_ready: bool = False
    is_scheduled: bool = True
    unscheduled_because: str = ""  # the scheduler's words
    age_s: float = 0.0
    is_deleting: bool = False
    role: str = ""  # its label
    revision: str = ""  # of its StatefulSet's template
    containers: tuple[ContainerSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSeen:
    """The ExeGPTProfile that a deployment plans by."""

    name: str
    ready: Literal["True", "False", "Unknown"] = "Unknown"
    reason: str = "Pending"
    message: str = ""
    config_map: str = ""
    sha256: str = ""  # of the table, when ready
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSeen:
    """The newest plan on file."""

    id: str
    revision: int
    inputs: str  # digest of what it was made from
    plan: Plan
    runner_image: str
    weight_bytes: int = 0
    why: str = ""  # it was made
    generation: int = 0  # of the spec that it was made for
    config_map: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the planner said instead of a plan, and from which inputs."""

    inputs: str
    reason: str
    message: str
    time: str = ""  # RFC 3339


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSeen:
    """What the gateway says of itself, if it answers."""

    plan_id: str
    is_complete: bool  # every worker holds the model and the KV probes have passed
    lost_workers: tuple[str, ...] = ()
    transfer_problem: str = ""
    self_test_problem: str = ""
    num_s99: int = 0  # latest answers of the bound's length
    num_kept: int = 0  # of these, within the bound
    num_queries: int = 0  # observed since the plan in force
    drift: float = (
        0.0  # distance of their lengths from the planned ones, a share of the planned mean
    )
    observed: Mapping[str, str] = field(
        default_factory=dict
    )  # by side, "input" and "output": a Histogram as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A deployment and all that belongs to it."""

    name: str
    namespace: str
    uid: str
    generation: int
    deployment: Deployment | None = None  # None where `problems` says why
    problems: tuple[str, ...] = ()
    missing: tuple[
        tuple[str, str], ...
    ] = ()  # (kind, name) of what the spec names and is not there
    annotations: Mapping[str, str] = field(default_factory=dict)
    runner_image: str = ""  # that its pods run, or would if they were made now
    lengths: Lengths | None = None  # None where `malformed` says why
    malformed: str = ""
    is_namespace_ending: bool = False
    status: Object = field(default_factory=dict)
    profile: ProfileSeen | None = None
    plan: PlanSeen | None = None
    refusal: Refusal | None = None
    inputs: str = ""  # digest of what a plan would be made from now
    has_token: bool = False
    serving_json: str = ""  # what gateways start from, by the plan in force
    children: Mapping[str, Object] = field(default_factory=dict)  # "Kind/name" -> as it is there
    worker_pods: tuple[PodSeen, ...] = ()
    gateway_pods: tuple[PodSeen, ...] = ()
    free_slots: int | None = (
        None  # worker pods that nodes have devices for, ours counted as free; None: not looked
    )
    serving: Mapping[str, ServingSeen] = field(
        default_factory=dict
    )  # by gateway pod; absent: no answer
    now_s: float = 0.0  # seconds since 1970
    refused: str = ""  # what the API server said to the last write
