"""Whether KV gets from one worker to another, tried before the first query depends on it.

A pair is tried once for each pair of connections. What no retry mends (another model, a wrong token) is raised, when it
comes a second time over the same connections: the first time, it may be a worker that has just been replaced.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from exegpt_gateway.lane import Lane
from exegpt_gateway.worker_link import WorkerRefused
from exegpt_wire import worker_pb2

State = Literal["under way", "passed", "failed"]
Pair = tuple[int, int, int, int]  # encoder and its connection, decoder and its connection

FINAL = frozenset({"unauthenticated", "failed_precondition", "unimplemented"})


@dataclass(slots=True)
class _Tried:
    state: State
    at_s: float = field(default_factory=time.monotonic)
    is_refused: bool = False  # for a reason in FINAL, once
    problem: str = ""


@dataclass(slots=True)
class Probes:
    """The ways that were tried."""

    RETRY_S: ClassVar[float] = 0.5  # after a failure that may pass
    _tried: dict[Pair, _Tried] = field(default_factory=dict)
    _under_way: dict[int, Pair] = field(default_factory=dict)

    def has_passed(self, encoder: Lane, decoder: Lane) -> bool:
        """Whether KV got from one to the other."""
        tried = self._tried.get(_pair(encoder, decoder))
        return tried is not None and tried.state == "passed"

    def is_due(self, encoder: Lane, decoder: Lane) -> bool:
        """Whether the way must be tried now."""
        tried = self._tried.get(_pair(encoder, decoder))
        if tried is None:
            return True
        return tried.state == "failed" and time.monotonic() >= tried.at_s + self.RETRY_S

    def begin(self, encoder: Lane, decoder: Lane, transfer: int) -> None:
        """Notes a probe under way."""
        pair = _pair(encoder, decoder)
        before = self._tried.get(pair)
        self._tried = {
            other: tried
            for other, tried in self._tried.items()
            if (other[0], other[2]) != (pair[0], pair[2])
        }
        self._tried[pair] = _Tried(
            "under way",
            is_refused=before is not None and before.is_refused,
            problem="" if before is None else before.problem,  # until it is known to be over
        )
        self._under_way[transfer] = pair

    def ended(self, handed: worker_pb2.Handed) -> bool:
        """Notes how a transfer ended, if it was a probe; raises `WorkerRefused` where no retry helps."""
        pair = self._under_way.pop(handed.transfer, None)
        if pair is None:
            return False
        tried = self._tried.get(pair)
        if tried is None:  # either end has connected anew
            return True
        is_refused = handed.reason in FINAL
        if is_refused and tried.is_refused:
            raise WorkerRefused(
                f"no KV gets from worker {pair[0]} to worker {pair[2]}: {handed.problem}"
            )
        state: State = "failed" if handed.reason else "passed"
        problem = handed.problem if handed.reason else ""
        self._tried[pair] = _Tried(state, is_refused=is_refused, problem=problem)
        return True

    @property
    def problem(self) -> str:
        """Why KV does not get from one of the encoders to one of the decoders, if the latest try was in vain."""
        return next((each.problem for each in self._tried.values() if each.problem), "")


def _pair(encoder: Lane, decoder: Lane) -> Pair:
    return encoder.index, encoder.connections, decoder.index, decoder.connections
