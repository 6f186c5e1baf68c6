"""Every fault has its name at the sender, leaves nothing in the landing, and the next transfer works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import kv_peer
from exegpt_runner.kv_transfer.framing import METHOD
from exegpt_wire import PROTOCOL
from exegpt_wire import worker_pb2 as pb
from exegpt_wire.token import bearer
from kv_ends import (
    EPOCH,
    INCARNATION,
    Change,
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
def faulty(tmp_path: Path) -> Iterator[Callable[[Change], tuple[WatchedLanding, Pushing]]]:
    """A landing and a sender with a hop between them that does harm to every push."""
    with ExitStack() as stack:
        landing, address = stack.enter_context(landed(tmp_path))

        def connect(change: Change) -> tuple[WatchedLanding, Pushing]:
            hop = stack.enter_context(relay(tmp_path, address, change))
            return landing, stack.enter_context(pushing(hop))

        yield connect


def harms(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    """A change of the first push: header, four layers, trailer. Later ones pass."""
    pushes: list[None] = []

    def apply(messages: Iterator[bytes]) -> Iterator[bytes]:
        pushes.append(None)
        whole = list(messages)
        return iter(change(whole) if len(pushes) == 1 else whole)

    return apply


def flipped(message: bytes, bit: int) -> bytes:
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def other_query(header: bytes) -> bytes:
    changed = pb.KVHeader.FromString(header)
    changed.queries[1] += 1000
    return changed.SerializeToString()


DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no header": lambda it: [],
    "no layers": lambda it: it[:1],
    "a layer cut short": lambda it: [*it[:3], it[3][:-1], *it[4:]],
    "the stream cut within a layer": lambda it: [*it[:3], it[3][:100]],
    "no trailer": lambda it: it[:-1],
    "a trailer cut short": lambda it: [*it[:-1], it[-1][:-1]],
    "a trailer with a checksum too few": lambda it: [
        *it[:-1],
        pb.KVTrailer(checksums=pb.KVTrailer.FromString(it[-1]).checksums[:-1]).SerializeToString(),
    ],
    "a layer twice": lambda it: [*it[:3], it[2], *it[3:]],
    "layers in another order": lambda it: [*it[:2], it[3], it[2], *it[4:]],
    "a layer with a byte more": lambda it: [*it[:2], it[2] + b"\0", *it[3:]],
    "an empty message": lambda it: [*it[:2], b"", *it[2:]],
    "something after the trailer": lambda it: [*it, b""],
    "the first bit of a layer": lambda it: [*it[:1], flipped(it[1], 0), *it[2:]],
    "the last bit of the last layer": lambda it: [
        *it[:4], flipped(it[4], 8 * len(it[4]) - 1), it[5]],
    "a bit of a checksum": lambda it: [*it[:5], flipped(it[5], 40)],
    "another query in the header": lambda it: [other_query(it[0]), *it[1:]],
    "a header that is none": lambda it: [b"\xff" * 20, *it[1:]],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_data_loss(
    damage: str, faulty: Callable[[Change], tuple[WatchedLanding, Pushing]]
) -> None:
    landing, pusher = faulty(harms(DAMAGE[damage]))
    handed = pusher.push(1)
    assert handed.reason == "data_loss", handed
    assert handed.problem
    landing.await_end()
    assert (landing.held_bytes, landing.arrived()) == (0, [])
    assert pusher.push(2).reason == ""
    assert landing.arrived() == [2]


def test_a_replayed_push_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    recorded: list[list[bytes]] = []

    def record(messages: Iterator[bytes]) -> Iterator[bytes]:
        recorded.append(list(messages))
        return iter(recorded[0])  # the first one for ever

    with (
        landed(tmp_path) as (landing, address),
        relay(tmp_path, address, record) as hop,
        pushing(hop) as pusher,
    ):
        assert pusher.push(1).reason == ""
        held_bytes = landing.held_bytes
        assert pusher.push(2).reason == "already_exists"  # waiting to be taken
        assert landing.held_bytes == held_bytes
        arrived = landing.take(1)
        assert torch.equal(arrived.layer(3), layers_of(sending())[3])
        assert pusher.push(3).reason == "already_exists"  # taken
        assert (landing.held_bytes, landing.arrived()) == (0, [])


def test_a_late_push_is_past_its_deadline(tmp_path: Path) -> None:
    over = threading.Event()
    slow = iter([True, False])

    def delay(messages: Iterator[bytes]) -> Iterator[bytes]:
        is_slow = next(slow)
        yield next(messages)
        yield next(messages)
        if is_slow:
            over.wait()
        yield from messages

    with (
        landed(tmp_path) as (landing, address),
        relay(tmp_path, address, delay) as hop,
        pushing(hop) as pusher,
    ):
        handed = pusher.push(1, deadline_s=1.0)
        assert (handed.reason, handed.num_bytes > 0) == ("deadline_exceeded", True)
        landing.await_end()
        over.set()
        assert landing.held_bytes == 0
        assert pusher.push(2).reason == ""


REFUSED: dict[str, dict[str, Any]] = {
    "incarnation": {"incarnation": 8},
    "epoch": {"epoch": 2},
    "model": {"kind": sending(model_fingerprint="another")},
    "weights": {"kind": sending(weights_digest="another")},
    "dtype": {"kind": sending(dtype=torch.bfloat16)},
    "num_kv_heads": {"kind": sending(num_kv_heads=1)},
    "head_dim": {"kind": sending(head_dim=8)},
    "layers": {"kind": sending(num_layers=5)},
    "without tokens": {"tokens": (1, 0)},
    "twice": {"queries": (100, 101, 100)},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_meant_for_another_is_refused_by_name(words: str, tmp_path: Path) -> None:
    with landed(tmp_path) as (landing, address), pushing(address) as pusher:
        handed = pusher.push(1, **REFUSED[words])
        assert handed.reason == "failed_precondition", handed
        assert words in handed.problem
        landing.await_end()
        assert landing.held_bytes == 0
        assert pusher.push(2).reason == ""


def test_another_protocol_is_refused(
    faulty: Callable[[Change], tuple[WatchedLanding, Pushing]],
) -> None:
    def other(header: bytes) -> bytes:
        changed = pb.KVHeader.FromString(header)
        changed.protocol += 1
        return changed.SerializeToString()

    landing, pusher = faulty(harms(lambda it: [other(it[0]), *it[1:]]))
    handed = pusher.push(1)
    assert (handed.reason, "protocol" in handed.problem) == ("failed_precondition", True)
    assert landing.held_bytes == 0
    assert pusher.push(2).reason == ""


@pytest.mark.parametrize(("token", "words"), [(None, "no token"), ("wrong", "another deployment")])
def test_strangers_push_nothing(token: str | None, words: str, tmp_path: Path) -> None:
    with landed(tmp_path) as (landing, address):
        with pushing(address, token) as stranger:
            handed = stranger.push(1)
        assert (handed.reason, landing.held_bytes) == ("unauthenticated", 0)
        assert words in handed.problem
        with pushing(address) as friend:
            assert friend.push(1).reason == ""


def test_a_push_without_a_deadline_is_refused(tmp_path: Path) -> None:
    with landed(tmp_path) as (_, address), grpc.insecure_channel(address) as channel:
        push: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(METHOD)
        with pytest.raises(grpc.RpcError) as caught:
            push(iter([b"header"]), metadata=bearer(kv_peer.TOKEN))
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_receiver_killed_within_a_layer_is_unavailable(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / 'kv.sock'}"
    tokens = (2**19,)  # 32 MB a layer, more than sockets and windows hold
    with peer("receive", address) as process, pushing(address) as pusher:
        assert said(process) == "ready"
        outgoing = pusher.open(1, tokens=tokens)
        assert said(process) == "began"
        outgoing.layer(0, torch.zeros(2, 2, sum(tokens), 4))
        os.kill(process.pid, signal.SIGKILL)
        handed = pusher.handed()
        assert handed.reason == "unavailable", handed
        assert handed.num_bytes < 2**25
        outgoing.layer(1, torch.zeros(2, 2, sum(tokens), 4))  # the step goes on
        outgoing.finish()
        with landed(tmp_path, receiving(incarnation=9)):  # restarted
            assert pusher.push(2, incarnation=9).reason == ""


def test_a_sender_killed_within_a_layer_leaves_nothing(tmp_path: Path) -> None:
    half = [whole_header(), bytes(2 * 2 * 36 * 4 * 4 // 2)]
    with landed(tmp_path) as (landing, address):
        with peer("send", address, half) as process:
            assert said(process) == "sent"
            landing.await_stream()
            landing.await_room_taken()
            os.kill(process.pid, signal.SIGKILL)
            landing.await_end()
        assert landing.held_bytes == 0
        with pushing(address) as pusher:
            assert pusher.push(1).reason == ""


@contextmanager
def peer(end: str, address: str, messages: Sequence[bytes] = ()) -> Iterator[subprocess.Popen[str]]:
    """One end in a process of its own."""
    words = [end, address, METHOD, *(message.hex() for message in messages)]
    command = [sys.executable, kv_peer.__file__, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def whole_header() -> bytes:
    return pb.KVHeader(
        protocol=PROTOCOL,
        transfer=1,
        incarnation=INCARNATION,
        epoch=EPOCH,
        model_fingerprint="model",
        weights_digest="weights",
        dtype="float32",
        num_kv_heads=2,
        head_dim=4,
        num_layers=4,
        queries=[100],
        tokens=[36],
    ).SerializeToString()
