"""Commands of one Run stream: steps in order, drops ahead of them.

A thread of its own reads the stream, so a drop is seen while a phase of many iterations runs. A drop also takes the
query's chunks out of the steps that were queued before it; steps that come later are not touched.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

import grpc

from exegpt_wire import worker_pb2 as pb


class Inbox:
    """Steps and drops received so far; `close` makes the stream end at the next look."""

    def __init__(self, commands: Iterator[pb.Command]) -> None:
        self._changed = threading.Condition()
        self._steps: deque[pb.Step] = deque()
        self._drops: list[int] = []
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

    def next_step(self) -> pb.Step | None:
        """The next step, waited for; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._steps or self._is_complete or self._is_closed)
            if self._is_closed or not self._steps:
                return None
            return self._steps.popleft()

    def take_drops(self) -> Sequence[int]:
        """Queries to drop since the last call."""
        if not self._drops:  # without the lock: seen at the latest one iteration later
            return ()
        with self._changed:
            drops, self._drops = self._drops, []
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
                    self._drops.extend(command.drop.queries)
                    for step in self._steps:
                        remove_chunks(step, command.drop.queries)
            self._changed.notify_all()


def remove_chunks(step: pb.Step, queries: Sequence[int]) -> None:
    """Takes the chunks of `queries` out of `step`."""
    gone = set(queries)
    if any(chunk.query in gone for chunk in step.chunks):
        kept = [chunk for chunk in step.chunks if chunk.query not in gone]
        del step.chunks[:]
        step.chunks.extend(kept)
