"""A log of every iteration and query, one JSON object a line, to recompute throughput and latency from step clocks.

Lines are buffered and written between messages, never before one that the worker waits for. A disk that fills up ends
the log, not the serving.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from exegpt_gateway.messages import shape_of
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.profile_table import StepShape
from exegpt_wire import worker_pb2

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One iteration of a worker; its place in the log is its index."""

    sequence: int  # of the step
    last: bool  # of the step
    shape: StepShape
    wall_s: float
    cpu_s: float
    kernel_s: float
    start_s: float  # the worker's monotonic clock when the engine began
    between_s: float  # of wall_s, outside the engine
    calibration_s: float  # beside wall_s, before start_s
    active: int  # queries that hold KV after it
    kv_tokens: int
    num_tokens: int  # output tokens sampled
    evicted: int
    worker: int = 0  # its number


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRecord:
    """One query that came to its end. Times are the gateway's monotonic clock."""

    query: int
    input_tokens: int
    output_tokens: int
    arrival_s: float
    encode_started_s: float
    first_token_s: float
    finished_s: float
    first_iteration: int  # index of the iteration that began its encode
    last_iteration: int  # index of the iteration that sampled its last token


@dataclass(frozen=True, slots=True)
class Steps:
    """A log that was read back."""

    iterations: tuple[IterationRecord, ...]
    queries: tuple[QueryRecord, ...]


class StepLog:
    """Writes the log; the conductor hands it what happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("w", encoding="utf-8", buffering=BUFFER_BYTES)
        except OSError as error:
            raise Unavailable(
                f"cannot write the step log {path}: {error.strerror}. Choose another file."
            ) from None
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def iteration(self, result: worker_pb2.IterationResult, worker: int) -> None:
        """Notes an iteration."""
        clocks = result.clocks
        self._write(
            "iteration",
            {
                "sequence": result.sequence,
                "last": result.last,
                "shape": dataclasses.asdict(shape_of(result.shape)),
                "wall_s": clocks.wall_s,
                "cpu_s": clocks.cpu_s,
                "kernel_s": clocks.kernel_s,
                "start_s": clocks.start_s,
                "between_s": clocks.between_s,
                "calibration_s": clocks.calibration_s,
                "active": result.active,
                "kv_tokens": result.kv_tokens,
                "num_tokens": len(result.tokens),
                "evicted": len(result.evicted),
                "worker": worker,
            },
        )

    def query(self, record: QueryRecord) -> None:
        """Notes a query that came to its end."""
        self._write("query", dataclasses.asdict(record))

    def close(self) -> None:
        """Writes what is buffered."""
        if self._is_open:
            self._is_open = False
            try:
                self._file.close()
            except OSError as error:
                self._lose(error)

    def _write(self, kind: str, record: Mapping[str, Any]) -> None:
        if not self._is_open:
            return
        try:
            self._file.write(json.dumps({"kind": kind, **record}) + "\n")
        except OSError as error:
            self._is_open = False
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        with contextlib.suppress(OSError):  # it tries to write once more
            self._file.close()
        log.warning("step log ends early", extra={"path": str(self.path), "reason": error.strerror})


def read_step_log(path: Path) -> Steps:
    """The iterations and queries of a log."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}. Check the path.") from None
    iterations: list[IterationRecord] = []
    queries: list[QueryRecord] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            match record.pop("kind"):
                case "iteration":
                    shape = StepShape(**record.pop("shape"))
                    iterations.append(IterationRecord(shape=shape, **record))
                case "query":
                    queries.append(QueryRecord(**record))
                case other:
                    raise InvalidSpec(f"{path}, line {number}", [f"unknown kind {other!r}"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidSpec(
                f"{path}, line {number}", [f"not a step log record: {error}"]
            ) from None
    return Steps(tuple(iterations), tuple(queries))
