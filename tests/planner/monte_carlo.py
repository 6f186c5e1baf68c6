"""Request-level simulation of RRA and CRA: every query, every iteration, nothing shared with the planner's formulas.

Only the table's own `step_s` and the workload's laws are used. Outputs are drawn with their inputs from the joint law.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.profile_table import ProfileTable, StepShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Draw = Callable[[int], tuple[Ints, Ints]]  # n -> (inputs, outputs)


@dataclass
class Observed:
    """What a run showed after its warm-up."""

    elapsed_s: float = 0.0
    completed: int = 0
    cycles: int = 0
    pool: list[int] = field(default_factory=list)
    first_pool: list[int] = field(default_factory=list)  # RRA: at the first iteration of a phase
    kv: list[float] = field(default_factory=list)
    latencies: dict[int, list[float]] = field(default_factory=dict)  # by output length

    @property
    def queries_per_s(self) -> float:
        return self.completed / self.elapsed_s

    def end(self, length: int, latency_s: float) -> None:
        self.completed += 1
        self.latencies.setdefault(length, []).append(latency_s)


def run_rra(
    table: ProfileTable, draw: Draw, *, batch: int, interval: int, cycles: int, warm_up: int
) -> Observed:
    seen, now = Observed(), 0.0
    inputs, outputs, done, started = (np.empty(0) for _ in range(4))
    for cycle in range(cycles):
        if cycle == warm_up:
            seen, origin = Observed(), now
        new_inputs, new_outputs = draw(batch)
        encode_started = now
        now += table.step_s(
            StepShape(
                tokens=float(new_inputs.sum()),
                decode_queries=0,
                decode_context=0,
                encode_chunks=batch,
                encode_pairs=float((new_inputs * (new_inputs + 1) // 2).sum()),
                sampled=batch,
            )
        )
        inputs = np.append(inputs, new_inputs)
        outputs = np.append(outputs, new_outputs)
        done = np.append(done, np.ones(batch))
        started = np.append(started, np.full(batch, encode_started))
        for u in range(interval + 1):
            ended = done >= outputs
            for length, start in zip(outputs[ended], started[ended], strict=True):
                seen.end(int(length), now - start)
            inputs, outputs, done, started = (a[~ended] for a in (inputs, outputs, done, started))
            if u == 0:
                seen.first_pool.append(len(done))
            if u == interval or not len(done):
                break
            context = float((inputs + done).sum())
            seen.pool.append(len(done))
            seen.kv.append(context)
            now += _decode_s(table, len(done), context)
            done = done + 1
        now += table.dispatch_s
        seen.cycles += 1
    seen.elapsed_s = now - origin
    return seen


def _decode_s(table: ProfileTable, queries: int, context: float) -> float:
    return table.step_s(
        StepShape(
            tokens=queries,
            decode_queries=queries,
            decode_context=context,
            encode_chunks=0,
            encode_pairs=0,
            sampled=queries,
        )
    )


def run_cra(
    table: ProfileTable, draw: Draw, *, pool: int, chunk: int, iterations: int, warm_up: int
) -> Observed:
    seen, now = Observed(), 0.0
    inputs, outputs, done, started = (np.empty(0) for _ in range(4))
    waiting: deque[list[float]] = deque()  # [input, output, tokens encoded, encode started]
    origin = 0.0
    for iteration in range(iterations):
        if iteration == warm_up:
            seen, origin = Observed(), now
        free = pool - len(done) - len(waiting)
        for i, o in zip(*draw(free), strict=True) if free else ():
            waiting.append([i, o, 0, -1.0])
        begun, left, chunks, pairs = now, float(chunk), 0, 0.0
        finished: list[list[float]] = []
        while waiting and left:
            query = waiting[0]
            taken = min(left, query[0] - query[2])
            if query[2] == 0:
                query[3] = begun
            pairs += taken * (query[2] + (taken + 1) / 2)
            query[2] += taken
            left -= taken
            chunks += 1
            if query[2] == query[0]:
                finished.append(waiting.popleft())
        context = float((inputs + done).sum())
        now += table.dispatch_s + table.step_s(
            StepShape(
                tokens=len(done) + chunk - left,
                decode_queries=len(done),
                decode_context=context,
                encode_chunks=chunks,
                encode_pairs=pairs,
                sampled=len(done) + len(finished),
            )
        )
        seen.pool.append(len(done))
        seen.kv.append(context)
        done = done + 1
        if finished:
            new = np.array(finished).T
            inputs, outputs = np.append(inputs, new[0]), np.append(outputs, new[1])
            done, started = np.append(done, np.ones(len(finished))), np.append(started, new[3])
        ended = done >= outputs
        for length, start in zip(outputs[ended], started[ended], strict=True):
            seen.end(int(length), now - table.dispatch_s - start)
        inputs, outputs, done, started = (a[~ended] for a in (inputs, outputs, done, started))
        seen.cycles += 1
    seen.elapsed_s = now - origin
    return seen
