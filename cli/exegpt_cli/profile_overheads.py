"""What a step costs beside the engine, under the conductor that will serve: messages, and the wait for the next one.

A bare client that answers at once is 0.2-0.3 ms a step quicker than the conductor: per cents of a small model's step.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import QueryStream, SamplingParams
from exegpt_gateway.step_log import IterationRecord, StepLog, read_step_log
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.schedule import CraSchedule
from exegpt_wire import worker_pb2

TURNS = 30  # the median of so many settles to some per cent of a fraction of a millisecond
_PROMPT = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds of a step outside the engine."""

    step_s: float  # in the worker: making, sending and receiving the messages of a step
    sampled_s: float  # in the worker: more for each sampled token
    dispatch_s: float  # the worker waits this long for the conductor's next step


async def overheads(
    address: str,
    configure: worker_pb2.ConfigureRequest,
    num_queries: int,
    token: str | None = None,
) -> Overheads:
    """Measured on steps of one decode iteration each, alone and with `num_queries` in the pool."""
    alone = await _turns(address, configure, 1, token)
    crowd = await _turns(address, configure, num_queries, token) if num_queries > 1 else alone
    step_s, crowd_s = (_median([each.between_s for each in turns]) for turns in (alone, crowd))
    return Overheads(
        step_s=step_s,
        sampled_s=max(0.0, crowd_s - step_s) / max(1, num_queries - 1),
        dispatch_s=max(0.0, _median(_waits(crowd))),
    )


async def _turns(
    address: str,
    configure: worker_pb2.ConfigureRequest,
    num_queries: int,
    token: str | None,
) -> list[IterationRecord]:
    """Iterations of a pool of that size, which CRA runs one a message."""
    with tempfile.TemporaryDirectory(prefix="exegpt-") as folder:
        path = Path(folder) / "steps.jsonl"
        with StepLog(path) as log:
            conductor = Conductor(
                [WorkerLink(address, configure, token=token)],
                schedule=CraSchedule(pool=num_queries, chunk_tokens=num_queries * len(_PROMPT)),
                kv_tokens=configure.kv_tokens,
                context=configure.kv_tokens,
                max_waiting=num_queries,
                metrics=Metrics(CollectorRegistry()),
                step_log=log,
            )
            limits = SamplingParams(temperature=0.0, max_tokens=TURNS, ignore_eos=True)
            streams = [conductor.submit(_PROMPT, limits) for _ in range(num_queries)]
            conductor.drain()
            await asyncio.gather(conductor.run(), *(_read(stream) for stream in streams))
        iterations = read_step_log(path).iterations
    return [each for each in iterations if each.shape.decode_queries == num_queries]


async def _read(stream: QueryStream) -> None:
    async for _ in stream:
        pass


def _waits(turns: Sequence[IterationRecord]) -> list[float]:
    """Seconds between the end of one iteration's clock and the begin of the next one's."""
    return [(_end_s(b) - _end_s(a)) - b.wall_s for a, b in pairwise(turns)]


def _end_s(turn: IterationRecord) -> float:
    return turn.start_s + turn.wall_s - turn.between_s


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
