"""gRPC channels to other workers, one for each process, kept while they work.

A channel that failed is not used again: a new one connects at once, where the old would sit out gRPC's back-off while
the peer is up again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from exegpt_runner.kv_transfer.framing import METHOD
from exegpt_wire import GRPC_OPTIONS

if TYPE_CHECKING:  # generic in the stubs only
    Push = grpc.StreamUnaryMultiCallable[bytes, bytes]


@dataclass(eq=False, slots=True)
class Peer:
    """A channel to one process and how many calls use it."""

    address: str
    incarnation: int
    channel: grpc.Channel
    push: Push
    num_calls: int = 0
    is_retired: bool = False


class Peers:
    """Channels by address and incarnation; callers hold one for each call and release it after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_address: dict[str, Peer] = {}

    def hold(self, address: str, incarnation: int) -> Peer:
        """The channel to this process, a new one if need be."""
        with self._lock:
            peer = self._by_address.get(address)
            if peer is not None and peer.incarnation != incarnation:
                self._retire(peer)
                peer = None
            if peer is None:
                peer = self._by_address[address] = _connect(address, incarnation)
            peer.num_calls += 1
            return peer

    def release(self, peer: Peer, *, has_failed: bool) -> None:
        """Gives a held channel back."""
        with self._lock:
            peer.num_calls -= 1
            if has_failed:
                self._retire(peer)
            elif peer.is_retired:
                _close_if_unused(peer)

    def close(self) -> None:
        """Closes all channels, as soon as they are given back."""
        with self._lock:
            for peer in list(self._by_address.values()):
                self._retire(peer)

    def _retire(self, peer: Peer) -> None:
        peer.is_retired = True
        if self._by_address.get(peer.address) is peer:
            del self._by_address[peer.address]
        _close_if_unused(peer)


def _connect(address: str, incarnation: int) -> Peer:
    options = [*GRPC_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.insecure_channel(address, options=options)
    return Peer(address, incarnation, channel, channel.stream_unary(METHOD))


def _close_if_unused(peer: Peer) -> None:
    if peer.num_calls == 0:
        # In a thread of its own: this one may be gRPC's, whose end the close waits for.
        threading.Thread(target=peer.channel.close, name="kv-close", daemon=True).start()
