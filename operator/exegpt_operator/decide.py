"""The one decision: from what is seen of a deployment to what is done next and what its status says.

A pure function, asked again whenever anything moves: stages in the order of a deployment's life, each of which says its
conditions and what it needs done, and either lets the next one go on or ends the decision. What runs is never torn down
for a problem upstream of it: a plan in force goes on until another one can take its place.

    validated -> profiled -> scheduled -> approved -> workers -> endpoint -> bound, drift
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exegpt_operator import devices, names
from exegpt_operator.actions import (
    Action,
    Apply,
    DeletePod,
    Emit,
    LabelPod,
    MakeToken,
    StartPlanning,
    Steer,
)
from exegpt_operator.causes import worst
from exegpt_operator.compare import is_as_wanted, key, key_of, stamped
from exegpt_operator.conditions import Condition, changes, false, merged, true, unknown
from exegpt_operator.manifests import gateway, profiles, workers
from exegpt_operator.manifests.images import Images
from exegpt_operator.manifests.observed import detected
from exegpt_operator.reasons import MISSING, Reason, reason_of
from exegpt_operator.roles import role_of
from exegpt_operator.seen import PlanSeen, PodSeen, Seen
from exegpt_operator.status import at_rest, in_words, why
from exegpt_operator.summing_up import ACTIONABLE, event_type, is_news, summed_up
from exegpt_operator.times import rfc3339, seconds_of
from exegpt_operator.watching import bound_met
from exegpt_planner.manifest import Deployment

WATCH_S = 30.0  # looked at again after, whatever happens
SOON_S = 1.0  # while the gateway settles


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, what to say, and when to look again if nothing happens."""

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None  # None: as it is
    look_again_s: float = WATCH_S


def decide(seen: Seen, images: Images) -> Decision:
    """The next actions and the status."""
    if seen.is_namespace_ending:
        return Decision()  # all that is ours goes with it
    return _Deciding(seen, images).decision()


