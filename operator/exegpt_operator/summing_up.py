"""Ready, and what kstatus reads, from the conditions of the stages."""

from __future__ import annotations

from collections.abc import Mapping

from exegpt_operator.conditions import Condition, true, unknown
from exegpt_operator.reasons import Reason

STAGES = (
    "Validated", "Profiled", "Scheduled", "WorkersReady", "EndpointReady", "BoundMet", "Drifted",
)  # fmt: skip
NEEDED = STAGES[:5]  # for Ready
HELD = frozenset({Reason.SUSPENDED, Reason.DRY_RUN, Reason.AWAITING_APPROVAL})
ACTIONABLE = frozenset(
    {
        Reason.INVALID_SPEC, Reason.MISSING_SECRET, Reason.MISSING_CONFIG_MAP, Reason.MISSING_CLAIM,
        Reason.MALFORMED_ANNOTATION, Reason.PROFILE_FAILED, Reason.INCOMPLETE_PROFILE,
        Reason.INFEASIBLE, Reason.MODEL_TOO_LARGE, Reason.PLAN_FAILED, Reason.INSUFFICIENT_GPUS, Reason.UNSCHEDULABLE,
        Reason.IMAGE_PULL_ERROR, Reason.CRASH_LOOP, Reason.OOM_KILLED, Reason.FORBIDDEN, 
        Reason.TRANSFER_FAILED, Reason.SELF_TEST_FAILED, Reason.BROKEN,
    }
)  # fmt: skip


def event_type(condition: Condition) -> str:
    """A Warning asks someone to act; what passes by itself, or was asked for, is Normal."""
    asks = condition.status != "True" and condition.reason in ACTIONABLE
    return "Warning" if asks else "Normal"


def is_news(condition: Condition) -> bool:
    """Whether its change is worth an event: once, and not that something has yet to come."""
    if condition.reason is Reason.PENDING or condition.type in ("Reconciling", "Stalled"):
        return False
    return condition.type != "Ready" or condition.status == "True"  # else another one has said it


def summed_up(said: Mapping[str, Condition]) -> list[Condition]:
    """Every condition of a deployment, Ready first; stages that were not reached are unknown."""
    stages = [
        said.get(name) or unknown(name, Reason.PENDING, "Comes after the conditions before it.")
        for name in STAGES
    ]
    failing = next((each for each in stages[: len(NEEDED)] if each.status != "True"), None)
    if failing is None:
        return [
            true("Ready", Reason.SERVING),
            *stages,
            _settled("Reconciling"),
            _settled("Stalled"),
        ]
    ready = Condition("Ready", "False", failing.reason, failing.message)
    is_stalled = failing.reason in ACTIONABLE
    reconciling, stalled = _settled("Reconciling"), _settled("Stalled")
    if is_stalled:
        stalled = Condition("Stalled", "True", failing.reason, failing.message)
    elif failing.reason not in HELD:
        reconciling = Condition("Reconciling", "True", Reason.RECONCILING, failing.message)
    return [ready, *stages, reconciling, stalled]


def _settled(kind: str) -> Condition:
    return Condition(kind, "False", Reason.SETTLED, Reason.SETTLED.meaning)
