"""Greedy tokens in float64 equal those of transformers, whatever else is in the batch and however prompts are cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_driver import Driver
from engine_oracle import VARIANTS, Oracle
from exegpt_runner.engine import EncodeChunk, Engine, Sampling

LENGTHS = ((3, 12), (40, 30), (17, 1), (90, 25), (1, 40), (64, 20))  # prompt, output


def prompts_of(lengths: tuple[tuple[int, int], ...], seed: int = 1) -> dict[int, list[int]]:
    rng = np.random.default_rng(seed)
    return {i: rng.integers(3, 97, size).tolist() for i, (size, _) in enumerate(lengths, start=1)}


def driver(
    oracle: Oracle, kv_tokens: int, lengths: tuple[tuple[int, int], ...] = LENGTHS
) -> Driver:
    samplings = {i: Sampling(max_tokens=size) for i, (_, size) in enumerate(lengths, start=1)}
    return Driver(Engine(oracle.model, kv_tokens), prompts_of(lengths), samplings)


def assert_equal(driver: Driver, oracle: Oracle) -> None:
    for query, prompt in driver.prompts.items():
        expected = oracle.greedy(prompt, driver.samplings[query].max_tokens)
        assert driver.outputs[query] == expected, f"query {query}"
    assert driver.engine.active == 0
    assert driver.engine.kv_tokens == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_batch_equals_transformers(variant: str, oracle_of: Callable[[str], Oracle]) -> None:
    oracle = oracle_of(variant)
    full = driver(oracle, 2048)
    full.finish(encode_queries=6)
    assert_equal(full, oracle)


def test_a_query_alone_equals_transformers(oracle: Oracle) -> None:
    one_by_one = driver(oracle, 512)
    one_by_one.finish(decode_iterations=100)
    assert_equal(one_by_one, oracle)


@pytest.mark.parametrize("decode_iterations", [1, 3, 7])
def test_rra_phases_equal_transformers(oracle: Oracle, decode_iterations: int) -> None:
    phases = driver(oracle, 2048)
    phases.finish(decode_iterations=decode_iterations, encode_queries=2)
    assert_equal(phases, oracle)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_chunks_riding_on_decode_iterations_equal_transformers(oracle: Oracle, chunk: int) -> None:
    refilled = driver(oracle, 2048)
    while len(refilled.finishes) < len(LENGTHS):
        refilled.step(dict.fromkeys(refilled.waiting[:1], chunk), decode=True)
    assert_equal(refilled, oracle)


def test_evicted_queries_encoded_again_equal_transformers(oracle: Oracle) -> None:
    crowded = driver(oracle, 256)
    crowded.finish(encode_queries=6)
    assert crowded.evictions > 0
    assert_equal(crowded, oracle)


def test_retained_queries_are_computed_but_not_reported(oracle: Oracle) -> None:
    static = driver(oracle, 2048)
    static.step(dict.fromkeys(static.waiting, 1000), decode=False, retain_ended=True)
    while static.engine.active:
        result = static.step({}, decode=True, retain_ended=True)
        assert result.shape.decode_queries == len(LENGTHS)
    assert_equal(static, oracle)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[dict[int, int], bool]]:
    """Any mix: which waiting queries (by rank) get how many tokens, and whether the pool decodes."""
    encode = st.dictionaries(st.integers(0, 5), st.integers(1, 100), max_size=3)
    return draw(st.lists(st.tuples(encode, st.booleans()), max_size=40))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=steps(), kv_granules=st.integers(3, 12))
def test_any_sequence_of_steps_equals_transformers(
    oracle: Oracle, plan: list[tuple[dict[int, int], bool]], kv_granules: int
) -> None:
    mixed = driver(oracle, kv_granules * 64)
    for encode, decode in plan:
        waiting = mixed.waiting
        sizes = {waiting[rank]: size for rank, size in encode.items() if rank < len(waiting)}
        mixed.step(dict(sorted(sizes.items())), decode=decode)
    mixed.finish(decode_iterations=5)
    assert_equal(mixed, oracle)


def test_a_query_ends_at_an_end_token_unless_ignored(oracle: Oracle) -> None:
    prompt = prompts_of(LENGTHS)[2]
    tokens = oracle.greedy(prompt, 30)
    end = tokens[7]
    first = tokens.index(end)
    for ignored, expected in ((False, tokens[: first + 1]), (True, tokens)):
        sampling = Sampling(max_tokens=30, end_tokens=(96, end), ignore_eos=ignored)
        single = Driver(Engine(oracle.model, 512), {1: prompt}, {1: sampling})
        single.finish()
        assert single.outputs[1] == expected
        assert single.finishes[1] == ("length" if ignored else "stop")


def test_a_query_ends_at_the_context(oracle: Oracle) -> None:
    prompt = prompts_of(((500, 1),))[1]
    full = Driver(Engine(oracle.model, 1024), {1: prompt}, {1: Sampling(max_tokens=100)})
    full.finish()
    assert full.outputs[1] == oracle.greedy(prompt, 12)  # 500 + 12 = the context
    assert full.finishes[1] == "length"


def test_a_lone_query_that_fills_the_arena_ends_there(oracle: Oracle) -> None:
    prompt = prompts_of(((60, 1),))[1]
    full = Driver(Engine(oracle.model, 128), {1: prompt}, {1: Sampling(max_tokens=1000)})
    full.finish()
    assert full.outputs[1] == oracle.greedy(prompt, 68)
    assert full.finishes[1] == "length"


def test_chunks_of_a_query_dropped_meanwhile_are_skipped(oracle: Oracle) -> None:
    engine = Engine(oracle.model, 512)
    tokens = np.arange(3, 13)
    first = EncodeChunk(query=1, tokens=tokens, is_last=False, sampling=Sampling())
    engine.iterate([first], decode=False)
    engine.drop([1, 99])
    late = EncodeChunk(query=1, tokens=tokens, start=10)
    result = engine.iterate([late], decode=True)
    assert result.shape.tokens == 0
    assert result.tokens == ()


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (EncodeChunk(query=2, tokens=np.arange(3), start=4), "10 tokens are encoded"),
        (EncodeChunk(query=2, tokens=np.arange(3), sampling=Sampling()), "begun again"),
        (EncodeChunk(query=3, tokens=np.arange(3)), "no sampling"),
        (EncodeChunk(query=3, tokens=np.arange(0), sampling=Sampling()), "at least one token"),
        (EncodeChunk(query=3, tokens=np.full(513, 5), sampling=Sampling()), "context of 512"),
        (EncodeChunk(query=3, tokens=np.array([97]), sampling=Sampling()), "vocabulary of 97"),
    ],
)
def test_a_chunk_out_of_order_or_range_is_refused_before_anything_changes(
    oracle: Oracle, chunk: EncodeChunk, message: str
) -> None:
    engine = Engine(oracle.model, 1024)
    begun = EncodeChunk(query=2, tokens=np.arange(10), is_last=False, sampling=Sampling())
    engine.iterate([begun], decode=False)
    with pytest.raises(ValueError, match=message):
        engine.iterate([chunk], decode=True)
    rest = EncodeChunk(query=2, tokens=np.arange(3), start=10)
    assert len(engine.iterate([rest], decode=True).tokens) == 1
