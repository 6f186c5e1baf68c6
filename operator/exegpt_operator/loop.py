"""Look, decide, act, for one key at a time: the only place where the pure and the impure parts meet."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, replace
from typing import Any, Literal

from exegpt_operator import names, talk
from exegpt_operator.act import Actor
from exegpt_operator.actions import Action, StartPlanning, Steer
from exegpt_operator.api import ApiRefused
from exegpt_operator.decide import SOON_S, decide
from exegpt_operator.decide_profile import Take, decide_profile
from exegpt_operator.look import Looked, Looker
from exegpt_operator.look_profile import look_at_profile
from exegpt_operator.manifests.images import Images
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.planning import Question, plan, plan_id
from exegpt_operator.reasons import Reason
from exegpt_operator.seen import Refusal
from exegpt_operator.times import rfc3339

log = logging.getLogger(__name__)
decisions = logging.getLogger(
    "exegpt_operator.decisions"
)  # JSON lines: what was decided, and from what

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
        planner: Executor,
        metrics: OperatorMetrics,
    ) -> None:
        self._looker, self._actor, self._images = looker, actor, images
        self._planner, self._metrics = planner, metrics
        self._planning: dict[Key, asyncio.Task[None]] = {}
        self._refusals: dict[
            Key, Refusal
        ] = {}  # the planner's, until the next look puts them into the status
        self._refused: dict[Key, str] = {}  # what the API server said to the last write
        self.named: Callable[[Key], None] = lambda _: (
            None
        )  # has a key looked at; the queue's owner sets it

    async def look(self, key: Key) -> float | None:
        """One turn of a key; the seconds until the next, None if it is gone."""
        if key.kind == "profile":
            return await self._profile(key)
        return await self._deployment(key)

    async def _deployment(self, key: Key) -> float | None:
        looked = await asyncio.to_thread(self._looker.deployment, key.namespace, key.name)
        if looked is None:
            self._refused.pop(key, None)
            self._refusals.pop(key, None)
            return None
        seen = replace(
            looked.seen,
            refused=self._refused.pop(key, ""),
            refusal=self._refusals.pop(key, looked.seen.refusal),
        )
        decision = decide(seen, self._images)
        self._metrics.decided(key.namespace, key.name, len(decision.actions))
        again_s = decision.look_again_s
        for action in decision.actions:
            if not await self._do(key, looked, action):
                again_s = SOON_S
        if decision.status is not None:
            await asyncio.to_thread(self._actor.keep_status, looked.resource, decision.status)
        return again_s

    async def _do(self, key: Key, looked: Looked, action: Action) -> bool:
        """Whether it could be done."""
        try:
            match action:
                case StartPlanning():
                    self._start_planning(key, looked, action)
                case Steer():
                    begin_s = time.monotonic()
                    await asyncio.to_thread(self._actor.steer, looked, action)
                    self._tell(
                        key, "steered", plan=action.plan_id, seconds=time.monotonic() - begin_s
                    )
                case _:
                    await asyncio.to_thread(
                        self._actor.do, looked.resource, action, now_s=time.time()
                    )
        except talk.Refused as error:  # it was started with another profile or less memory
            log.warning("a gateway starts anew", extra={"key": key, "problem": str(error)})
            assert isinstance(action, Steer)
            await asyncio.to_thread(self._actor.restart_gateway, looked, action)
            return False
        except talk.Silent as error:
            log.warning(
                "a gateway does not take the plan", extra={"key": key, "problem": str(error)}
            )
            return False
        except ApiRefused as error:
            if error.status in (403, 409, 422):
                self._refused[key] = str(error)
            log.warning(
                "refused", extra={"key": key, "status": error.status, "problem": str(error)}
            )
            return False
        return True

    def _start_planning(self, key: Key, looked: Looked, action: StartPlanning) -> None:
        if key in self._planning or looked.question is None:
            return
        self._tell(key, "planning", inputs=action.inputs, why=action.why)
        planning = self._plan(key, looked, looked.question, action.why)
        self._planning[key] = asyncio.get_running_loop().create_task(planning)

    async def _plan(self, key: Key, looked: Looked, question: Question, why: str) -> None:
        """One search, and its answer on file or for the next look."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._planner, plan, question)
            answer = await running
            if answer.plan:
                image = looked.seen.runner_image
                await asyncio.to_thread(
                    self._actor.keep_plan, looked, question, answer, image=image, why=why
                )
                self._tell(key, "planned", inputs=answer.inputs, plan=plan_id(answer.plan))
            else:
                self._tell(key, "refused", inputs=answer.inputs, reason=answer.reason)
                self._refusals[key] = Refusal(
                    inputs=answer.inputs, reason=answer.reason, message=answer.message
                )
        except ApiRefused as error:
            self._refused[key] = str(error)
        except BrokenExecutor as error:
            self._refusals[key] = Refusal(
                inputs=question.inputs, reason=str(Reason.PLAN_FAILED), message=f"{error}"
            )
        finally:
            del self._planning[key]
            self.named(key)

    async def _profile(self, key: Key) -> float | None:
        found = await asyncio.to_thread(
            look_at_profile, self._looker.api, self._images, key.namespace, key.name
        )
        if found is None:
            return None
        state, token = found
        decision = decide_profile(state, self._images)
        for action in decision.actions:
            try:
                if isinstance(action, Take):
                    pod = next(each for each in state.pods if each.name == action.pod)
                    await asyncio.to_thread(talk.taken, pod.ip, token)
                else:
                    await asyncio.to_thread(
                        self._actor.do, state.resource, action, now_s=time.time()
                    )
            except (ApiRefused, talk.Silent) as error:
                log.warning("refused", extra={"key": key, "problem": str(error)})
                return SOON_S
        if decision.status is not None:
            await asyncio.to_thread(self._actor.keep_status, state.resource, decision.status)
        return decision.look_again_s

    def _tell(self, key: Key, what: str, **details: Any) -> None:
        """A line of the decision log."""
        line: Mapping[str, Any] = {
            "decision": uuid.uuid4().hex[:12],
            "time": rfc3339(time.time()),
            "namespace": key.namespace,
            "name": key.name,
            "what": what,
            **details,
        }
        decisions.info(json.dumps(line))


def keys_of(namespace: str, labels: Mapping[str, str]) -> list[Key]:
    """What a child's change concerns."""
    instance = labels.get(names.INSTANCE_LABEL)
    if instance is None or labels.get(names.NAME_LABEL) != "exegpt":
        return []
    kind: Kind = "profile" if labels.get(names.COMPONENT_LABEL) == "profile" else "deployment"
    return [Key(kind, namespace, instance)]
