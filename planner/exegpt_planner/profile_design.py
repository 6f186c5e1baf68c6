"""Which steps to time so that a profile predicts the steps of serving.

Steps of serving are ragged and mixed; profiles of neat grids or of the same step again and again are 5-14 % off. So
the design is a random sequence of ragged steps (decode only, encode only, both), sizes log-uniform over what must be
covered, every fifth held out of the fit to measure its error. The first ones stand at the corners, so that coverage
is real. The sequence depends on coverage and seed alone: an interrupted profile continues it, a shorter one is a
fair sample of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from exegpt_planner.profile_table import StepShape

HELD_OUT_EVERY = 5
SKEW = 1.5  # towards small encodes: the largest ones would take most of a profile's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The largest steps a profile must speak about."""

    decode_queries: int  # decode queries of one step
    context: int  # KV tokens of one query
    encode_tokens: int  # prompt tokens encoded in one step
    encode_chunks: int  # chunks they come in
    kv_tokens: int  # KV tokens of all queries of a step

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 1 or self.kv_tokens < self.context:
            raise ValueError(f"coverage must be positive and hold one whole query: {self}")

    @property
    def largest(self) -> StepShape:
        """The upper end of every sum: the last knots of the table."""
        return StepShape(
            tokens=self.decode_queries + self.encode_tokens,
            decode_queries=self.decode_queries,
            decode_context=self.kv_tokens,
            encode_chunks=self.encode_chunks,
            encode_pairs=self.encode_tokens * self.context,
            sampled=self.decode_queries + self.encode_chunks,
        )

    def holds(self, other: Coverage) -> bool:
        """Whether `other` asks for no more than this."""
        mine, theirs = asdict(self), asdict(other)
        return all(mine[name] >= theirs[name] for name in mine)

    def includes(self, step: DesignedStep) -> bool:
        """Whether `step` is no larger than what this covers."""
        decoded = [context + 1 for context in step.decode_contexts]
        encoded = [s + t for s, t in zip(step.chunk_starts, step.chunk_tokens, strict=True)]
        return (
            len(decoded) <= self.decode_queries
            and len(encoded) <= self.encode_chunks
            and sum(step.chunk_tokens) <= self.encode_tokens
            and max([*decoded, *encoded]) <= self.context
            and sum(decoded) + sum(encoded) <= self.kv_tokens
        )

    def grown(self, needed: Coverage) -> Coverage:
        """This coverage with each size doubled until it holds `needed`."""
        mine, theirs = asdict(self), asdict(needed)
        doublings = {name: max(0, math.ceil(math.log2(theirs[name] / mine[name]))) for name in mine}
        return Coverage(**{name: mine[name] << doublings[name] for name in mine})


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignedStep:
    """One step to time. Lengths are in tokens."""

    id: int
    held_out: bool
    decode_contexts: tuple[int, ...]  # KV tokens each decode query already holds
    chunk_starts: tuple[int, ...]
    chunk_tokens: tuple[int, ...]
    sample_chunks: bool

    @property
    def size(self) -> int:
        """A rough measure of its duration: packed tokens."""
        return len(self.decode_contexts) + sum(self.chunk_tokens)


def design(coverage: Coverage, *, seed: int, num_steps: int) -> list[DesignedStep]:
    """The first `num_steps` steps of the sequence: corners, then random steps."""
    rng = np.random.default_rng(seed)
    sizes = _stratified(rng, num_steps, dimensions=4)
    steps = list(_corners(coverage, rng))
    while len(steps) < num_steps:
        index = len(steps)
        kind = rng.choice(["decode", "encode", "mixed"], p=[0.5, 0.2, 0.3])
        room = coverage.kv_tokens
        starts: tuple[int, ...] = ()
        tokens: tuple[int, ...] = ()
        if kind != "decode":
            starts, tokens = _chunks(coverage, sizes[index, 2:], rng)
            room -= sum(starts) + sum(tokens)
        contexts: tuple[int, ...] = ()
        if kind == "decode" or (kind == "mixed" and room >= 2):
            contexts = _contexts(coverage, sizes[index, :2], room, rng)
        steps.append(
            DesignedStep(
                id=index,
                held_out=index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1,
                decode_contexts=contexts,
                chunk_starts=starts,
                chunk_tokens=tokens,
                sample_chunks=bool(rng.random() < 0.75),
            )
        )
    return steps[:num_steps]


