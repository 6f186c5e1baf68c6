"""A step costs the sum of its tokens and contexts, whatever their mix: operations are counted, not timed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from engine_oracle import Oracle
from exegpt_runner.engine import EncodeChunk, Engine, Sampling


def operations(engine: Engine, chunks: Sequence[EncodeChunk], *, decode: bool) -> int:
    with FlopCounterMode(display=False) as counter:
        engine.iterate(chunks, decode=decode)
    return int(counter.get_total_flops())


def expected(oracle: Oracle, *, tokens: int, pairs: int, sampled: int) -> int:
    """Twice the multiply-adds: matrices by token, query times key and weight times value by pair, the head."""
    spec = oracle.model.spec
    matrices = 2 * spec.hidden * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    matrices += 3 * spec.hidden * spec.ffn
    by_pair = 2 * spec.num_heads * spec.head_dim
    head = spec.hidden * spec.vocab
    return 2 * (spec.num_layers * (tokens * matrices + pairs * by_pair) + sampled * head)


@pytest.mark.parametrize("contexts", [(9,), (1, 500), (10, 20, 400, 3), (100,) * 8])
def test_decoding_costs_the_sum_of_contexts(oracle: Oracle, contexts: tuple[int, ...]) -> None:
    engine = Engine(oracle.model, 2048)
    engine.fabricate(contexts)
    pairs = sum(contexts) + len(contexts)
    counted = operations(engine, [], decode=True)
    assert counted == expected(oracle, tokens=len(contexts), pairs=pairs, sampled=len(contexts))


def test_a_mixed_step_costs_the_sum_of_its_parts(oracle: Oracle) -> None:
    engine = Engine(oracle.model, 2048)
    decoding = engine.fabricate([7, 300])
    started = engine.fabricate([50], is_encoded=False)
    chunks = [
        EncodeChunk(query=100, tokens=np.full(40, 5), sampling=Sampling()),
        EncodeChunk(query=started[0], tokens=np.full(10, 5), start=50, is_last=False),
    ]
    # The counter takes the masked upper half of a chunk's own square as computed too.
    pairs = 8 + 301 + 40 * 40 + 10 * 60
    counted = operations(engine, chunks, decode=True)
    assert counted == expected(oracle, tokens=52, pairs=pairs, sampled=3)
    assert decoding == [0, 1]


def test_the_reported_shape_is_what_was_computed(oracle: Oracle) -> None:
    engine = Engine(oracle.model, 2048)
    engine.fabricate([7, 300])
    (started,) = engine.fabricate([50], is_encoded=False)
    chunks = [
        EncodeChunk(query=100, tokens=np.full(40, 5), sampling=Sampling()),
        EncodeChunk(query=started, tokens=np.full(10, 5), start=50, is_last=False),
    ]
    result = engine.iterate(chunks, decode=True)
    shape = result.shape
    assert (shape.tokens, shape.decode_queries, shape.decode_context) == (52, 2, 8 + 301)
    assert (shape.encode_chunks, shape.sampled) == (2, 3)
    assert shape.encode_pairs == sum(range(1, 41)) + sum(range(51, 61))
    assert {token.query for token in result.tokens} == {0, 1, 100}
    assert result.layers_wall_s > 0
    assert engine.active == 4
    assert engine.kv_tokens == 64 + 320 + 64 + 64
    engine.reset()
    assert (engine.active, engine.kv_tokens) == (0, 0)


def test_a_query_alone_decodes_over_its_input_and_its_output_so_far(oracle: Oracle) -> None:
    engine = Engine(oracle.model, 2048)
    sampling = Sampling(max_tokens=4)
    engine.iterate([EncodeChunk(query=1, tokens=np.full(20, 5), sampling=sampling)], decode=True)
    contexts = [engine.iterate([], decode=True).shape.decode_context for _ in range(3)]
    assert contexts == [21, 22, 23]  # I + j
    assert engine.active == 0
    assert engine.iterate([], decode=True).shape.tokens == 0
