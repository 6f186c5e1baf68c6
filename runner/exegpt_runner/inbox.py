"""Commands of one Run stream: steps in order, drops ahead of them.

A thread of its own reads the stream, so a drop is seen while a phase of many iterations runs. A drop also takes the
query's chunks and joins out of the steps that were queued before it; steps that come later are not touched. News of
transfers of KV wake a worker that has no step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from exegpt_wire import worker_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

Entry = TypeVar("Entry", pb.Chunk, pb.Joining)


@dataclass(frozen=True, slots=True)
class News:
    """Something came or went, though no step did."""


@dataclass(frozen=True, slots=True)
class Drops:
    """Queries and transfers to forget."""

    queries: Sequence[int] = ()
    transfers: Sequence[int] = ()


_NONE = Drops()


class Inbox:
    """Steps and drops received so far; `close` makes the stream end at the next look."""

    def __init__(self, commands: Iterator[pb.Command]) -> None:
        self._changed = threading.Condition()
        self._steps: deque[pb.Step] = deque()
        self._drops = _NONE
        self._has_news = False
        self._is_complete = False
        self._is_closed = False
        threading.Thread(target=self._read, args=(commands,), name="commands", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        """Whether the stream must end now, whatever is queued."""
        return self._is_closed

    def close(self) -> None:
        """Ends the stream: what is queued will not run."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Says that there are news; from any thread."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def next_event(self) -> pb.Step | News | None:
        """The next step, or news that came before one, waited for; None when there will be none."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._steps or self._has_news or self._is_complete or self._is_closed
            )
            if self._is_closed:
                return None
            if self._steps:
                self._has_news = False  # its results bring them
                return self._steps.popleft()
            if self._has_news:
                self._has_news = False
                return News()
            return None

    def take_drops(self) -> Drops:
        """What to drop since the last call."""
        if self._drops is _NONE:  # without the lock: seen at the latest one iteration later
            return _NONE
        with self._changed:
            drops, self._drops = self._drops, _NONE
            return drops

    def _read(self, commands: Iterator[pb.Command]) -> None:
        try:
            for command in commands:
                self._receive(command)
        except grpc.RpcError:
            self.close()  # the client has gone
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()

    def _receive(self, command: pb.Command) -> None:
        with self._changed:
            match command.WhichOneof("kind"):
                case "step":
                    self._steps.append(command.step)
                case "drop":
                    drop, known = command.drop, self._drops
                    self._drops = Drops(
                        (*known.queries, *drop.queries), (*known.transfers, *drop.transfers)
                    )
                    for step in self._steps:
                        remove_queries(step, drop.queries)
            self._changed.notify_all()


def remove_queries(step: pb.Step, queries: Sequence[int]) -> None:
    """Takes `queries` out of `step`."""
    gone = set(queries)
    if not gone:
        return
    _remove(step.chunks, gone)
    for join in step.joins:
        _remove(join.queries, gone)


def _remove(entries: RepeatedCompositeFieldContainer[Entry], gone: Set[int]) -> None:
    kept = [each for each in entries if each.query not in gone]
    if len(kept) < len(entries):
        del entries[:]
        entries.extend(kept)
