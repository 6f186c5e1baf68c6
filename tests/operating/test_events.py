"""Events: at most one a minute of a reason and a resource, and a Warning only for who can act."""

from __future__ import annotations

from collections import Counter

import pytest

from exegpt_operator.act import Actor
from exegpt_operator.actions import Emit
from exegpt_operator.api import Api
from exegpt_operator.conditions import Condition
from exegpt_operator.reasons import Reason
from exegpt_operator.summing_up import event_type
from operator_api import serving
from operator_world import World, resource

SECONDS = 180


def test_a_condition_that_flaps_each_second_fills_no_list() -> None:
    """The whole way: a gateway that answers every other second, decided on and written to an API server."""
    world = World()
    world.settle()
    with serving() as server:
        actor = Actor(Api(server.client()))
        flaps = 0
        for _ in range(SECONDS):
            world.gateway_answers = not world.gateway_answers
            before = len(world.events)
            world.turn()
            for event in world.events[before:]:
                actor.do(resource(), event, now_s=world.now_s)
                flaps += 1
        events = [each for path, each in server.objects.items() if "/events/" in path]
    assert flaps >= SECONDS  # what there would be otherwise
    counts = Counter((each["reason"], each["firstTimestamp"][:16]) for each in events)
    assert set(counts.values()) == {1}
    assert {reason for reason, _ in counts} >= {"NotReached", "Ready"}
    assert len({minute for _, minute in counts}) <= SECONDS // 60 + 1


def test_another_reason_another_resource_or_another_minute_is_another_event() -> None:
    other = resource()
    other["metadata"] |= {"name": "other", "uid": "u2"}
    with serving() as server:
        actor = Actor(Api(server.client()))
        for of, reason, now_s in (
            (resource(), "Broken", 60.0),
            (resource(), "Broken", 119.9),
            (resource(), "Kept", 60.0),
            (other, "Broken", 60.0),
            (resource(), "Broken", 120.0),
        ):
            actor.do(of, Emit("Normal", reason, "Words."), now_s=now_s)
        assert len(server.objects) == 4


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        (Condition("WorkersReady", "False", Reason.OOM_KILLED), "Warning"),
        (Condition("BoundMet", "False", Reason.BROKEN), "Warning"),
        (Condition("Ready", "Unknown", Reason.UNSCHEDULABLE), "Warning"),
        (Condition("Ready", "False", Reason.STARTING), "Normal"),
        (Condition("Ready", "False", Reason.SUSPENDED), "Normal"),
        (Condition("Drifted", "True", Reason.DRIFTED), "Normal"),
        (Condition("Ready", "True", Reason.SERVING), "Normal"),
    ],
)
def test_a_warning_asks_someone_to_act(condition: Condition, kind: str) -> None:
    assert event_type(condition) == kind
