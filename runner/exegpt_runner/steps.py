"""One step of the wire as iterations of the engine, each answered by one message.

Drops take effect between iterations, also inside a step. Chunks that follow a drop or an eviction of their query are
skipped by the engine; chunks out of order are the conductor's error and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.profile_table import StepShape
from exegpt_runner.clocks import CalibrationKernel, Instant, StepClock
from exegpt_runner.engine import EncodeChunk, Engine, Iteration
from exegpt_runner.hand_over import Exchange, sampling_of
from exegpt_runner.inbox import Drops, Inbox, News, remove_queries
from exegpt_wire import worker_pb2 as pb

_FINISH = {"none": pb.NONE, "stop": pb.STOP, "length": pb.LENGTH}


class StepRunner:
    """Runs the steps of one stream on an engine that nobody else touches meanwhile."""

    def __init__(
        self,
        engine: Engine,
        exchange: Exchange,
        kernel: CalibrationKernel,
        calibrate_every_s: float,
    ) -> None:
        self._engine = engine
        self._exchange = exchange
        self._kernel = kernel
        self._calibrate_every_s = calibrate_every_s
        self._clock = StepClock()
        self._calibration_s = 0.0

    def next_event(self, inbox: Inbox) -> pb.Step | News | None:
        """The next step, or news of transfers, waited for off the clock; None when the stream is over."""
        self._calibrate()
        begin = Instant.now()
        event = inbox.next_event()
        self._clock.pause(begin)
        return event

    def news(self) -> Iterator[pb.IterationResult]:
        """What came and went while no step was under way, if anything."""
        result = self._exchange.news(pb.IterationResult())
        if result.arrived or result.handed:
            yield result

    def run(self, step: pb.Step, take_drops: Callable[[], Drops]) -> Iterator[pb.IterationResult]:
        """The step's iterations; the last one, which may be empty, is marked."""
        drops = take_drops()
        self._drop(drops)
        remove_queries(step, drops.queries)
        self._exchange.probe(step.hand_overs)
        chunks = [_chunk(chunk) for chunk in step.chunks]
        joins: Sequence[pb.Join] = step.joins
        remaining = step.decode_iterations
        is_last = False
        while not is_last:
            self._calibrate()
            begin = Instant.now()
            lost = self._join(step, joins)
            joins = ()
            if not chunks:
                self._drop(take_drops())
                if not remaining or not self._engine.decoding:
                    yield self._empty(step, lost)
                    return
                remaining -= 1
            result = self._iterate(step, chunks, begin)
            chunks = []
            is_last = not remaining or not self._engine.decoding
            result.last = is_last
            result.evicted.extend(lost)
            yield self._exchange.news(result)

    def _drop(self, drops: Drops) -> None:
        self._engine.drop(drops.queries)
        if drops.transfers:
            self._exchange.landing.forget(drops.transfers)

    def _join(self, step: pb.Step, joins: Sequence[pb.Join]) -> Sequence[int]:
        """Takes in who joins; returns whom that evicted."""
        if not joins:
            return ()
        with _as_invalid(step):
            return self._engine.join(self._exchange.arrivals(joins))

    def _iterate(
        self, step: pb.Step, chunks: Sequence[EncodeChunk], begin: Instant
    ) -> pb.IterationResult:
        decode = step.decode_with_chunks if chunks else True
        hand_overs = step.hand_overs if chunks else ()
        with _as_invalid(step), self._exchange.departing(hand_overs) as departures:
            iteration = self._engine.iterate(
                chunks, decode=decode, retain_ended=step.retain_ended, departures=departures
            )
        end_s = Instant.now().wall_s
        result = self._result(step, iteration)
        wall_s, cpu_s = self._clock.lap()
        clocks = result.clocks
        clocks.wall_s, clocks.cpu_s, clocks.kernel_s = wall_s, cpu_s, self._kernel.latest_s
        clocks.start_s = begin.wall_s
        clocks.calibration_s, self._calibration_s = self._calibration_s, 0.0
        clocks.between_s = max(0.0, wall_s - (end_s - begin.wall_s))
        return result

    def _result(self, step: pb.Step, iteration: Iteration) -> pb.IterationResult:
        return pb.IterationResult(
            sequence=step.sequence,
            tokens=[
                pb.Token(query=sampled.query, token=sampled.token, finish=_FINISH[sampled.finish])
                for sampled in iteration.tokens
            ],
            evicted=iteration.evicted,
            shape=shape_message(iteration.shape),
            active=self._engine.active,
            kv_tokens=self._engine.kv_tokens,
        )

    def _empty(self, step: pb.Step, lost: Sequence[int]) -> pb.IterationResult:
        return self._exchange.news(
            pb.IterationResult(
                sequence=step.sequence,
                last=True,
                evicted=lost,
                active=self._engine.active,
                kv_tokens=self._engine.kv_tokens,
                clocks=pb.Clocks(kernel_s=self._kernel.latest_s, start_s=Instant.now().wall_s),
            )
        )

    def _calibrate(self) -> None:
        if self._kernel.is_due(self._calibrate_every_s):
            begin = Instant.now()
            self._kernel.run()
            self._calibration_s += self._clock.pause(begin)


def _chunk(message: pb.Chunk) -> EncodeChunk:
    return EncodeChunk(
        query=message.query,
        tokens=np.array(message.tokens, np.int64),
        start=message.start,
        is_last=message.last,
        sampling=None if message.start else sampling_of(message.sampling),
        num_generated=message.num_generated,
    )


@contextmanager
def _as_invalid(step: pb.Step) -> Iterator[None]:
    """Names the step in what the engine refuses of it."""
    try:
        yield
    except ValueError as error:
        raise InvalidSpec(f"step {step.sequence}", [str(error)]) from error


def shape_message(shape: StepShape) -> pb.Shape:
    """The wire's form of a step's work."""
    return pb.Shape(
        tokens=int(shape.tokens),
        decode_queries=int(shape.decode_queries),
        decode_context=int(shape.decode_context),
        encode_chunks=int(shape.encode_chunks),
        encode_pairs=shape.encode_pairs,
        sampled=int(shape.sampled),
    )
