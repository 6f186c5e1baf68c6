"""What measured answers say of the bound."""

from __future__ import annotations

from collections.abc import Collection

from exegpt_operator.conditions import Condition, false, true, unknown
from exegpt_operator.reasons import Reason
from exegpt_operator.seen import ServingSeen

FEWEST_ANSWERS = 100  # before measured answers say anything about a bound kept by 99 of 100
PROMISED_SHARE = 0.98  # of them, at least


def counted(serving: Collection[ServingSeen]) -> tuple[int, int]:
    """(of the latest answers of the bound's length, those that kept it; all of them), of all gateways."""
    return sum(each.num_kept for each in serving), sum(each.num_s99 for each in serving)


def bound_met(serving: Collection[ServingSeen]) -> Condition:
    """BoundMet, by the latest answers of all gateways."""
    kept, answers = counted(serving)
    words = f"{kept} of the latest {answers} answers of the bound's length kept it."
    if answers < FEWEST_ANSWERS:
        return unknown("BoundMet", Reason.NO_OBSERVATIONS, words)
    if kept >= PROMISED_SHARE * answers:
        return true("BoundMet", Reason.KEPT, words)
    return false("BoundMet", Reason.BROKEN, words)
