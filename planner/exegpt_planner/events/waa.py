"""WAA, simulated: x encoders and y decoders of their own, asynchronous; the KV of encoded queries is handed over.

An idle encoder takes a batch as soon as the decoder with most places has enough for it; it is idle when its first stage
is and there are fewer encodes underway than it has stages. A place is held from then on
until the query ends; a query of one token ends with its encode. The batch's KV arrives some time after the encode,
dealt to the decoder's micro-batches, fewest queries first, and joins their next steps. A micro-batch's next step begins
when its last has left the last stage and the conductor's message is there; those that are ready wait in line.

Sending adds to an encode, and joining to a decode step, in equal shares on its instance's stages.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from exegpt_planner.events.pipeline import Pipeline
from exegpt_planner.events.queries import Backlog, Pool, Query, decode_shape, encode_shape
from exegpt_planner.events.records import Recorder, Run, Until
from exegpt_planner.events.rra import encode_size
from exegpt_planner.events.stages import Stages
from exegpt_planner.profile_table import HandOverCurves
from exegpt_planner.schedule import WaaSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What WAA runs on: each encoder and each decoder are stages like these."""

    encoder: Stages
    decoder: Stages
    hand_over: HandOverCurves  # between instances, all layers together


def run_waa(
    schedule: WaaSchedule,
    machines: Machines,
    backlog: Backlog,
    until: Until,
) -> Run:
    """All encoders and decoders under a saturated backlog."""
    return _Waa(schedule, machines, backlog, until).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """KV that has arrived for a micro-batch, and the queries that go on with it."""

    queries: Sequence[Query]
    tokens: int  # those of queries that have ended meanwhile included


@dataclass(slots=True, kw_only=True)
class _Part:
    """One micro-batch of a decoder."""

    index: int
    pool: Pool = field(default_factory=Pool)
    arrived: list[_Arrival] = field(default_factory=list)
    num_arrived: int = 0  # queries of them
    is_running: bool = False


@dataclass(slots=True, kw_only=True)
class _Encoder:
    line: Pipeline
    underway: int = 0  # encodes
    waits: bool = False  # for one of them to end, its first stage being free


@dataclass(slots=True, kw_only=True)
class _Decoder:
    line: Pipeline
    places: int
    parts: list[_Part]


class _Waa:
    """Events in order of time, those of one time in order of their making."""

    def __init__(
        self,
        schedule: WaaSchedule,
        machines: Machines,
        backlog: Backlog,
        until: Until,
    ) -> None:
        x, y = schedule.encoders, schedule.decoders
        names = [f"encoder {i + 1}" for i in range(x)] + [f"decoder {i + 1}" for i in range(y)]
        self.schedule, self.backlog, self.hand_over = schedule, backlog, machines.hand_over
        self.recorder = Recorder(until, names)
        lines = [Pipeline(machines.encoder, self.recorder, i) for i in range(x)]
        self.encoders = [_Encoder(line=line) for line in lines]
        self.idle = list(self.encoders)
        self.decoders = [
            _Decoder(
                line=Pipeline(machines.decoder, self.recorder, x + i),
                places=schedule.pool,
                parts=[_Part(index=index) for index in range(schedule.micro_batches)],
            )
            for i in range(y)
        ]
        self.now_s, self.is_over = 0.0, False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def run(self) -> Run:
        self.admit()
        while not self.is_over:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        return self.recorder.run()

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, act))

    def admit(self) -> None:
        """Idle encoders take batches while a decoder has places for one."""
        while self.idle:
            decoder = max(self.decoders, key=lambda each: each.places)
            size = min(encode_size(self.schedule, self.backlog, 0), self.schedule.pool)
            if decoder.places < size:
                return
            self.is_over = not self.recorder.begin_round(self.now_s)
            if self.is_over:
                return
            decoder.places -= size
            self.encode(self.idle.pop(0), decoder, self.backlog.take(size))

    def encode(self, encoder: _Encoder, decoder: _Decoder, queries: list[Query]) -> None:
        tokens = sum(query.input for query in queries)
        line = encoder.line
        encoder.underway += 1
        step = line.serve(
            self.now_s + line.stages.dispatch_s,
            encode_shape(queries),
            extra_s=self.hand_over.sent(tokens),
        )
        for query in queries:
            query.encode_start_s, query.first_token_s = step.start_s, step.end_s
        self.at(step.end_s, partial(self.encoded, encoder, decoder, queries))
        self.at(line.free_s, partial(self.rest, encoder))

    def rest(self, encoder: _Encoder) -> None:
        """Its first stage is free."""
        if encoder.underway == encoder.line.stages.num_stages:
            encoder.waits = True
            return
        self.idle.append(encoder)
        self.admit()

    def encoded(self, encoder: _Encoder, decoder: _Decoder, queries: list[Query]) -> None:
        encoder.underway -= 1
        if encoder.waits:
            encoder.waits = False
            self.rest(encoder)
        lasting = 0
        for query in queries:
            if query.iterations:
                lasting += 1
            else:
                self.recorder.end(query, self.now_s)
        decoder.places += len(queries) - lasting
        if lasting:
            tokens = sum(query.input for query in queries)
            arrival_s = self.now_s + self.hand_over.exposed(tokens)
            self.at(arrival_s, partial(self.arrive, decoder, queries))
        if lasting < len(queries):
            self.admit()

    def arrive(self, decoder: _Decoder, queries: list[Query]) -> None:
        """Deals a batch to the micro-batches, each query to the one with fewest."""
        dealt: list[list[Query]] = [[] for _ in decoder.parts]
        held = [part.pool.num + part.num_arrived for part in decoder.parts]
        for query in queries:
            fewest = held.index(min(held))
            dealt[fewest].append(query)
            held[fewest] += query.iterations > 0
        for part, share in zip(decoder.parts, dealt, strict=True):
            lasting = [query for query in share if query.iterations]
            if not lasting:
                continue
            tokens = sum(query.input for query in share)
            part.arrived.append(_Arrival(queries=lasting, tokens=tokens))
            part.num_arrived += len(lasting)
            if not part.is_running:
                part.is_running = True
                dispatch_s = decoder.line.stages.dispatch_s
                self.at(self.now_s + dispatch_s, partial(self.decode, decoder, part))

    def decode(self, decoder: _Decoder, part: _Part) -> None:
        """A micro-batch that is ready joins what has arrived and begins, or waits for the first stage."""
        if decoder.line.free_s > self.now_s:
            self.at(decoder.line.free_s, partial(self.decode, decoder, part))
            return
        joined_s = sum(self.hand_over.joined(each.tokens) for each in part.arrived)
        for arrival in part.arrived:
            for query in arrival.queries:
                part.pool.join(query, query.iterations)
        part.arrived.clear()
        part.num_arrived = 0
        part.is_running = part.pool.num > 0
        if not part.is_running:
            return
        self.recorder.iteration(sum(each.pool.num for each in decoder.parts))
        step = decoder.line.serve(
            self.now_s, decode_shape(part.pool), micro_batch=part.index, extra_s=joined_s
        )
        self.at(step.end_s, partial(self.decoded, decoder, part))

    def decoded(self, decoder: _Decoder, part: _Part) -> None:
        for query in part.pool.advance():
            self.recorder.end(query, self.now_s)
            decoder.places += 1
        self.admit()
        self.at(self.now_s + decoder.line.stages.dispatch_s, partial(self.decode, decoder, part))
