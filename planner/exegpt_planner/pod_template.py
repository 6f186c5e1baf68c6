"""The typed subset of a pod that a deployment may set, the same for every pod.

How many devices a pod gets and what it runs is left out on purpose: plans rest on it.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from exegpt_planner.strict import CamelModel, Text


class Toleration(CamelModel):
    """A taint that pods may be placed under, as in Kubernetes."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(strict=True, ge=0)] | None = None


class KeyRef(CamelModel):
    """One key of a Secret or a ConfigMap."""

    name: Text
    key: Text


class EnvSource(CamelModel):
    """Where an environment variable's value comes from."""

    secret_key_ref: KeyRef | None = None
    config_map_key_ref: KeyRef | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise ValueError("needs one of secretKeyRef and configMapKeyRef")
        return self


class EnvVar(CamelModel):
    """An environment variable of every container: a value, or where to take it from."""

    name: Text
    value: str | None = None
    value_from: EnvSource | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.value is None) == (self.value_from is None):
            raise ValueError("needs one of value and valueFrom")
        return self


class Resources(CamelModel):
    """Kubernetes quantities beside the devices, which exegpt sets itself."""

    requests: dict[str, str | int | float] = Field(default_factory=dict)
    limits: dict[str, str | int | float] = Field(default_factory=dict)


class PodTemplate(CamelModel):
    """What every pod of the deployment has in common; the rest of a pod is exegpt's to decide."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    resources: Resources = Resources()
    env: tuple[EnvVar, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    priority_class_name: str = ""
