"""Pushes KV to other workers, each layer as soon as it is computed; every `open` leads to exactly one `Handed`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from exegpt_runner.kv_transfer.outgoing import Outgoing, Sending
from exegpt_runner.kv_transfer.peers import Peer, Peers
from exegpt_wire import worker_pb2 as pb
from exegpt_wire.token import bearer

__all__ = ["Outgoing", "Sender", "Sending"]


class Sender:
    """All pushes of one worker; every method may be called from any thread."""

    def __init__(self, token: str | None, *, on_news: Callable[[], None] = lambda: None) -> None:
        """`on_news` is called, from some thread, when a push has ended."""
        self._metadata = bearer(token)
        self._on_news = on_news
        self._peers = Peers()
        self._lock = threading.Lock()  # guards the two below
        self._under_way: set[Outgoing] = set()
        self._handed: list[pb.Handed] = []

    def open(
        self, hand_over: pb.HandOver, sending: Sending, tokens: Sequence[int] = ()
    ) -> Outgoing:
        """Begins a push; `tokens` are the KV tokens of `hand_over.queries`. A probe needs nothing further."""
        num_queries = len(hand_over.queries)
        assert len(tokens) == num_queries, f"{len(tokens)} lengths for {num_queries} queries"
        outgoing = Outgoing(hand_over, sending, tokens)
        peer = self._peers.hold(hand_over.address, hand_over.incarnation)
        with self._lock:
            self._under_way.add(outgoing)
        outgoing.start(peer, self._metadata, lambda handed: self._end(outgoing, peer, handed))
        return outgoing

    def handed(self) -> list[pb.Handed]:
        """How the pushes went that ended since the last call."""
        with self._lock:
            handed, self._handed = self._handed, []
            return handed

    def close(self) -> None:
        """Abandons what is under way and closes the channels."""
        with self._lock:
            under_way = list(self._under_way)
        for outgoing in under_way:
            outgoing.abandon()
        self._peers.close()

    def _end(self, outgoing: Outgoing, peer: Peer, handed: pb.Handed) -> None:
        self._peers.release(peer, has_failed=bool(handed.reason))
        with self._lock:
            self._under_way.discard(outgoing)
            self._handed.append(handed)
        self._on_news()
