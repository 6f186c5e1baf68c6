"""The `ExeGPTDeployment` kind: what a user asks for, on one machine as in a cluster (docs/formats.md).

Fields are camelCase in files and snake_case in code. Only the model, the cluster's size and the bound are required.
Refuses what cannot mean anything: moments of no law, a workload given twice, devices that do not fill pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, field_validator, model_validator

from exegpt_planner import truncation
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.lengths import histogram_problems
from exegpt_planner.pod_template import PodTemplate
from exegpt_planner.strict import CamelModel, Text, parse, read_yaml

API_VERSION = "exegpt.dev/v1alpha1"
KIND = "ExeGPTDeployment"
NAME_MAX = 40  # characters; leaves 23 of a label's 63 for the suffixes of the objects made for a deployment

Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[float, Field(strict=True)]  # no "5" and no true; whole numbers are fine
T = TypeVar("T")

_MODEL_URIS = {
    "hf": r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?",
    "pvc": r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/[^/\s][^\s]*)?",
    "file": r"/[^\n]*[^/\n]/?",
    "demo": r"[a-z0-9][a-z0-9.-]*",
}
_MODEL_URI_FORMS = (
    "hf://org/name, pvc://claim/path, file:///absolute/folder or demo://name "
    "(the last two on one machine only)"
)


class Metadata(CamelModel):
    """The deployment's name and place, as in every Kubernetes object."""

    name: str = Field(max_length=NAME_MAX)
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @field_validator("name", "namespace")
    @classmethod
    def _label(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
            raise ValueError("must be lower-case letters, digits and inner '-' (a DNS-1123 label)")
        return value


def _served_name(data: dict[str, Any]) -> str:
    return str(data.get("uri", "model")).rstrip("/").rpartition("/")[2]


class Model(CamelModel):
    """Which weights to serve, and in what number format."""

    uri: str
    revision: Text = "main"  # of an hf:// model
    served_name: Text = Field(default_factory=_served_name)  # default: the uri's last part
    dtype: Literal["bfloat16", "float16", "float32", "float64"] = "bfloat16"

    @field_validator("uri")
    @classmethod
    def _known_uri(cls, uri: str) -> str:
        scheme, found, rest = uri.partition("://")
        if not found or scheme not in _MODEL_URIS:
            named = f"scheme {scheme!r} is not accepted" if found else "has no scheme"
            raise ValueError(f"{named}; write {_MODEL_URI_FORMS}")
        if not re.fullmatch(_MODEL_URIS[scheme], rest):
            raise ValueError(f"not a {scheme}:// model; write {_MODEL_URI_FORMS}")
        return uri

    @model_validator(mode="after")
    def _revision_of_hf(self) -> Self:
        if self.revision != "main" and self.scheme != "hf":
            raise ValueError("revision applies to hf:// models only; remove it")
        return self

    @property
    def scheme(self) -> str:
        """hf, pvc, file or demo."""
        return self.uri.partition("://")[0]

    @property
    def location(self) -> str:
        """The uri without its scheme: a repository, a claim and path, a folder or a name."""
        return self.uri.partition("://")[2]


class Cluster(CamelModel):
    """The devices of one replica; on CPUs a device is one worker process."""

    gpus: Count
    gpus_per_pod: Count = Field(default_factory=lambda data: data.get("gpus", 1))  # default: gpus
    resource_name: Text = "nvidia.com/gpu"

    @model_validator(mode="after")
    def _whole_pods(self) -> Self:
        if self.gpus % self.gpus_per_pod:
            raise ValueError(
                f"gpusPerPod {self.gpus_per_pod} must divide gpus {self.gpus}: pods are all alike"
            )
        return self


class LatencyBound(CamelModel):
    """An answer as long as this percentile of output lengths completes within `seconds`."""

    seconds: Number = Field(gt=0)
    percentile_length: Number = Field(default=99, ge=50, lt=100)


class Histogram(CamelModel):
    """Observed lengths, tokens, and how often each was seen."""

    lengths: tuple[Annotated[int, Field(strict=True)], ...]
    counts: tuple[Number, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = histogram_problems(np.asarray(self.lengths), np.asarray(self.counts, np.float64))
        if problems:
            raise ValueError("; ".join(problems))
        return self


class LengthSpec(CamelModel):
    """A law of lengths in tokens: mean, std and max of a truncated normal, or a histogram."""

    mean: Number | None = None
    std: Number | None = Field(default=None, ge=0)
    max: Count | None = None
    histogram: Histogram | None = None

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        given = [name for name in ("mean", "std", "max") if getattr(self, name) is not None]
        if self.histogram is not None:
            if given:
                raise ValueError(f"give either histogram or {', '.join(given)}, not both")
            return self
        if reason := truncation.problem(*self.moments):
            raise ValueError(reason)
        return self

    @property
    def moments(self) -> tuple[float, float, int]:
        """Mean, std and max of the truncated normal; there is none where a histogram is given."""
        if self.mean is None or self.std is None or self.max is None:
            raise ValueError("needs mean, std and max, or a histogram")
        return self.mean, self.std, self.max


class WorkloadSpec(CamelModel):
    """Input and output lengths: a law of each, or a trace of both."""

    input: LengthSpec | None = None
    output: LengthSpec | None = None
    trace: Text | None = None  # a CSV file with input_tokens,output_tokens; on one machine only

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        laws = (self.input is not None) + (self.output is not None)
        if self.trace is not None and laws:
            raise ValueError("give either trace or input and output, not both")
        if self.trace is None and laws < 2:
            raise ValueError("needs both input and output, or a trace")
        return self


class Scheduling(CamelModel):
    """What the planner may choose from, and whether its plans take effect by themselves."""

    strategies: tuple[Literal["RRA", "WAA", "CRA"], ...] = Field(
        default=("RRA", "WAA", "CRA"), min_length=1
    )
    plan_policy: Literal["Auto", "Review", "DryRun"] = "Auto"

    @field_validator("strategies")
    @classmethod
    def _unique(cls, strategies: tuple[T, ...]) -> tuple[T, ...]:
        if len(set(strategies)) < len(strategies):
            raise ValueError("names a strategy twice")
        return strategies


class Drift(CamelModel):
    """When observed lengths count as having moved away from the planned ones."""

    threshold: Number = Field(default=0.1, gt=0)
    min_queries: Count = 1000
    cooldown_seconds: Number = Field(default=300, ge=0)


class DeploymentSpec(CamelModel):
    """What is asked for."""

    model: Model
    cluster: Cluster
    latency_bound: LatencyBound
    replicas: Count = 1
    suspend: Annotated[bool, Field(strict=True)] = False
    workload: WorkloadSpec | None = None  # else: as observed, a prior until then
    scheduling: Scheduling = Scheduling()
    drift: Drift = Drift()
    pod_template: PodTemplate = PodTemplate()


class Deployment(CamelModel):
    """An ExeGPTDeployment."""

    api_version: Literal["exegpt.dev/v1alpha1"]
    kind: Literal["ExeGPTDeployment"]
    metadata: Metadata
    spec: DeploymentSpec


def read_manifest(path: Path) -> Deployment:
    """The deployment in a YAML (or JSON) file. A relative trace path is taken from the file's folder."""
    data = read_yaml(path)
    _check_kind(data, str(path))
    deployment = parse(Deployment, data, source=str(path))
    workload = deployment.spec.workload
    if workload is None or workload.trace is None:
        return deployment
    trace = str(path.parent / workload.trace)
    spec = deployment.spec.model_copy(
        update={"workload": workload.model_copy(update={"trace": trace})}
    )
    return deployment.model_copy(update={"spec": spec})


def _check_kind(data: Mapping[str, Any], source: str) -> None:
    """Refuses another kind at once: its fields would all be reported as unknown."""
    kind, version = data.get("kind"), data.get("apiVersion")
    if (kind, version) != (KIND, API_VERSION):
        raise InvalidSpec(
            source,
            [
                f"holds kind {kind!r} of apiVersion {version!r}; expected kind: {KIND} and apiVersion: {API_VERSION}"
            ],
        )
