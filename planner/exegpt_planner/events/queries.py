"""Queries one by one: those that wait without end, those in decode, and the work of the steps that they are in.

An answer of L tokens takes D = L - 1 decode iterations, its encode having sampled the first token; at its t-th
iteration a query attends to its I input tokens and t more. A pool keeps the two sums that a step's time depends on, the
number of its queries and what they attend to, and who ends when; so an iteration costs no more than its completions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.profile_table import StepShape
from exegpt_planner.workload import Workload

Ints = NDArray[np.int64]
Draw = Callable[[int], tuple[Ints, Ints]]  # n -> input and output tokens of n queries

BLOCK = 4096  # queries drawn at a time


@dataclass(slots=True, kw_only=True, eq=False)
class Query:
    """One request and when what happened to it; times are nan until they are known."""

    input: int  # tokens
    output: int
    encode_start_s: float = math.nan
    first_token_s: float = math.nan
    finish_s: float = math.nan

    @property
    def latency_s(self) -> float:
        """From the start of its encode to its last token."""
        return self.finish_s - self.encode_start_s

    @property
    def iterations(self) -> int:
        """D, decode iterations."""
        return self.output - 1


class Backlog:
    """A saturated queue, first in, first out: there is always another query."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._waiting: deque[Query] = deque()

    @classmethod
    def of(cls, workload: Workload, rng: np.random.Generator) -> Backlog:
        """Queries of a workload, inputs and outputs drawn together."""
        return cls(lambda n: workload.sample(rng, n))

    def first(self, n: int) -> list[Query]:
        """The first `n` that wait, left where they are."""
        while len(self._waiting) < n:
            inputs, outputs = self._draw(max(BLOCK, n))
            self._waiting.extend(
                Query(input=i, output=o)
                for i, o in zip(inputs.tolist(), outputs.tolist(), strict=True)
            )
        return list(islice(self._waiting, n))

    def take(self, n: int) -> list[Query]:
        """The first `n`, which wait no more."""
        taken = self.first(n)
        for _ in taken:
            self._waiting.popleft()
        return taken


class Pool:
    """The queries of one micro-batch that are in decode."""

    def __init__(self) -> None:
        self.num = 0
        self.context = 0  # KV tokens that the next iteration attends to
        self._iteration = 0
        self._ending: dict[int, list[tuple[Query, int]]] = {}  # each with its context then

    def join(self, query: Query, iterations: int) -> None:
        """Adds a query that is computed for so many iterations, one at least, from the next one on."""
        self.num += 1
        self.context += query.input + 1
        left_context = query.input + iterations + 1
        self._ending.setdefault(self._iteration + iterations, []).append((query, left_context))

    def advance(self) -> list[Query]:
        """One iteration of everyone; those that end with it, and leave."""
        self._iteration += 1
        self.context += self.num
        ended = self._ending.pop(self._iteration, [])
        self.num -= len(ended)
        self.context -= sum(context for _, context in ended)
        return [query for query, _ in ended]


def deal(queries: Sequence[Query], parts: int) -> list[Sequence[Query]]:
    """The queries in so many parts of equal numbers, as nearly as can be."""
    edges = [len(queries) * part // parts for part in range(parts + 1)]
    return [queries[begin:end] for begin, end in pairwise(edges)]


def decode_shape(pool: Pool) -> StepShape:
    """The work of one iteration of a pool."""
    return StepShape(
        tokens=pool.num,
        decode_queries=pool.num,
        decode_context=pool.context,
        encode_chunks=0,
        encode_pairs=0,
        sampled=pool.num,
    )


def encode_shape(queries: Sequence[Query]) -> StepShape:
    """The work of encoding whole prompts."""
    return StepShape(
        tokens=sum(each.input for each in queries),
        decode_queries=0,
        decode_context=0,
        encode_chunks=len(queries),
        encode_pairs=sum(each.input * (each.input + 1) // 2 for each in queries),
        sampled=len(queries),
    )
