"""Conditions of a resource, as Kubernetes tools read them.

`lastTransitionTime` moves only when `status` does, so that looking again changes nothing; messages are cut to what the
schema holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exegpt_operator.reasons import Reason

Status = Literal["True", "False", "Unknown"]
MESSAGE_MAX = 2048
NEVER = "1970-01-01T00:00:00Z"  # of the schema's default status, which must say some time


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; its message says the cause, the object it lies with, and what to do."""

    type: str
    status: Status
    reason: Reason
    message: str = ""


def true(kind: str, reason: Reason, message: str = "") -> Condition:
    """`kind` holds."""
    return Condition(kind, "True", reason, message or reason.meaning)


def false(kind: str, reason: Reason, message: str = "") -> Condition:
    """`kind` does not hold; the remedy follows the cause."""
    return Condition(kind, "False", reason, _with_remedy(reason, message))


def unknown(kind: str, reason: Reason, message: str = "") -> Condition:
    """Nobody can say whether `kind` holds."""
    return Condition(kind, "Unknown", reason, _with_remedy(reason, message))


def _with_remedy(reason: Reason, message: str) -> str:
    text = " ".join((message or reason.meaning).split())  # one line, whoever said it
    return f"{text} {reason.remedy}" if reason.remedy and reason.remedy not in text else text


def merged(
    before: Sequence[Mapping[str, Any]],
    now: Iterable[Condition],
    *,
    generation: int,
    time: str,
) -> list[dict[str, Any]]:
    """`now` in the wire's form, each with the time of its last change of status; `time` is RFC 3339."""
    known = {each["type"]: each for each in before}
    return [
        {
            "type": each.type,
            "status": each.status,
            "reason": str(each.reason),
            "message": each.message[:MESSAGE_MAX],
            "observedGeneration": generation,
            "lastTransitionTime": _since(known.get(each.type), each, time),
        }
        for each in now
    ]


def _since(before: Mapping[str, Any] | None, now: Condition, time: str) -> str:
    if before is not None and before["status"] == now.status:
        since = str(before["lastTransitionTime"])
        return time if since == NEVER else since
    return time


def changes(before: Sequence[Mapping[str, Any]], now: Iterable[Condition]) -> list[Condition]:
    """Those whose status or reason is another than before: each is an event."""
    known = {each["type"]: (each["status"], each["reason"]) for each in before}
    return [each for each in now if known.get(each.type) != (each.status, str(each.reason))]
