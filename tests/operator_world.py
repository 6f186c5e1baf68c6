"""A cluster in memory for the decision function: does what decisions ask, as API server, kubelet and gateway would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exegpt_operator import names
from exegpt_operator.actions import (
    Action,
    Annotate,
    Apply,
    DeletePod,
    Emit,
    LabelPod,
    MakeToken,
    StartPlanning,
    Steer,
)
from exegpt_operator.compare import key, key_of
from exegpt_operator.decide import Decision, decide
from exegpt_operator.manifests.images import Images
from exegpt_operator.observed import HISTOGRAM_FILE, Lengths, Malformed, lengths
from exegpt_operator.planning import plan_id
from exegpt_operator.reading import deployment_of
from exegpt_operator.seen import PlanSeen, PodSeen, ProfileSeen, Refusal, Seen, ServingSeen
from exegpt_planner.manifest import Histogram
from exegpt_planner.plan import Plan
from exegpt_planner.strict import read_json

IMAGES = Images(runner="registry.test/runner@sha256:aa", gateway="registry.test/gateway@sha256:bb")
PLAN = read_json(Plan, Path(__file__).parent / "golden" / "plan.json")


OBSERVED = {
    "input": '{"lengths": [15, 20, 64], "counts": [300, 600, 100]}',
    "output": '{"lengths": [20, 30, 90], "counts": [300, 600, 100]}',
}


def resource(**spec: Any) -> dict[str, Any]:
    """A small deployment as the API server gives it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.DEPLOYMENT,
        "metadata": {"name": "translate", "namespace": "nlp", "uid": "u1", "generation": 1},
        "spec": {
            "model": {"uri": "pvc://weights/demo"},
            "cluster": {"gpus": 2, "gpusPerPod": 1, "resourceName": "test.dev/device"},
            "latencyBound": {"seconds": 5.0},
        }
        | spec,
    }


