"""Look, decide, act, for one key at a time: the only place where the pure and the impure parts meet."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, ParamSpec, TypeVar

from exegpt_operator import decision_log, logs, names, talk
from exegpt_operator.act import Actor
from exegpt_operator.actions import Action, Annotate, Emit, LabelPod, StartPlanning, Steer
from exegpt_operator.api import ApiRefused
from exegpt_operator.decide import SOON_S, WATCH_S, decide
from exegpt_operator.decide_profile import Take, decide_profile
from exegpt_operator.look import Looked, Looker
from exegpt_operator.look_profile import look_at_profile
from exegpt_operator.manifests.images import Images
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.planning import Answer, Question
from exegpt_operator.seen import Refusal, Seen
from exegpt_operator.status import without_counts
from exegpt_operator.times import rfc3339

log = logging.getLogger(__name__)
decisions = logging.getLogger("exegpt_operator.decisions")
P = ParamSpec("P")
T = TypeVar("T")
AGAIN_S = 10.0  # until what the API server has refused is asked of it again

Kind = Literal["deployment", "profile"]
KINDS: Mapping[Kind, tuple[str, str]] = {
    "deployment": (names.DEPLOYMENT, names.DEPLOYMENTS),
    "profile": (names.PROFILE, names.PROFILES),
}


@dataclass(frozen=True, slots=True)
class Key:
    """What is looked at."""

    kind: Kind
    namespace: str
    name: str


class Loop:
    """One operator's work."""

    def __init__(
        self,
        looker: Looker,
        actor: Actor,
        images: Images,
        planner: Callable[[Question], Awaitable[Answer]],
        metrics: OperatorMetrics,
        threads: Executor,
    ) -> None:
        """Calls block in `threads`."""
        self._looker, self._actor, self._images = looker, actor, images
        self._planner, self._metrics, self._threads = planner, metrics, threads
        self._planning: dict[Key, asyncio.Task[None]] = {}
        # what the next look puts into the status: the planner's refusals, the API server's to the last write
        self._refusals: dict[Key, Refusal] = {}
        self._refused: dict[Key, str] = {}
        # pace, which nothing is lost with: when statuses were last written, when a plan may be searched again
        self._counted_s: dict[Key, float] = {}
        self._not_before_s: dict[Key, float] = {}
        self._planned_s: dict[Key, float] = {}  # when a search last ended
        # set by the owner: has a key looked at; whether this operator may still act
        self.named: Callable[[Key], None] = lambda _: None
        self.may_act: Callable[[], bool] = lambda: True

    @property
    def is_planning(self) -> bool:
        """Whether a search is under way."""
        return bool(self._planning)

    async def look(self, key: Key) -> float | None:
        """One turn of a key; the seconds until the next, None if it is gone."""
        if key.kind == "profile":
            return await self._profile(key)
        return await self._deployment(key)

    def close(self) -> None:
        """Ends searches."""
        for task in self._planning.values():
            task.cancel()

    async def _deployment(self, key: Key) -> float | None:
        began_s = time.monotonic()
        looked = await self._threaded(self._looker.deployment, key.namespace, key.name)
        if looked is None:
            self._forget(key)
            return None
        if not self.may_act():
            return SOON_S
        seen = replace(
            looked.seen,
            refused=self._refused.pop(key, looked.seen.refused),
            refusal=self._refusals.get(key, looked.seen.refusal),
        )
        decision = decide(seen, self._images)
        status = seen.status if decision.status is None else decision.status
        self._metrics.looked(seen, _ready_reason(status))
        again_s = decision.look_again_s
        for action in decision.actions:
            if not self.may_act():
                return SOON_S
            if isinstance(action, StartPlanning) and began_s <= self._planned_s.get(key, 0.0):
                continue  # what it asks for may have come on file while it looked
            if not await self._do(key, looked, action):
                again_s = (
                    AGAIN_S if seen.refused else SOON_S
                )  # what was refused before is in no hurry
        if decision.status is not None and self._is_due(key, seen.status, decision.status):
            await self._threaded(self._actor.keep_status, looked.resource, decision.status)
            self._counted_s[key] = time.monotonic()
            if (line := decision_log.measured(seen, decision.status)) is not None:
                _tell(seen, line)
        if self._refusals.get(key) is seen.refusal:
            self._refusals.pop(key, None)  # it is in the status now
        return again_s

    def _is_due(self, key: Key, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        """Whether a status is written now: news at once, counts that only move on now and then.

        Each write is an event, which is looked at: counts of a busy gateway would keep it going without end.
        """
        age_s = time.monotonic() - self._counted_s.get(key, -WATCH_S)
        return age_s >= WATCH_S or without_counts(before) != without_counts(now)

    def _forget(self, key: Key) -> None:
        """It is gone."""
        self._refused.pop(key, None)
        self._counted_s.pop(key, None)
        self._not_before_s.pop(key, None)
        self._planned_s.pop(key, None)
        self._refusals.pop(key, None)
        self._metrics.forget(key.namespace, key.name)
        if (planning := self._planning.get(key)) is not None:
            planning.cancel()

    async def _do(self, key: Key, looked: Looked, action: Action) -> bool:
        """Whether it could be done."""
        of = logs.about(looked.seen)
        try:
            match action:
                case StartPlanning():
                    self._start_planning(key, looked, action)
                case Steer():
                    begin_s = time.monotonic()
                    await self._threaded(self._actor.steer, looked, action)
                    self._metrics.steered(time.monotonic() - begin_s)
                    log.info("steered", extra={"about": of, "pod": action.pod})
                case _:
                    await self._act(looked.resource, action)
        except talk.Refused as error:  # it was started with another profile or less memory
            log.warning("a gateway starts anew", extra={"about": of, "problem": str(error)})
            assert isinstance(action, Steer)
            with contextlib.suppress(ApiRefused):  # it is tried again
                await self._threaded(self._actor.restart_gateway, looked, action)
            return False
        except talk.Silent as error:
            log.warning(
                "a gateway does not take the plan", extra={"about": of, "problem": str(error)}
            )
            return False
        except ApiRefused as error:
            self._note_refused(key, error)
            problem = {"action": type(action).__name__, "problem": str(error)}
            log.warning("refused", extra={"about": of, "status": error.status, **problem})
            return False
        self._metrics.acted(type(action).__name__)
        return True

    async def _act(self, resource: Mapping[str, Any], action: Action) -> None:
        try:
            await self._threaded(self._actor.do, resource, action, now_s=time.time())
        except ApiRefused as error:
            is_outrun = isinstance(action, Annotate | LabelPod) and error.status in (404, 409)
            if not isinstance(action, Emit) and not is_outrun:
                raise
            what = "a word is lost" if isinstance(action, Emit) else "someone was quicker"
            log.warning(what, extra={"action": type(action).__name__, "problem": str(error)})

    def _note_refused(self, key: Key, error: ApiRefused) -> None:
        if error.status in (403, 409, 422):
            self._refused[key] = str(error)

    def _start_planning(self, key: Key, looked: Looked, action: StartPlanning) -> None:
        if key in self._planning or looked.question is None:
            return
        if time.monotonic() < self._not_before_s.get(key, 0.0):
            return
        details = {"inputs": action.inputs, "why": action.why}
        log.info("planning", extra={"about": logs.about(looked.seen), **details})
        planning = self._plan(key, looked, looked.question, action.why)
        self._planning[key] = asyncio.get_running_loop().create_task(planning)

    async def _plan(self, key: Key, looked: Looked, question: Question, why: str) -> None:
        """One search, and its answer on file or for the next look."""
        begin_s = time.monotonic()
        self._not_before_s[key] = begin_s + AGAIN_S  # whatever ends this short of an answer on file
        try:
            answer = await self._planner(question)
            self._metrics.planned(answer.reason or "Planned", time.monotonic() - begin_s)
            if not self.may_act():
                return
            if answer.plan:
                image = looked.seen.runner_image
                revision = await self._threaded(
                    self._actor.keep_plan, looked, question, answer, image=image, why=why
                )
                line = decision_log.planned(
                    looked.seen, self._images, answer, revision=revision, why=why
                )
            else:
                self._refusals[key] = Refusal(
                    inputs=answer.inputs,
                    reason=answer.reason,
                    message=answer.message,
                    time=rfc3339(time.time()),
                )
                line = decision_log.refused(answer, why=why)
            self._not_before_s.pop(key, None)
            _tell(looked.seen, line)
        except ApiRefused as error:
            self._note_refused(key, error)
            of = logs.about(looked.seen)
            log.warning("a plan is not on file", extra={"about": of, "problem": str(error)})
        finally:
            del self._planning[key]
            self._planned_s[key] = time.monotonic()
            self.named(key)

    async def _profile(self, key: Key) -> float | None:
        found = await self._threaded(
            look_at_profile, self._looker.api, self._images, key.namespace, key.name
        )
        if found is None:
            self._forget(key)
            return None
        state, token = found
        state = replace(state, refused=self._refused.pop(key, state.refused))
        decision = decide_profile(state, self._images)
        for action in decision.actions:
            if not self.may_act():
                return SOON_S
            try:
                if isinstance(action, Take):
                    pod = next(each for each in state.pods if each.name == action.pod)
                    await self._threaded(talk.taken, pod.ip, token)
                else:
                    await self._act(state.resource, action)
            except (ApiRefused, talk.Silent) as error:
                problem = {"action": type(action).__name__, "problem": str(error)}
                log.warning("refused", extra={"about": asdict(key), **problem})
                if isinstance(error, ApiRefused):
                    self._note_refused(key, error)
                return AGAIN_S if key in self._refused else SOON_S
            self._metrics.acted(type(action).__name__)
        if decision.status is not None:
            await self._threaded(self._actor.keep_status, state.resource, decision.status)
        return decision.look_again_s

    async def _threaded(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call that blocks."""
        running = asyncio.get_running_loop()
        return await running.run_in_executor(
            self._threads, functools.partial(call, *args, **kwargs)
        )


def _tell(seen: Seen, line: decision_log.Line) -> None:
    """A line of the decision log."""
    decisions.info("decision", extra={"about": logs.about(seen), **line})


def _ready_reason(status: Mapping[str, Any]) -> str:
    ready = (c["reason"] for c in status.get("conditions", ()) if c["type"] == "Ready")
    return str(next(ready, "Pending"))


def keys_of(namespace: str, labels: Mapping[str, str]) -> list[Key]:
    """What a child's change concerns."""
    instance = labels.get(names.INSTANCE_LABEL)
    if instance is None or labels.get(names.NAME_LABEL) != "exegpt":
        return []
    kind: Kind = "profile" if labels.get(names.COMPONENT_LABEL) == "profile" else "deployment"
    return [Key(kind, namespace, instance)]
