"""Drives a bare engine the way a conductor would, encoding evicted queries again, so that tests can compare outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from exegpt_runner.engine import EncodeChunk, Engine, Iteration, Sampling


@dataclass
class Driver:
    """Queries given by prompt and sampling; `outputs` holds what they have produced so far."""

    engine: Engine
    prompts: Mapping[int, Sequence[int]]
    samplings: Mapping[int, Sampling]
    outputs: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    evictions: int = 0

    def __post_init__(self) -> None:
        self.outputs = {query: [] for query in self.prompts}
        self._encoded = dict.fromkeys(self.prompts, 0)
        self._in_pool: set[int] = set()

    @property
    def waiting(self) -> list[int]:
        """Queries whose prompt is not encoded to its end, oldest first."""
        return sorted(self.prompts.keys() - self._in_pool - self.finishes.keys())

    def step(
        self, encode: Mapping[int, int], *, decode: bool, retain_ended: bool = False
    ) -> Iteration:
        """One iteration that encodes so many tokens of each query in `encode`."""
        chunks = [self._chunk(query, size) for query, size in encode.items()]
        result = self.engine.iterate(chunks, decode=decode, retain_ended=retain_ended)
        self._in_pool |= {chunk.query for chunk in chunks if chunk.is_last}
        for token in result.tokens:
            assert token.query not in self.finishes, "a token after the end"
            self.outputs[token.query].append(token.token)
            if token.finish != "none":
                self.finishes[token.query] = token.finish
                self._in_pool.discard(token.query)
        for query in result.evicted:
            self.evictions += 1
            self._encoded[query] = 0
            self._in_pool.discard(query)
        return result

    def finish(self, *, decode_iterations: int = 1, encode_queries: int = 1) -> None:
        """Encodes and decodes in phases until every query has ended."""
        while len(self.finishes) < len(self.prompts):
            self.step(dict.fromkeys(self.waiting[:encode_queries], 10**6), decode=False)
            for _ in range(decode_iterations):
                self.step({}, decode=True)

    def _chunk(self, query: int, size: int) -> EncodeChunk:
        start, tokens = self._encoded[query], [*self.prompts[query], *self.outputs[query]]
        part = np.array(tokens[start : start + size], np.int64)
        self._encoded[query] = start + len(part)
        return EncodeChunk(
            query=query,
            tokens=part,
            start=start,
            is_last=start + len(part) == len(tokens),
            sampling=self.samplings[query] if start == 0 else None,
            num_generated=len(self.outputs[query]),
        )
