"""What goes into an iteration of the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from exegpt_planner.profile_table import StepShape
from exegpt_runner.layers.batch import Batch
from exegpt_runner.pool import Encoded
from exegpt_runner.sampler import Ints, Sampling

Finish = Literal["none", "stop", "length"]

NOTHING = StepShape(
    tokens=0, decode_queries=0, decode_context=0, encode_chunks=0, encode_pairs=0, sampled=0
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodeChunk:
    """A run of one prompt's tokens. A query's chunks come in order; the last one samples its next token."""

    query: int
    tokens: Ints | Tensor  # (t,)
    start: int = 0  # position of the first token
    is_last: bool = True
    sampling: Sampling | None = None  # on the first chunk
    num_generated: int = 0  # output tokens among the prompt's, on the first chunk


class LayerSink(Protocol):
    """Where the KV of queries that leave goes, a layer at a time."""

    def layer(self, index: int, kv: Tensor) -> None:
        """Takes a layer's keys and values of all of them, one after another: (2, G, T, D), its own copy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Departure:
    """Queries whose prompts this iteration encodes to their end and that another worker decodes."""

    queries: frozenset[int]
    open: Callable[[Sequence[int], Sequence[int]], LayerSink]  # those that go, and their KV tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A query that another worker has encoded. `kv` gives a layer's keys and values, (2, G, length, D)."""

    encoded: Encoded
    kv: Callable[[int], Tensor]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A query's next token, and why it ends with it."""

    query: int
    token: int
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one iteration did. Clocks cover the layers only; the caller times the whole."""

    tokens: tuple[SampledToken, ...]
    evicted: tuple[int, ...]  # youngest first
    shape: StepShape
    layers_cpu_s: float  # the process's
    layers_wall_s: float


def sampled_rows(batch: Batch, accepted: Sequence[EncodeChunk]) -> list[int]:
    """The rows whose next token is sampled: every decode query, and the last of each finished prompt."""
    last = [
        run.first + run.num_tokens - 1
        for run, chunk in zip(batch.chunks, accepted, strict=True)
        if chunk.is_last
    ]
    return [*range(len(batch.contexts)), *last]


def shape_of(batch: Batch, sampled: int) -> StepShape:
    """The work in an iteration."""
    return StepShape(
        tokens=len(batch.tokens),
        decode_queries=len(batch.contexts),
        decode_context=int(batch.contexts.sum()),
        encode_chunks=len(batch.chunks),
        encode_pairs=sum(run.pairs for run in batch.chunks),
        sampled=sampled,
    )
