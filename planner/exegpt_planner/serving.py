"""What a gateway in a cluster starts from (docs/formats.md): the plan in force and all that it rests on."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from exegpt_planner.manifest import WorkloadSpec
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.strict import StrictModel

DRAIN_SLACK_S = 30.0


def drain_s(bound_s: float) -> float:
    """How long running answers may go on when a gateway is told to end: the bound, and as much again for longer."""
    return 2 * bound_s + DRAIN_SLACK_S


class Serving(StrictModel):
    """One deployment's serving, for the gateways of all its replicas."""

    version: Literal["exegpt.serving/v1"] = "exegpt.serving/v1"
    served_name: str
    model_path: str  # of the folder, in gateways and workers alike
    dtype: str
    replicas: tuple[tuple[str, ...], ...] = Field(min_length=1)  # host:port of every worker of each
    plan_id: str
    plan: Plan
    table: ProfileTable
    workload: WorkloadSpec | None  # None: the prior

    @model_validator(mode="after")
    def _all_alike(self) -> Self:
        sizes = {len(workers) for workers in self.replicas}
        if sizes != {self.table.key.workers}:
            raise ValueError(
                f"replicas of {sorted(sizes)} workers, but the profile is of {self.table.key.workers}"
            )
        return self
