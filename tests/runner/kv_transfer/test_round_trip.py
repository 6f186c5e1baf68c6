"""KV arrives as it was, whatever its type, lengths, size and the layers that each end computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from exegpt_runner.kv_transfer.receiver import Landing
from kv_ends import (
    TOKENS,
    Pushing,
    WatchedLanding,
    landed,
    layers_of,
    pushing,
    receiving,
    relay,
    sending,
)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[WatchedLanding, Pushing]]:
    with landed(tmp_path) as (landing, address), pushing(address) as pusher:
        yield landing, pusher


def equal(landing: Landing, transfer: int) -> bool:
    """Whether `transfer` is what a pusher of all layers sends."""
    arrived = landing.take(transfer)
    sent = layers_of(sending(), TOKENS)
    assert (arrived.queries, arrived.tokens) == ((100, 101, 102), TOKENS)
    return all(torch.equal(arrived.layer(index), layer) for index, layer in sent.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_type_arrives_bit_for_bit(
    dtype: torch.dtype, ends: tuple[WatchedLanding, Pushing]
) -> None:
    landing, pusher = ends
    landing.serve(receiving(dtype=dtype))
    kind = sending(dtype=dtype)
    handed = pusher.push(1, kind)
    assert (handed.reason, handed.transfer) == ("", 1)
    assert handed.num_bytes == 4 * 2 * 2 * 36 * 4 * dtype.itemsize == landing.held_bytes
    assert handed.seconds >= handed.exposed_s > 0
    assert landing.arrived() == [1]
    assert landing.arrived() == []
    arrived = landing.take(1)
    for index, sent in layers_of(kind).items():
        assert arrived.layer(index).dtype == dtype
        assert torch.equal(arrived.layer(index), sent)
    assert landing.held_bytes == 0


def test_a_layer_of_many_messages_arrives(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    tokens = (70_001, 2)  # 9 MB a layer
    landing.serve(receiving(num_layers=2, capacity_bytes=1 << 25))
    kind = sending(num_layers=2)
    assert pusher.push(1, kind, tokens).reason == ""
    arrived = landing.take(1)
    for index, sent in layers_of(kind, tokens).items():
        assert torch.equal(arrived.layer(index), sent)


def test_any_cut_of_the_layers_into_messages_arrives(tmp_path: Path) -> None:
    def cut(messages: Iterator[bytes]) -> Iterator[bytes]:
        *layers, trailer = messages
        yield layers[0]  # the header
        for size, layer in enumerate(layers[1:], start=1000):
            for start in range(0, len(layer), size):
                yield layer[start : start + size]
        yield trailer

    with (
        landed(tmp_path) as (landing, address),
        relay(tmp_path, address, cut) as hop,
        pushing(hop) as pusher,
    ):
        assert pusher.push(1).reason == ""
        assert equal(landing, 1)


def test_a_probe_is_checked_and_dropped(ends: tuple[WatchedLanding, Pushing]) -> None:
    landing, pusher = ends
    landing.serve(receiving(capacity_bytes=0))
    for transfer, size in enumerate((0, 1, 9_000_000)):
        pusher.open(transfer, tokens=(), probe_bytes=size)
        handed = pusher.handed()
        assert (handed.reason, handed.num_bytes) == ("", size)
    assert landing.held_bytes == 0
    assert landing.arrived() == []


def test_only_layers_that_the_receiver_computes_are_sent(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    landing, pusher = ends
    landing.serve(receiving(first_layer=2, num_layers=3))
    kind = sending(num_layers=6)
    handed = pusher.push(1, kind, first_layer=2, num_layers=3)
    assert (handed.reason, handed.num_bytes) == ("", landing.held_bytes)
    arrived = landing.take(1)
    assert sorted(arrived.layers) == [2, 3, 4]
    for index in arrived.layers:
        assert torch.equal(arrived.layer(index), layers_of(kind)[index])


def test_a_transfer_is_whole_when_every_stage_has_sent_its_layers(
    ends: tuple[WatchedLanding, Pushing],
) -> None:
    landing, pusher = ends
    first, second = sending(num_layers=1), sending(first_layer=1, num_layers=5)
    assert pusher.push(1, second, num_layers=4).reason == ""
    assert landing.arrived() == []
    assert pusher.push(1, first, num_layers=4).reason == ""
    assert landing.arrived() == [1]
    arrived = landing.take(1)
    assert torch.equal(arrived.layer(0), layers_of(first)[0])
    for index in (1, 2, 3):
        assert torch.equal(arrived.layer(index), layers_of(second)[index])


def test_layers_are_sent_while_later_ones_are_computed(tmp_path: Path) -> None:
    passed: list[int] = []

    def count(messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            passed.append(len(message))
            seen.release()
            yield message

    seen = threading.Semaphore(0)
    with (
        landed(tmp_path) as (landing, address),
        relay(tmp_path, address, count) as hop,
        pushing(hop) as pusher,
    ):
        outgoing = pusher.open(1)
        assert seen.acquire(timeout=10)  # the header
        for index, layer in layers_of(sending()).items():
            outgoing.layer(index, layer)
            assert seen.acquire(timeout=10)  # before the next layer is there
        outgoing.finish()
        assert pusher.handed().reason == ""
        assert equal(landing, 1)
    assert passed[1:-1] == [2 * 2 * 36 * 4 * 4] * 4
