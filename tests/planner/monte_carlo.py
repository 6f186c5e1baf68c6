"""Request-level simulation of RRA, CRA and WAA: every query, every iteration, nothing shared with the planner.

Only the table's own `step_s` and hand-over curves and the workload's laws are used. Outputs are drawn with their inputs
from the joint law.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.profile_table import ProfileTable, StepShape
from exegpt_planner.schedule import WaaSchedule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Draw = Callable[[int], tuple[Ints, Ints]]  # n -> (inputs, outputs)


@dataclass
class Observed:
    """What a run showed after its warm-up."""

    elapsed_s: float = 0.0
    completed: int = 0
    cycles: int = 0
    iteration_s: list[float] = field(default_factory=list)  # WAA: dispatch included
    encode_s: float = 0.0  # WAA: worker time of encodes, dispatch included
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
    table: ProfileTable,
    draw: Draw,
    *,
    batch: int,
    interval: int,
    cycles: int,
    warm_up: int,
    is_adjusted: bool = False,
) -> Observed:
    """`draw` gives the queries of an encode; it hears B_E, and if adjusted the pool that the encode finds."""
    seen, now = Observed(), 0.0
    inputs, outputs, done, started = (np.empty(0) for _ in range(4))
    for cycle in range(cycles):
        if cycle == warm_up:
            seen, origin = Observed(), now
        new_inputs, new_outputs = draw(len(done) if is_adjusted else batch)
        encoded = len(new_inputs)
        encode_started = now
        now += table.step_s(
            StepShape(
                tokens=float(new_inputs.sum()),
                decode_queries=0,
                decode_context=0,
                encode_chunks=encoded,
                encode_pairs=float((new_inputs * (new_inputs + 1) // 2).sum()),
                sampled=encoded,
            )
        )
        inputs = np.append(inputs, new_inputs)
        outputs = np.append(outputs, new_outputs)
        done = np.append(done, np.ones(encoded))
        started = np.append(started, np.full(encoded, encode_started))
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


@dataclass
class Encoded:
    """The queries of one encode, for one decoder."""

    decoder: int
    inputs: Ints
    outputs: Ints
    begun: float

    @property
    def tokens(self) -> float:
        return float(self.inputs.sum())


@dataclass
class Decoder:
    """A decoder's pool, what has arrived for it, and its free places."""

    room: int
    arrived: list[Encoded] = field(default_factory=list)
    running: bool = False
    inputs: Floats = field(default_factory=lambda: np.empty(0))
    outputs: Floats = field(default_factory=lambda: np.empty(0))
    done: Floats = field(default_factory=lambda: np.empty(0))
    begun: Floats = field(default_factory=lambda: np.empty(0))

    def join(self) -> None:
        """Takes in what has arrived and does not end with its first token."""
        for each in self.arrived:
            lives = each.outputs > 1
            self.inputs = np.append(self.inputs, each.inputs[lives])
            self.outputs = np.append(self.outputs, each.outputs[lives])
            self.done = np.append(self.done, np.ones(int(lives.sum())))
            self.begun = np.append(self.begun, np.full(int(lives.sum()), each.begun))
        self.arrived.clear()

    def leave(self) -> list[tuple[float, float]]:
        """One more token for each; (length, start) of those that end."""
        self.done = self.done + 1
        ended = self.done >= self.outputs
        left = list(zip(self.outputs[ended], self.begun[ended], strict=True))
        keep = ~ended
        self.inputs, self.outputs = self.inputs[keep], self.outputs[keep]
        self.done, self.begun = self.done[keep], self.begun[keep]
        self.room += len(left)
        return left


class Waa:
    """Encoders and decoders of their own, each waiting only for places, KV and the conductor's messages."""

    def __init__(self, table: ProfileTable, draw: Draw, schedule: WaaSchedule) -> None:
        assert table.hand_over is not None
        self.table, self.draw, self.curves = table, draw, table.hand_over
        self.batch = schedule.encode_batch
        self.idle = schedule.encoders
        self.decoders = [Decoder(room=schedule.pool) for _ in range(schedule.decoders)]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now, self.num_events = 0.0, 0
        self.seen = Observed()

    def run(self, *, iterations: int, warm_up: int) -> Observed:
        self.admit()
        origin = 0.0
        while self.seen.cycles < iterations:
            self.now, _, act = heapq.heappop(self.events)
            act()
            if not origin and self.seen.cycles == warm_up:
                self.seen, origin = Observed(), self.now
        self.seen.elapsed_s = self.now - origin
        return self.seen

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (self.now + seconds, self.num_events, act))

    def admit(self) -> None:
        while self.idle:
            most = max(range(len(self.decoders)), key=lambda d: self.decoders[d].room)
            if self.decoders[most].room < self.batch:
                return
            self.idle -= 1
            self.decoders[most].room -= self.batch
            inputs, outputs = self.draw(self.batch)
            begun = self.now + self.table.dispatch_s
            encoded = Encoded(decoder=most, inputs=inputs, outputs=outputs, begun=begun)
            time_s = self.table.dispatch_s + self.encode_time_s(encoded)
            self.seen.encode_s += time_s
            self.after(time_s, partial(self.encode_ended, encoded))

    def encode_time_s(self, encoded: Encoded) -> float:
        n = encoded.inputs
        step = StepShape(
            tokens=encoded.tokens,
            decode_queries=0,
            decode_context=0,
            encode_chunks=len(n),
            encode_pairs=float((n * (n + 1) // 2).sum()),
            sampled=len(n),
        )
        return self.table.step_s(step) + self.curves.sent(encoded.tokens)

    def encode_ended(self, encoded: Encoded) -> None:
        decoder = self.decoders[encoded.decoder]
        ended = int((encoded.outputs == 1).sum())
        for _ in range(ended):
            self.seen.end(1, self.now - encoded.begun)
        decoder.room += ended
        self.idle += 1
        if ended < len(encoded.outputs):
            self.after(self.curves.exposed(encoded.tokens), partial(self.arrive, encoded))
        self.admit()

    def arrive(self, encoded: Encoded) -> None:
        decoder = self.decoders[encoded.decoder]
        decoder.arrived.append(encoded)
        if not decoder.running:
            decoder.running = True
            self.after(self.table.dispatch_s, partial(self.decode, decoder))

    def decode(self, decoder: Decoder) -> None:
        joins = [self.curves.joined(each.tokens) for each in decoder.arrived]
        decoder.join()
        queries = len(decoder.done)
        decoder.running = queries > 0
        if not decoder.running:
            return
        context = float((decoder.inputs + decoder.done).sum())
        time_s = sum(joins) + _decode_s(self.table, queries, context)
        self.seen.pool.append(queries)
        self.seen.kv.append(context)
        self.seen.iteration_s.append(time_s + self.table.dispatch_s)
        self.after(time_s, partial(self.decoded, decoder))

    def decoded(self, decoder: Decoder) -> None:
        for length, begun in decoder.leave():
            self.seen.end(int(length), self.now - begun)
        self.seen.cycles += 1
        self.admit()
        self.after(self.table.dispatch_s, partial(self.decode, decoder))


def run_waa(
    table: ProfileTable, draw: Draw, schedule: WaaSchedule, *, iterations: int, warm_up: int
) -> Observed:
    return Waa(table, draw, schedule).run(iterations=iterations, warm_up=warm_up)