@dataclass(slots=True)
class _Deciding:
    seen: Seen
    images: Images
    actions: list[Action] = field(default_factory=list)
    conditions: dict[str, Condition] = field(default_factory=dict)
    look_again_s: float = WATCH_S
    steers: bool = True  # whether gateways are to take up the newest plan
    is_for_spec: bool = True  # whether the newest plan may be carried out
    replicas: int = 0  # of devices, that are to be held
    attempt: str = ""  # when devices were last asked for in vain, RFC 3339
    detection: str = ""  # when observed lengths were last put on file

    def decision(self) -> Decision:
        stages: tuple[Callable[[], bool], ...] = (
            self._validated,
            self._profiled,
            self._scheduled,
            self._approved,
            self._workers,
            self._endpoint,
            self._watched,
        )
        self.attempt = str(self.seen.status.get("lastAttemptTime", ""))
        self.detection = str(self.seen.status.get("lastDetectionTime", ""))
        if self.seen.runner_image:
            self.images = replace(self.images, runner=self.seen.runner_image)
        for stage in stages:
            if not stage():
                break
        return self._told()

    # Each stage returns whether the next one is reached.

    def _validated(self) -> bool:
        seen = self.seen
        if seen.problems:
            return self._stalled(false("Validated", Reason.INVALID_SPEC, "; ".join(seen.problems)))
        for kind, name in seen.missing:
            return self._stalled(false("Validated", MISSING[kind], f"{kind} {name} is not there."))
        self._say(true("Validated", Reason.VALID))
        return True

    def _profiled(self) -> bool:
        deployment, profile = self._deployment, self.seen.profile
        if deployment.spec.suspend and self.seen.plan is not None:
            if profile is None:  # of another spec: the devices are free for it now
                self._make_profile()
            self._say(true("Profiled", Reason.PROFILED, "By what the plan on file rests on."))
            return True  # no plan is made meanwhile
        if profile is None:
            self._make_profile()
            return self._waiting(unknown("Profiled", Reason.PROFILING, "The profile is made."))
        if profile.ready == "False":
            reason = reason_of(profile.reason)
            return self._stalled(false("Profiled", reason, profile.message))
        if profile.ready != "True":
            words = profile.message or f"Profile {profile.name} is being measured."
            reason = reason_of(profile.reason)  # of its pod, where that has trouble
            holds = any(pod.is_scheduled for pod in self.seen.worker_pods)
            if reason is Reason.INSUFFICIENT_GPUS and holds:
                words += " The deployment's own pods hold devices: suspend it until it is profiled."
            reason = reason if reason in ACTIONABLE else Reason.PROFILING
            return self._waiting(unknown("Profiled", reason, words))
        self._say(true("Profiled", Reason.PROFILED, f"By {profile.name}, on {profile.device}."))
        return True

    def _scheduled(self) -> bool:
        seen, plan = self.seen, self.seen.plan
        if self._deployment.spec.suspend and plan is not None:
            return self._planned(plan)
        if seen.malformed:
            if plan is not None and plan.generation == seen.generation:
                return self._planned(plan)  # only the lengths may be others
            self._say(unknown("Scheduled", Reason.MALFORMED_ANNOTATION, seen.malformed))
            return self._left_alone()
        if plan is not None and plan.inputs == seen.inputs:
            return self._planned(plan)
        if not seen.inputs and plan is not None:  # another profile is on its way
            words = f"Plan {plan.id} is in force until there is a profile to plan by."
            self._say(unknown("Scheduled", Reason.PENDING, words))
            return self._left_alone()
        refusal = seen.refusal
        if refusal is not None and refusal.inputs == seen.inputs:
            self._say(false("Scheduled", reason_of(refusal.reason), refusal.message))
            return self._left_alone()
        self.actions.append(StartPlanning(seen.inputs, why(seen)))
        if plan is not None:
            is_for_spec = plan.generation == seen.generation  # only the lengths are others
            say = true if is_for_spec else unknown
            self._say(say("Scheduled", Reason.PLANNING, f"Plan {plan.id} is in force meanwhile."))
            return True if is_for_spec else self._left_alone()
        return self._waiting(unknown("Scheduled", Reason.PLANNING))

    def _planned(self, plan: PlanSeen) -> bool:
        self._say(true("Scheduled", Reason.PLANNED, in_words(plan)))
        return True

    def _approved(self) -> bool:
        scheduling = self._deployment.spec.scheduling
        plan = self._plan
        approved = self.seen.annotations.get(names.APPROVED_PLAN)
        if scheduling.plan_policy == "DryRun":
            self._hold(Reason.DRY_RUN)
            return False
        if scheduling.plan_policy == "Review" and approved != plan.id:
            words = f"Plan {plan.id} waits for exegpt.dev/approved-plan={plan.id}."
            self._say(false("Scheduled", Reason.AWAITING_APPROVAL, words))
            if not self._left_alone():  # as approved before, if it was
                return False
        if self._deployment.spec.suspend:
            self._hold(Reason.SUSPENDED)
            return False
        return True

    def _left_alone(self) -> bool:
        """What runs goes on as it is, by the plan it was made for; whether anything does."""
        self.steers = self.is_for_spec = False
        there = self._stateful_set
        return there is not None and bool(there["spec"].get("replicas"))

    def _workers(self) -> bool:
        deployment, seen = self._deployment, self.seen
        if not self.is_for_spec:
            assert self._stateful_set is not None, "else nothing runs"
            gateways = seen.children.get(key("StatefulSet", names.gateway(seen.name)), {})
            self.replicas = gateways.get("spec", {}).get("replicas", 0)
            self._told_of_workers(self._stateful_set["spec"]["replicas"])
            return self.replicas > 0
        if not seen.has_token:
            self.actions.append(MakeToken(names.token(seen.name)))
        self._want(workers.service(deployment))
        self._want(gateway.endpoint(deployment))
        self._want(gateway.config(deployment, seen.serving_json))  # before the pods that mount it
        room = devices.room(seen, self.attempt)
        self.replicas, self.attempt = room.replicas, room.attempt
        wanted = self.replicas * workers.num_pods(deployment) // deployment.spec.replicas
        are_ours = self._scale_workers(wanted)
        self._want_gateway(self.replicas)
        if (
            are_ours
        ):  # else what their controller takes for the newest template is an older one, or an edit
            self._replace_stale()
        self._label_roles()
        self._told_of_workers(wanted)
        if room.lacks is not None:
            self._say(false("WorkersReady", *room.lacks))
            self.look_again_s = devices.RETRY_S / 2
        return self.replicas > 0

    def _told_of_workers(self, wanted: int) -> None:
        seen = self.seen
        cause = worst(seen.worker_pods, self._deployment.spec.cluster.resource_name)
        ready = [pod for pod in seen.worker_pods if pod.is_ready and not pod.is_deleting]
        if cause is not None:
            self._say(false("WorkersReady", *cause))
        elif len(ready) < wanted:
            words = f"{len(ready)} of {wanted} worker pods hold the model."
            self._say(false("WorkersReady", Reason.STARTING, words))
        else:
            self._say(true("WorkersReady", Reason.READY, f"{wanted} of {wanted} worker pods."))

    def _endpoint(self) -> bool:
        seen, plan = self.seen, self._plan
        ready = [pod for pod in seen.gateway_pods if pod.is_ready and not pod.is_deleting]
        answering = [pod for pod in ready if pod.name in seen.serving]
        for pod in answering:
            if self.steers and seen.serving[pod.name].plan_id != plan.id:
                self.actions.append(Steer(pod.name, plan.id))
                self.look_again_s = SOON_S
        cause = worst(seen.gateway_pods, self._deployment.spec.cluster.resource_name)
        if cause is not None:
            self._say(false("EndpointReady", *cause))
            return False
        if len(ready) < self.replicas:
            words = f"{len(ready)} of {self.replicas} gateways serve."
            self._say(false("EndpointReady", Reason.STARTING, words))
            return False
        if len(answering) < len(ready):
            words = f"Pod {next(p.name for p in ready if p not in answering)} does not answer."
            self._say(unknown("EndpointReady", Reason.NOT_REACHED, words))
            return False
        is_settled = self._settled(answering)
        if not is_settled:
            self.look_again_s = SOON_S  # nothing tells when a gateway has settled
        return is_settled

    def _settled(self, answering: Iterable[PodSeen]) -> bool:
        """Whether every gateway works by the plan in force, with all its workers."""
        for each in (self.seen.serving[pod.name] for pod in answering):
            if each.transfer_problem:
                self._say(false("EndpointReady", Reason.TRANSFER_FAILED, each.transfer_problem))
                return False
            if each.self_test_problem:
                self._say(false("EndpointReady", Reason.SELF_TEST_FAILED, each.self_test_problem))
                return False
            if each.lost_workers and self.conditions["WorkersReady"].status == "True":
                words = f"Lost, and waited for: {', '.join(each.lost_workers)}."
                self._say(false("WorkersReady", Reason.STARTING, words))
            if not each.is_complete or (self.steers and each.plan_id != self._plan.id):
                self._say(false("EndpointReady", Reason.RECONCILING, "It takes up the plan."))
                return False
        self._say(true("EndpointReady", Reason.READY))
        return True

    def _watched(self) -> bool:
        self._say(bound_met(self.seen.serving.values()))
        self._drifted()
        return True

    def _drifted(self) -> None:
        seen, drift = self.seen, self._deployment.spec.drift
        if seen.malformed:
            self._say(unknown("Drifted", Reason.MALFORMED_ANNOTATION, seen.malformed))
            return
        most = max(seen.serving.values(), key=lambda each: each.num_queries)
        if most.num_queries < drift.min_queries:
            words = f"{most.num_queries} of {drift.min_queries} queries seen since the plan."
            self._say(unknown("Drifted", Reason.NO_OBSERVATIONS, words))
            return
        words = f"Observed lengths are {most.drift:.3f} of the mean off, the threshold is {drift.threshold:g}."
        if most.drift <= drift.threshold:
            self._say(false("Drifted", Reason.STABLE, words))
            return
        self._say(true("Drifted", Reason.DRIFTED, words))
        history = seen.status.get("history", [])
        planned_s = max(
            (seconds_of(e["time"]) for e in history if e["id"] == self._plan.id), default=0.0
        )
        is_pinned = seen.lengths is not None and seen.lengths.source in ("Annotation", "Spec")
        last_s = max(planned_s, seconds_of(self.detection))
        if not is_pinned and seen.now_s - last_s >= drift.cooldown_seconds:
            self.detection = rfc3339(seen.now_s)
            self.actions += detected(self._deployment, most.observed, seen.annotations)

    # Parts of stages.

    def _make_profile(self) -> None:
        wanted = profiles.profile(self._deployment, self.images)
        self.actions.append(Apply(stamped(wanted), is_owned=False))

    @property
    def _deployment(self) -> Deployment:
        assert self.seen.deployment is not None, "validated first"
        return self.seen.deployment

    @property
    def _plan(self) -> PlanSeen:
        assert self.seen.plan is not None, "scheduled first"
        return self.seen.plan

    def _want(self, wanted: Mapping[str, Any]) -> bool:
        """Whether it is there as wanted already."""
        is_there = is_as_wanted(wanted, self.seen.children.get(key_of(wanted)))
        if not is_there:
            self.actions.append(Apply(stamped(wanted)))
        return is_there

    @property
    def _stateful_set(self) -> Mapping[str, Any] | None:
        return self.seen.children.get(key("StatefulSet", names.workers(self.seen.name)))

    def _scale_workers(self, pods: int) -> bool:
        """Whether they are as wanted already."""
        if pods == 0 and self._stateful_set is None:
            return True  # nothing is held, and nothing need be made to hold nothing
        return self._want(
            workers.stateful_set(
                self._deployment,
                self.images,
                replicas=pods,
                weight_bytes=self._plan.weight_bytes,
            )
        )

    def _want_gateway(self, pods: int) -> None:
        there = self.seen.children.get(key("StatefulSet", names.gateway(self.seen.name)))
        if pods or there is not None:
            self._want(gateway.gateway(self._deployment, self.images, replicas=pods))

    def _hold(self, reason: Reason) -> None:
        """Holds no device, and keeps all that is known."""
        self._scale_workers(0)
        self._want_gateway(0)
        self._say(false("WorkersReady", reason))

    def _replace_stale(self) -> None:
        """Worker pods of an older template make way, all at once: their KV would not fit the new ones'."""
        there = self._stateful_set or {}
        status = there.get("status", {})
        if status.get("observedGeneration") != there.get("metadata", {}).get("generation"):
            return  # its controller has yet to say which template is the newest
        newest = status.get("updateRevision", "")
        for pod in self.seen.worker_pods:
            if newest and pod.revision and pod.revision != newest and not pod.is_deleting:
                self.actions.append(DeletePod(pod.name, pod.uid))

    def _label_roles(self) -> None:
        for pod in self.seen.worker_pods:
            ordinal, cluster = devices.ordinal_of(pod), self._deployment.spec.cluster
            role = role_of(self._plan.plan.schedule, cluster, ordinal)
            if pod.role != role and not pod.is_deleting:
                self.actions.append(LabelPod(pod.name, pod.uid, role))

    # What is said.

    def _say(self, condition: Condition) -> None:
        self.conditions[condition.type] = condition

    def _waiting(self, condition: Condition) -> bool:
        """What runs goes on meanwhile."""
        self._say(condition)
        return self.seen.plan is not None

    def _stalled(self, condition: Condition) -> bool:
        """Nothing goes on by itself here; what runs is left alone."""
        self._say(condition)
        return False

    def _told(self) -> Decision:
        seen = self.seen
        if seen.refused:
            self._say(false("WorkersReady", Reason.FORBIDDEN, seen.refused))
        before, now = seen.status.get("conditions", []), summed_up(self.conditions)
        for each in changes(before, now):
            if is_news(each):
                words = f"{each.type}: {each.message}"
                self.actions.append(Emit(event_type(each), str(each.reason), words))
        status = at_rest(
            seen,
            conditions=merged(before, now, generation=seen.generation, time=rfc3339(seen.now_s)),
            times={"lastAttemptTime": self.attempt, "lastDetectionTime": self.detection},
        )
        return Decision(
            actions=tuple(self.actions),
            status=None if status == seen.status else status,
            look_again_s=self.look_again_s,
        )
