"""One step of the wire as iterations of the engine, each answered by one message.

Drops take effect between iterations, also inside a step. Chunks that follow a drop or an eviction of their query are
skipped by the engine; chunks out of order are the conductor's error and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.profile_table import StepShape
from exegpt_runner.clocks import CalibrationKernel, Instant, StepClock
from exegpt_runner.engine import EncodeChunk, Engine, Iteration, Sampling
from exegpt_runner.inbox import Inbox, remove_chunks
from exegpt_wire import worker_pb2 as pb

_FINISH = {"none": pb.NONE, "stop": pb.STOP, "length": pb.LENGTH}


class StepRunner:
    """Runs the steps of one stream on an engine that nobody else touches meanwhile."""

    def __init__(self, engine: Engine, kernel: CalibrationKernel, calibrate_every_s: float) -> None:
        self._engine = engine
        self._kernel = kernel
        self._calibrate_every_s = calibrate_every_s
        self._clock = StepClock()

    def next_step(self, inbox: Inbox) -> pb.Step | None:
        """The next step, waited for off the clock; None when the stream is over."""
        self._calibrate()
        begin = Instant.now()
        step = inbox.next_step()
        self._clock.pause(begin)
        return step

    def run(
        self, step: pb.Step, take_drops: Callable[[], Sequence[int]]
    ) -> Iterator[pb.IterationResult]:
        """The step's iterations; the last one, which may be empty, is marked."""
        drops = take_drops()
        self._engine.drop(drops)
        remove_chunks(step, drops)
        chunks = [_chunk(chunk) for chunk in step.chunks]
        remaining = step.decode_iterations
        is_last = False
        while not is_last:
            self._calibrate()
            if not chunks:
                self._engine.drop(take_drops())
                if not remaining or not self._engine.decoding:
                    yield self._empty(step)
                    return
                remaining -= 1
            decode = step.decode_with_chunks if chunks else True
            result = self._iterate(step, chunks, decode=decode)
            chunks = []
            is_last = not remaining or not self._engine.decoding
            result.last = is_last
            yield result

    def _iterate(
        self, step: pb.Step, chunks: Sequence[EncodeChunk], *, decode: bool
    ) -> pb.IterationResult:
        start = Instant.now()
        try:
            iteration = self._engine.iterate(chunks, decode=decode, retain_ended=step.retain_ended)
        except ValueError as error:
            raise InvalidSpec(f"step {step.sequence}", [str(error)]) from error
        end_s = Instant.now().wall_s
        result = self._result(step, iteration)
        wall_s, cpu_s = self._clock.lap()
        clocks = result.clocks
        clocks.wall_s, clocks.cpu_s, clocks.kernel_s = wall_s, cpu_s, self._kernel.latest_s
        clocks.start_s = start.wall_s
        clocks.between_s = max(0.0, wall_s - (end_s - start.wall_s))
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

    def _empty(self, step: pb.Step) -> pb.IterationResult:
        return pb.IterationResult(
            sequence=step.sequence,
            last=True,
            active=self._engine.active,
            kv_tokens=self._engine.kv_tokens,
            clocks=pb.Clocks(kernel_s=self._kernel.latest_s, start_s=Instant.now().wall_s),
        )

    def _calibrate(self) -> None:
        if self._kernel.is_due(self._calibrate_every_s):
            begin = Instant.now()
            self._kernel.run()
            self._clock.pause(begin)


def _chunk(message: pb.Chunk) -> EncodeChunk:
    return EncodeChunk(
        query=message.query,
        tokens=np.array(message.tokens, np.int64),
        start=message.start,
        is_last=message.last,
        sampling=None if message.start else _sampling(message.sampling),
        num_generated=message.num_generated,
    )


def _sampling(message: pb.Sampling) -> Sampling:
    return Sampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        seed=message.seed,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        end_tokens=tuple(message.end_tokens),
    )


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
