"""What a decision may ask for; nothing here does anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exegpt_operator.seen import Role


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of this object, owned by the deployment unless it is a profile."""

    object: Mapping[str, Any]
    is_owned: bool = True


@dataclass(frozen=True, slots=True)
class MakeToken:
    """Create the Secret with a fresh token; what is there already is kept."""

    name: str


@dataclass(frozen=True, slots=True)
class StartPlanning:
    """Have the planner search, off the event loop; the answer comes as a plan on file or a refusal."""

    inputs: str
    why: str  # in words, for the history


@dataclass(frozen=True, slots=True)
class Steer:
    """Have a gateway work by the plan in force, in place."""

    pod: str
    plan_id: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod, which its StatefulSet makes again from the newest template."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LabelPod:
    """Set a pod's live role."""

    name: str
    uid: str
    role: Role


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set the detector's annotations on the deployment, without force."""

    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Emit:
    """An event on the deployment."""

    type: str  # Normal or Warning
    reason: str
    message: str


Action = Apply | MakeToken | StartPlanning | Steer | DeletePod | LabelPod | Annotate | Emit
