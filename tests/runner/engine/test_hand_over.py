"""Queries encoded by one engine and decoded by another give the tokens of one engine alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from engine_oracle import Oracle
from exegpt_runner.engine import Arrival, Departure, EncodeChunk, Engine, Sampling
from exegpt_runner.pool import Encoded

PROMPTS = {1: 5, 2: 64, 3: 90, 4: 1}  # query: tokens
OUTPUT = 20


@dataclass
class Way:
    """Keeps what leaves, a layer at a time, as a transfer would carry it."""

    queries: Sequence[int] = ()
    lengths: Sequence[int] = ()
    layers: list[torch.Tensor] = field(default_factory=list)

    def open(self, queries: Sequence[int], lengths: Sequence[int]) -> Way:
        self.queries, self.lengths = queries, lengths
        return self

    def layer(self, index: int, kv: torch.Tensor) -> None:
        assert index == len(self.layers)
        self.layers.append(kv)

    def arrival(self, query: int, token: int) -> Arrival:
        at = self.queries.index(query)
        start, length = sum(self.lengths[:at]), self.lengths[at]
        return Arrival(
            encoded=Encoded(
                query=query,
                sampling=Sampling(max_tokens=OUTPUT),
                length=length,
                num_generated=1,
                token=token,
            ),
            kv=lambda layer: self.layers[layer][:, :, start : start + length],
        )


def prompt_of(query: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(query).integers(3, 97, PROMPTS[query]).tolist()
    return tokens


def encode(
    engine: Engine, queries: Sequence[int], *, decode: bool = False
) -> tuple[Way, dict[int, int]]:
    """Encodes `queries`, which leave; returns their way and first tokens."""
    way = Way()
    result = engine.iterate(
        [
            EncodeChunk(
                query=q, tokens=np.array(prompt_of(q)), sampling=Sampling(max_tokens=OUTPUT)
            )
            for q in queries
        ],
        decode=decode,
        departures=[Departure(queries=frozenset(queries), open=way.open)],
    )
    return way, {each.query: each.token for each in result.tokens}


def decode_all(engine: Engine, outputs: dict[int, list[int]]) -> None:
    while engine.decoding:
        for token in engine.iterate([], decode=True).tokens:
            outputs[token.query].append(token.token)


@pytest.mark.parametrize("variant", ["grouped", "opt", "qwen3"])
def test_queries_decoded_elsewhere_equal_transformers(
    variant: str, oracle_of: Callable[[str], Oracle]
) -> None:
    oracle = oracle_of(variant)
    encoder, decoder = Engine(oracle.model, 512), Engine(oracle.model, 512)
    way, first = encode(encoder, list(PROMPTS))
    assert encoder.active == 0
    assert encoder.kv_tokens == 0
    assert decoder.join([way.arrival(q, first[q]) for q in PROMPTS]) == ()
    outputs = {q: [first[q]] for q in PROMPTS}
    decode_all(decoder, outputs)
    assert outputs == {q: oracle.greedy(prompt_of(q), OUTPUT) for q in PROMPTS}


def test_a_decode_of_others_rides_on_an_encode_that_leaves(oracle: Oracle) -> None:
    encoder, decoder = Engine(oracle.model, 512), Engine(oracle.model, 512)
    stays = encoder.iterate(
        [EncodeChunk(query=9, tokens=np.array(prompt_of(2)), sampling=Sampling(max_tokens=OUTPUT))],
        decode=False,
    )
    way, tokens = encode(encoder, [1, 3], decode=True)
    decoder.join([way.arrival(q, tokens[q]) for q in (1, 3)])
    outputs = {9: [stays.tokens[0].token, tokens[9]], 1: [tokens[1]], 3: [tokens[3]]}
    decode_all(encoder, outputs)
    decode_all(decoder, outputs)
    assert outputs[9] == oracle.greedy(prompt_of(2), OUTPUT)
    assert [outputs[q] for q in (1, 3)] == [oracle.greedy(prompt_of(q), OUTPUT) for q in (1, 3)]


def test_what_does_not_fit_on_arrival_is_evicted_youngest_first(oracle: Oracle) -> None:
    encoder, decoder = Engine(oracle.model, 512), Engine(oracle.model, 192)
    way, first = encode(encoder, [1, 2, 3, 4])  # extents of 64, 64, 128 and 64 tokens
    assert decoder.join([way.arrival(q, first[q]) for q in (2, 3)]) == ()
    assert decoder.join([way.arrival(q, first[q]) for q in (1, 4)]) == (4, 3)
    assert decoder.decoding == 2


def test_only_whole_prompts_leave(oracle: Oracle) -> None:
    engine = Engine(oracle.model, 512)
    chunk = EncodeChunk(
        query=1, tokens=np.array(prompt_of(1)), is_last=False, sampling=Sampling(max_tokens=1)
    )
    with pytest.raises(ValueError, match=r"\[1\] leave before their prompts are encoded"):
        engine.iterate(
            [chunk], decode=False, departures=[Departure(queries=frozenset([1]), open=Way().open)]
        )


def test_a_query_that_is_here_cannot_arrive(oracle: Oracle) -> None:
    engine = Engine(oracle.model, 512)
    way, first = encode(Engine(oracle.model, 512), [1])
    engine.join([way.arrival(1, first[1])])
    with pytest.raises(ValueError, match="query 1 arrives while it holds KV"):
        engine.join([way.arrival(1, first[1])])