@dataclass(slots=True)
class World:
    """One deployment's surroundings."""

    resource: dict[str, Any] = field(default_factory=resource)
    now_s: float = 1_000_000.0
    profile_ready: str = "True"
    profile_reason: str = "Profiled"
    refuses: str = ""  # the planner's reason instead of a plan
    devices: int = 8
    pods_become_ready: bool = True
    gateway_answers: bool = True
    self_test: str = ""  # the gateway's problem with it
    answers: tuple[int, int] = (0, 0)  # kept, of all
    queries: int = 0
    drift: float = 0.0
    observed: Mapping[str, str] = field(default_factory=lambda: OBSERVED)
    has_profile: bool = False
    plan: PlanSeen | None = None
    refusal: Refusal | None = None
    has_token: bool = False
    children: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    worker_pods: list[PodSeen] = field(default_factory=list)
    gateway_pods: list[PodSeen] = field(default_factory=list)
    steered: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    managers: dict[str, str] = field(default_factory=dict)
    events: list[Emit] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.resource["metadata"].setdefault("annotations", {})
        return found

    def seen(self) -> Seen:
        """As the operator would see it."""
        deployment, problems = deployment_of(self.resource)
        found: Lengths | None = None
        malformed = ""
        if deployment is not None:
            try:
                found = lengths(
                    self.annotations, self.managers, deployment.spec.workload, self._histograms()
                )
            except Malformed as error:
                malformed = str(error)
        metadata = self.resource["metadata"]
        return Seen(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            deployment=deployment,
            problems=problems,
            missing=self.missing,
            annotations=self.annotations,
            runner_image=IMAGES.runner,
            lengths=found,
            malformed=malformed,
            status=self.status,
            profile=self._profile(),
            plan=self.plan,
            refusal=self.refusal,
            inputs=self.inputs if self.profile_ready == "True" else "",
            has_token=self.has_token,
            serving_json="{}" if self.plan is None else json.dumps({"plan": self.plan.id}),
            children=self.children,
            worker_pods=tuple(self.worker_pods),
            gateway_pods=tuple(self.gateway_pods),
            free_slots=self.devices,
            serving=self._serving(),
            now_s=self.now_s,
        )

    @property
    def inputs(self) -> str:
        """What a plan depends on."""
        spec = self.resource["spec"]
        parts = {name: spec.get(name) for name in ("model", "cluster", "latencyBound", "workload")}
        observed = {k: v for k, v in self.annotations.items() if "observed" in k}
        seen = {name: str(law) for name, law in self._histograms().items()}
        return names.digest(parts | observed | seen)

    def _histograms(self) -> dict[str, Histogram | None]:
        """Those in ConfigMaps."""
        return {
            where.removeprefix("ConfigMap/"): Histogram.model_validate_json(text)
            for where, child in self.children.items()
            if (text := child.get("data", {}).get(HISTOGRAM_FILE)) is not None
        }

    def _profile(self) -> ProfileSeen | None:
        if not self.has_profile:
            return None
        return ProfileSeen(
            name="demo-0123456789",
            ready=self.profile_ready,  # type: ignore[arg-type]
            reason=self.profile_reason,
            sha256="cafe" if self.profile_ready == "True" else "",
            device="cpu: test",
        )

    def _serving(self) -> dict[str, ServingSeen]:
        ready = [pod for pod in self.worker_pods if pod.is_ready]
        lost = tuple(pod.name for pod in self.worker_pods if not pod.is_ready)
        return {
            pod.name: ServingSeen(
                plan_id=self.steered,
                is_complete=bool(ready) and not lost and not self.self_test,
                self_test_problem=self.self_test,
                lost_workers=lost,
                num_kept=self.answers[0],
                num_s99=self.answers[1],
                num_queries=self.queries,
                drift=self.drift,
                observed=self.observed,
            )
            for pod in self.gateway_pods
            if pod.is_ready and self.gateway_answers
        }

    def turn(self) -> Decision:
        """Decides once and does it all."""
        decision = decide(self.seen(), IMAGES)
        for action in decision.actions:
            self.do(action)
        if decision.status is not None:
            self.status = dict(decision.status)
        self._controllers()
        self.now_s += 1.0
        return decision

    def settle(self, turns: int = 40) -> int:
        """Turns until two ask for nothing, as pods move in between; how many there were."""
        quiet = 0
        for count in range(turns):
            decision = self.turn()
            quiet = 0 if decision.actions or decision.status is not None else quiet + 1
            if quiet == 2:
                return count
        raise AssertionError(f"does not settle: {decision}")

    def do(self, action: Action) -> None:
        """As API server, planner and gateway would."""
        if not isinstance(action, Emit):
            self.done.append(action)
        match action:
            case Apply() if action.object["kind"] == names.PROFILE:
                self.has_profile = True
            case Apply():
                self.children[key_of(action.object)] = action.object
            case MakeToken():
                self.has_token = True
            case StartPlanning():
                self._plan(action)
            case Steer():
                self.steered = action.plan_id
            case DeletePod():
                self.worker_pods = [pod for pod in self.worker_pods if pod.uid != action.uid]
            case LabelPod():
                self.worker_pods = [
                    replace(pod, role=action.role) if pod.name == action.name else pod
                    for pod in self.worker_pods
                ]
            case Annotate():
                self.annotations.update(action.annotations)
                self.managers |= dict.fromkeys(action.annotations, names.DETECTOR)
            case Emit():
                self.events.append(action)

    def _plan(self, asked: StartPlanning) -> None:
        inputs = asked.inputs
        if self.refuses:
            self.refusal = Refusal(inputs=inputs, reason=self.refuses, message="No.")
            return
        revision = 1 if self.plan is None else self.plan.revision + 1
        self.plan = PlanSeen(
            id=plan_id(inputs),
            revision=revision,
            inputs=inputs,
            plan=PLAN,
            runner_image=IMAGES.runner,
            weight_bytes=270_000_000,
            why=asked.why,
            generation=int(self.resource["metadata"]["generation"]),
            config_map=names.plan("translate", revision),
        )

    def _controllers(self) -> None:
        """StatefulSets make and end pods, pods become ready."""
        self.worker_pods = self._pods(names.workers("translate"), self.worker_pods)
        self.gateway_pods = self._pods(names.gateway("translate"), self.gateway_pods)
        if self.gateway_pods and not self.steered and self.plan is not None:
            self.steered = self.plan.id  # it starts by the file
        if not self.gateway_pods:
            self.steered = ""

    def _pods(self, name: str, pods: list[PodSeen]) -> list[PodSeen]:
        there = self.children.get(key("StatefulSet", name))
        wanted = 0 if there is None else int(there["spec"]["replicas"])
        kept = [pod for pod in pods if int(pod.name.rpartition("-")[2]) < wanted]
        known = {pod.name for pod in kept}
        kept += [
            PodSeen(name=f"{name}-{i}", uid=f"{name}-{i}-{self.now_s}", ip="10.0.0.1", age_s=0.0)
            for i in range(wanted)
            if f"{name}-{i}" not in known
        ]
        return [
            replace(pod, is_ready=pod.is_ready or (self.pods_become_ready and pod.is_scheduled))
            for pod in kept
        ]

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason) in the status."""
        found = next(each for each in self.status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"]

    def message(self, kind: str) -> str:
        """The message of a condition."""
        return str(next(e for e in self.status["conditions"] if e["type"] == kind)["message"])
