"""The plan in force, and the one way to change it: an edited manifest and a call come here alike, one at a time.

A change never pauses anything: the conductor asks for each worker's next step as before, and by then the policy is
another. What a plan promises is predicted anew for the profile and the workload of this gateway, so that what is
measured is held against the schedule that runs, not against what was true elsewhere. Refuses what the workers, as they
are configured, could not carry out; then the plan in force goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Promise
from exegpt_gateway.policies import parts
from exegpt_planner.errors import ExeGPTError, InvalidSpec, Unavailable
from exegpt_planner.manifest import WorkloadSpec
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import Schedule, beyond_workers

BY_HAND = "the schedule was set while serving: it is not what the planner chose"

Reason = Literal["unfit", "stale", "no_room", "beyond_bound"]


class Refused(ExeGPTError):
    """The plan is right in itself, but not for this gateway, or not now."""

    exit_code = 2

    def __init__(self, reason: Reason, problem: str) -> None:
        self.reason = reason
        super().__init__(problem)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreseen:
    """A plan with the prediction of its own schedule, and what measurements are held against."""

    plan: Plan
    promise: Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLengths:
    """A plan comes with the lengths it was made for; `workload` as in a manifest, None: the prior."""

    workload: WorkloadSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change has brought."""

    revision: int
    after_iterations: int  # of all workers, that had come by then
    plan: Plan
    previous: Plan


class Steering:
    """What a conductor works by; all methods belong to its event loop."""

    def __init__(
        self,
        conductor: Conductor,
        plan: Plan,
        *,
        model_fingerprint: str,
        foresee: Callable[[Plan, OtherLengths | None], Foreseen],
        takes_lengths: bool = False,
        plan_id: str = "",
    ) -> None:
        """`plan` is the one the workers were configured for; `foresee` may take long, and runs in a thread.

        It is given the lengths that the plan comes with, or that came last; None: those of the start. Unless
        `takes_lengths`, plans for others are refused.
        """
        self.plan = plan
        self.plan_id = plan_id
        self.model_fingerprint = model_fingerprint
        self.kv_tokens = plan.kv_tokens_capacity  # of each worker
        self.conductor = conductor
        self._foresee = foresee
        self._takes_lengths = takes_lengths
        self._lengths: OtherLengths | None = None
        self._changing = asyncio.Lock()

    @property
    def revision(self) -> int:
        """Of the schedule in force: 1 at the start, one more with each change."""
        return self.conductor.revision

    @property
    def num_workers(self) -> int:
        """All of them, lost ones included."""
        return self.conductor.num_workers

    async def take(
        self,
        change: Plan | Schedule,
        *,
        if_revision: int | None = None,
        beyond_bound: bool = False,
        lengths: OtherLengths | None = None,
        plan_id: str = "",
    ) -> Change:
        """Works by this plan, or by this schedule in the plan in force; raises `Refused` or what foreseeing raises."""
        async with self._changing:
            self._check_time(if_revision)
            wanted = change if isinstance(change, Plan) else by_hand(self.plan, change)
            self._check_fit(wanted, has_lengths=lengths is not None)
            lengths = lengths if self._takes_lengths and lengths is not None else self._lengths
            foreseen = await asyncio.to_thread(self._foresee, wanted, lengths)
            self._check_promise(foreseen.plan, beyond_bound=beyond_bound)
            change_made = self._put(foreseen)
            self._lengths, self.plan_id = lengths, plan_id
            return change_made

    async def replan(self, make: Callable[[], Foreseen]) -> Change:
        """Works by what `make` plans, in a thread, for these workers."""
        async with self._changing:
            return self._put(await asyncio.to_thread(make))

    def _put(self, foreseen: Foreseen) -> Change:
        self._check_time(None)  # foreseeing took its time
        self.conductor.reschedule(foreseen.plan.schedule, foreseen.promise)
        previous, self.plan = self.plan, foreseen.plan
        return Change(
            revision=self.revision,
            after_iterations=self.conductor.num_iterations,
            plan=self.plan,
            previous=previous,
        )

    def _check_time(self, if_revision: int | None) -> None:
        if self.conductor.is_draining:
            raise Unavailable("the gateway drains or has ended. Start another one by the new plan.")
        if if_revision is not None and if_revision != self.revision:
            raise Refused(
                "stale",
                f"revision {self.revision} is in force, not {if_revision}: another change came first. "
                "Look at the plan in force and decide again.",
            )

    def _check_fit(self, plan: Plan, *, has_lengths: bool) -> None:
        if (beyond := beyond_workers(plan.schedule)) is not None:
            raise Refused(
                "unfit",
                f"workers do not run {beyond} yet: each holds the whole model on a device of its own. "
                "Take a schedule without.",
            )
        try:
            parts(plan.schedule, self.num_workers)
        except InvalidSpec as error:
            raise Refused("unfit", str(error)) from None
        given, own = plan.certificate.inputs, self.plan.certificate.inputs
        if given.table != own.table:
            raise Refused(
                "unfit",
                f"the plan rests on profile {given.table[:12]}, this gateway on {own.table[:12]}: another model, "
                "machine or measurement. Plan on the profile this gateway was started with.",
            )
        if given.workload != own.workload and not (has_lengths and self._takes_lengths):
            raise Refused(
                "unfit",
                "the plan is for other lengths than this gateway's. Edit the manifest it serves instead: "
                "it is followed.",
            )
        if plan.kv_tokens_capacity > self.kv_tokens:
            raise Refused(
                "no_room",
                f"the plan counts on {plan.kv_tokens_capacity} KV tokens a worker, each holds {self.kv_tokens}. "
                "Plan with less memory, or restart with more.",
            )

    def _check_promise(self, plan: Plan, *, beyond_bound: bool) -> None:
        expected, bound_s = plan.prediction, plan.bound.seconds
        if expected.kv_tokens_reserved > self.kv_tokens:
            raise Refused(
                "no_room",
                f"the schedule needs {expected.kv_tokens_reserved:.0f} KV tokens a worker, each holds "
                f"{self.kv_tokens}. Take a smaller batch or pool.",
            )
        if expected.promised_s > bound_s and not beyond_bound:
            raise Refused(
                "beyond_bound",
                f"the schedule promises {expected.promised_s:.3g} s and the bound is {bound_s:g} s. Take smaller "
                "batches, or say that it may be beyond the bound.",
            )


def by_hand(plan: Plan, schedule: Schedule) -> Plan:
    """`plan` with another schedule, and a word about it; its prediction is still the old one's."""
    warnings = (*(each for each in plan.warnings if each != BY_HAND), BY_HAND)
    return plan.model_copy(update={"schedule": schedule, "warnings": warnings})