def _corners(coverage: Coverage, rng: np.random.Generator) -> Iterator[DesignedStep]:
    """Steps at the ends of the curves; none is held out."""
    most = np.array([1.0, 1.0])
    few = np.array([0.0, 1.0])
    starts, tokens = _chunks(coverage, np.array([1.0, 1.0]), rng)
    single_start, single = _chunks(coverage, np.array([0.0, 0.0]), rng)
    corners = [
        (_contexts(coverage, most, coverage.kv_tokens, rng), (), ()),
        (_contexts(coverage, np.array([1.0, 0.0]), coverage.kv_tokens, rng), (), ()),
        (_contexts(coverage, few, coverage.kv_tokens, rng), (), ()),
        (_contexts(coverage, np.array([0.0, 0.0]), coverage.kv_tokens, rng), (), ()),
        ((), starts, tokens),
        ((), single_start, single),
    ]
    for index, (contexts, chunk_starts, chunk_tokens) in enumerate(corners):
        yield DesignedStep(
            id=index,
            held_out=False,
            decode_contexts=contexts,
            chunk_starts=chunk_starts,
            chunk_tokens=chunk_tokens,
            sample_chunks=True,
        )


def _contexts(
    coverage: Coverage, size: np.ndarray, room: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """Ragged contexts of decode queries that, with their new tokens, fit `room` KV tokens."""
    n = min(_log_between(size[0], 1, coverage.decode_queries), room // 2)
    highest = coverage.context - 1
    mean = min(_log_between(size[1], 1, max(1, highest)), room // n - 1)
    spread = min(mean, max(0, highest - mean))
    drawn = rng.integers(mean - spread, mean + spread, size=n, endpoint=True)
    contexts = np.clip(drawn, 1, max(1, highest))
    excess = int(contexts.sum()) + n - room
    if excess > 0:
        contexts = np.maximum(1, contexts * (room - n) // int(contexts.sum()))
    return tuple(int(context) for context in contexts)


def _chunks(
    coverage: Coverage, size: np.ndarray, rng: np.random.Generator
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Starts and tokens of ragged chunks; half of the steps hold only chunks that start a prompt."""
    most = min(coverage.encode_tokens, coverage.kv_tokens)
    num = min(_log_between(size[1], 1, coverage.encode_chunks), most)
    total = min(_log_between(size[0] ** SKEW, num, most), num * coverage.context)
    tokens = _split(total, num, coverage.context, rng)
    starts = np.zeros(num, dtype=np.int64)
    if rng.random() < 0.5:
        starts = rng.integers(0, coverage.context - tokens, endpoint=True)
        room = coverage.kv_tokens - total
        if starts.sum() > room:
            starts = starts * room // int(starts.sum())
    return tuple(int(start) for start in starts), tuple(int(token) for token in tokens)


def _split(total: int, num: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """`total` tokens in `num` ragged parts of 1 to `most` each."""
    shares = rng.dirichlet(np.full(num, 4.0))  # spread of prompt lengths about half their mean
    parts = np.clip(1 + np.floor(shares * (total - num)).astype(np.int64), 1, most)
    for index in np.argsort(parts):  # the rest goes where there is room, shortest first
        parts[index] += min(total - int(parts.sum()), most - int(parts[index]))
    return parts


def _log_between(u: float, low: int, high: int) -> int:
    """The size at share `u` between `low` and `high` on a logarithmic scale."""
    return round(low * (high / low) ** u) if high > low else high


def _stratified(rng: np.random.Generator, num: int, *, dimensions: int) -> np.ndarray:
    """Points of the unit cube, evenly spread in every dimension (a Latin hypercube), in random order."""
    columns = [(rng.permutation(num) + rng.random(num)) / num for _ in range(dimensions)]
    return np.stack(columns, axis=1)
