"""Times single steps of given shapes on the real engine, in the process that will serve.

Each step runs the whole model, so every layer brings its own weights from memory as it does in serving, on queries
whose KV was made up. The conductor of the measurement (the profiler) chooses shapes, order and repetitions; here
nothing is averaged or left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from exegpt_planner.errors import InvalidSpec
from exegpt_runner.clocks import CalibrationKernel, Instant
from exegpt_runner.engine import EncodeChunk, Engine, Sampling
from exegpt_runner.steps import shape_message
from exegpt_wire import worker_pb2 as pb

CALIBRATE_EVERY_S = (
    0.05  # before nearly every step: neighbours come and go within a tenth of a second
)
_ENDLESS = Sampling(max_tokens=1 << 62, ignore_eos=True)


def measure(
    request: pb.MeasureRequest, engine: Engine, kernel: CalibrationKernel
) -> Iterator[pb.Measurement]:
    """One measurement for each shape, in order; the first shape also serves to warm up."""
    generator = torch.Generator().manual_seed(request.seed & (2**63 - 1))
    for shape in request.shapes[:1]:
        for _ in range(request.warm_up):
            _time(shape, engine, generator)
    kernel.run()
    for shape in request.shapes:
        if kernel.is_due(CALIBRATE_EVERY_S):
            kernel.run()
        measurement = _time(shape, engine, generator)
        measurement.clocks.kernel_s = kernel.latest_s
        yield measurement


def _time(shape: pb.MeasuredShape, engine: Engine, generator: torch.Generator) -> pb.Measurement:
    _check(shape, engine)
    try:
        chunks = _queries(shape, engine, generator)
    except ValueError as error:
        raise InvalidSpec(f"shape {shape.id}", [str(error)]) from error
    start = Instant.now()
    iteration = engine.iterate(chunks, decode=bool(shape.decode_contexts))
    end = Instant.now()
    engine.reset()
    return pb.Measurement(
        id=shape.id,
        shape=shape_message(iteration.shape),
        clocks=pb.Clocks(
            wall_s=end.wall_s - start.wall_s,
            cpu_s=end.cpu_s - start.cpu_s,
            start_s=start.wall_s,
        ),
        layers_cpu_s=iteration.layers_cpu_s,
        layers_wall_s=iteration.layers_wall_s,
    )


def _queries(
    shape: pb.MeasuredShape, engine: Engine, generator: torch.Generator
) -> list[EncodeChunk]:
    """Makes up the decode queries and the KV before the chunks; returns the chunks."""
    decoding = engine.fabricate(list(shape.decode_contexts))
    encoding = engine.fabricate([s for s in shape.chunk_starts if s], is_encoded=False)
    begun, first_id = iter(encoding), max([0, *decoding, *encoding]) + 1
    return [
        EncodeChunk(
            query=next(begun) if start else first_id + index,
            tokens=torch.randint(engine.model.spec.vocab, (num_tokens,), generator=generator),
            start=start,
            is_last=shape.sample_chunks,
            sampling=None if start else _ENDLESS,
        )
        for index, (start, num_tokens) in enumerate(
            zip(shape.chunk_starts, shape.chunk_tokens, strict=True)
        )
    ]


def _check(shape: pb.MeasuredShape, engine: Engine) -> None:
    problems = []
    if len(shape.chunk_starts) != len(shape.chunk_tokens):
        problems.append("chunk_starts and chunk_tokens differ in number")
    if not shape.decode_contexts and not shape.chunk_tokens:
        problems.append("no decode query and no chunk")
    if min([1, *shape.decode_contexts, *shape.chunk_tokens]) < 1:
        problems.append("contexts and chunks hold at least one token")
    if _longest(shape) > engine.context:
        problems.append(f"a query of {_longest(shape)} tokens; the context is {engine.context}")
    if problems:
        raise InvalidSpec(f"shape {shape.id}", problems)


def _longest(shape: pb.MeasuredShape) -> int:
    decoded: Sequence[int] = [context + 1 for context in shape.decode_contexts]
    encoded = [s + t for s, t in zip(shape.chunk_starts, shape.chunk_tokens, strict=False)]
    return max([*decoded, *encoded], default=0)
