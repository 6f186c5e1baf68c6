"""What the landing holds is bounded; what is taken, forgotten or of another epoch is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from exegpt_planner.errors import InvalidSpec
from exegpt_runner.kv_transfer.arrived import Limits
from exegpt_runner.kv_transfer.ids import Ended
from kv_ends import (
    EPOCH,
    Pushing,
    WatchedLanding,
    landed,
    layers_of,
    pushing,
    receiving,
    sending,
)

TRANSFER_BYTES = 4 * 2 * 2 * 36 * 4 * 4


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[WatchedLanding, Pushing]]:
    """A landing with room for one usual transfer, and a sender."""
    what = receiving(capacity_bytes=TRANSFER_BYTES)
    with landed(tmp_path, what) as (landing, address), pushing(address) as pusher:
        yield landing, pusher


def test_a_push_waits_for_room_and_then_goes_on(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    assert pusher.push(1).reason == ""
    landing.await_stream()
    outgoing = pusher.open(2)
    landing.await_stream()
    for index, layer in layers_of(sending(), seed=2).items():
        outgoing.layer(index, layer)
    assert landing.held_bytes == TRANSFER_BYTES
    landing.take(1)
    assert pusher.handed().reason == ""
    assert landing.held_bytes == TRANSFER_BYTES
    assert torch.equal(landing.take(2).layer(1), layers_of(sending(), seed=2)[1])


def test_what_can_never_fit_is_refused(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    handed = pusher.push(1, tokens=(36, 1))
    assert (handed.reason, landing.held_bytes) == ("resource_exhausted", 0)
    assert f"holds at most {TRANSFER_BYTES}." in handed.problem
    assert pusher.push(2).reason == ""


def test_a_wait_for_room_ends_at_the_deadline(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    assert pusher.push(1).reason == ""
    landing.await_end()
    assert pusher.push(2, deadline_s=0.5).reason == "deadline_exceeded"
    landing.await_end()
    assert landing.take(1).queries == (100, 101, 102)
    assert landing.held_bytes == 0
    assert pusher.push(3).reason == ""


def test_halves_of_two_transfers_never_wait_for_each_other(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    landing, pusher = ends
    first, second = sending(num_layers=2), sending(first_layer=2, num_layers=2)
    assert pusher.push(1, first).reason == ""
    landing.await_stream()
    assert landing.held_bytes == TRANSFER_BYTES  # all of it, though half is here
    waits = pusher.open(2, first)  # it waits
    landing.await_stream()
    assert pusher.push(1, second).reason == ""
    landing.take(1)
    for index, layer in layers_of(first).items():
        waits.layer(index, layer)
    assert pusher.handed().reason == ""
    assert pusher.push(2, second).reason == ""
    assert landing.take(2).tokens == (5, 1, 30)


def test_a_layer_that_has_come_is_refused(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    assert pusher.push(1, sending(num_layers=2)).reason == ""
    handed = pusher.push(1, sending(first_layer=1, num_layers=3))
    assert handed.reason == "already_exists"
    assert "[1]" in handed.problem
    assert pusher.push(1, sending(first_layer=2, num_layers=2)).reason == ""
    assert landing.arrived() == [1]


def test_other_queries_in_a_part_of_a_transfer_are_refused(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    _, pusher = ends
    assert pusher.push(1, sending(num_layers=2)).reason == ""
    second = sending(first_layer=2, num_layers=2)
    assert pusher.push(1, second, tokens=(5, 2, 29)).reason == "failed_precondition"


def test_what_is_forgotten_while_it_comes_is_cancelled(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    landing, pusher = ends
    pusher.open(1)
    landing.await_stream()
    landing.await_room_taken()
    landing.forget([1])
    assert pusher.handed().reason == "cancelled"
    landing.await_end()
    assert landing.held_bytes == 0
    assert pusher.push(1).reason == "already_exists"
    assert pusher.push(2).reason == ""


def test_what_is_forgotten_before_it_comes_is_refused(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    landing, pusher = ends
    landing.forget([1, 2])
    assert pusher.push(1).reason == "already_exists"
    assert pusher.push(3).reason == ""
    landing.forget([3])
    assert (landing.held_bytes, landing.arrived()) == (0, [])


def test_a_new_epoch_drops_everything(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    pusher.open(1)
    landing.await_stream()
    landing.await_room_taken()
    landing.serve(receiving(epoch=EPOCH + 1))
    assert pusher.handed().reason == "cancelled"
    landing.await_end()
    assert landing.held_bytes == 0
    assert pusher.push(2).reason == "failed_precondition"
    assert pusher.push(1, epoch=EPOCH + 1).reason == ""  # ids begin anew
    assert landing.arrived() == [1]


def test_a_push_that_waits_when_the_epoch_ends_is_refused(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    landing, pusher = ends
    assert pusher.push(1).reason == ""
    landing.await_stream()
    pusher.open(2)
    landing.await_stream()
    landing.serve(receiving(epoch=EPOCH + 1))
    handed = pusher.handed()
    assert (handed.reason, "epoch" in handed.problem) == ("failed_precondition", True)
    assert landing.held_bytes == 0


def test_a_closed_landing_refuses(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    assert pusher.push(1).reason == ""
    landing.close()
    assert (landing.held_bytes, landing.arrived()) == (0, [])
    assert pusher.push(2).reason == "unavailable"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(queries=2), "3 queries"),
        (Limits(header_bytes=40), "a header of"),
        (Limits(streams=0), "streams are open"),
    ],
)
def test_limits_hold_whatever_is_configured(limits: Limits, words: str, tmp_path: Path) -> None:
    with landed(tmp_path, limits=limits) as (landing, address), pushing(address) as pusher:
        handed = pusher.push(1)
        assert (handed.reason, landing.held_bytes) == ("resource_exhausted", 0)
        assert words in handed.problem


def test_only_whole_transfers_can_be_taken(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    with pytest.raises(InvalidSpec, match="transfer 1 is not here"):
        landing.take(1)
    assert pusher.push(1, sending(num_layers=2)).reason == ""
    with pytest.raises(InvalidSpec, match="transfer 1 has not come in full"):
        landing.take(1)


def test_an_abandoned_push_leaves_nothing(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    outgoing = pusher.open(1)
    landing.await_stream()
    outgoing.abandon("the step was dropped")
    outgoing.abandon()
    handed = pusher.handed()
    assert (handed.reason, handed.problem) == ("cancelled", "the step was dropped")
    landing.await_end()
    assert landing.held_bytes == 0
    assert pusher.push(2).reason == ""


def test_a_step_that_ends_without_all_layers_abandons_its_push(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    _, pusher = ends
    outgoing = pusher.open(1)
    outgoing.layer(0, layers_of(sending())[0])
    outgoing.finish()
    handed = pusher.handed()
    assert (handed.reason, "1 of 4 layers" in handed.problem) == ("cancelled", True)


def test_ended_ids_take_bounded_memory() -> None:
    ended = Ended(kept=3)
    ended.add([5, 1, 9])
    assert [each for each in range(12) if each in ended] == [1, 5, 9]
    ended.add([7, 8])  # 1 and 5 are no longer kept one by one: all up to 5 have ended
    assert [each for each in range(12) if each in ended] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    ended.add(range(1000, 3000))
    assert 2996 in ended
    assert 3000 not in ended
