"""The steps a profile times: within what is to be covered, ragged, mixed, and the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exegpt_planner.profile_design import HELD_OUT_EVERY, Coverage, DesignedStep, design

COVERAGE = Coverage(
    decode_queries=64, context=600, encode_tokens=4096, encode_chunks=32, kv_tokens=32_000
)


def _check_within(step: DesignedStep, coverage: Coverage) -> None:
    decoded = [context + 1 for context in step.decode_contexts]
    encoded = [s + t for s, t in zip(step.chunk_starts, step.chunk_tokens, strict=True)]
    assert decoded or encoded
    assert len(decoded) <= coverage.decode_queries
    assert len(encoded) <= coverage.encode_chunks
    assert sum(step.chunk_tokens) <= coverage.encode_tokens
    assert sum(decoded) + sum(encoded) <= coverage.kv_tokens
    assert min([1, *step.decode_contexts, *step.chunk_tokens]) == 1
    assert min([0, *step.chunk_starts]) == 0
    if coverage.context > 1:
        assert max([0, *decoded, *encoded]) <= coverage.context


@given(
    decode_queries=st.integers(1, 200),
    context=st.integers(2, 3000),
    encode_tokens=st.integers(1, 5000),
    encode_chunks=st.integers(1, 64),
    room=st.integers(0, 100_000),
    seed=st.integers(0, 2**32),
)
def test_every_step_lies_within_the_coverage(seed: int, room: int, **sizes: int) -> None:
    coverage = Coverage(kv_tokens=sizes["context"] + room, **sizes)
    for step in design(coverage, seed=seed, num_steps=30):
        _check_within(step, coverage)
        assert coverage.includes(step)


def test_the_same_seed_gives_the_same_steps_with_ids_in_order() -> None:
    steps = design(COVERAGE, seed=3, num_steps=50)
    assert steps == design(COVERAGE, seed=3, num_steps=50)
    assert steps != design(COVERAGE, seed=4, num_steps=50)
    assert [step.id for step in steps] == list(range(50))


def test_decodes_encodes_and_mixtures_are_interleaved_and_held_out_alike() -> None:
    steps = design(COVERAGE, seed=1, num_steps=240)
    for held_out in (False, True):
        kinds = {
            (bool(s.decode_contexts), bool(s.chunk_tokens)) for s in steps if s.held_out == held_out
        }
        assert kinds == {(True, False), (False, True), (True, True)}
    assert sum(step.held_out for step in steps) == pytest.approx(240 / HELD_OUT_EVERY, abs=2)


def test_steps_are_ragged_and_some_chunks_continue_a_prompt() -> None:
    steps = design(COVERAGE, seed=1, num_steps=240)
    contexts = [s.decode_contexts for s in steps if len(s.decode_contexts) > 8]
    assert np.mean([len(set(c)) / len(c) for c in contexts]) > 0.5
    chunked = [s for s in steps if s.chunk_tokens]
    continuing = [s for s in chunked if any(s.chunk_starts)]
    assert 0.3 < len(continuing) / len(chunked) < 0.7


def test_the_first_steps_reach_the_corners() -> None:
    steps = design(COVERAGE, seed=1, num_steps=6)
    largest = COVERAGE.largest
    assert max(len(s.decode_contexts) for s in steps) == largest.decode_queries
    held = max(sum(s.decode_contexts) + len(s.decode_contexts) for s in steps)
    assert held > 0.97 * largest.decode_context
    assert max(sum(s.chunk_tokens) for s in steps) == COVERAGE.encode_tokens
    assert max(len(s.chunk_tokens) for s in steps) == COVERAGE.encode_chunks
    assert not any(step.held_out for step in steps)


def test_sizes_are_spread_evenly_on_a_logarithmic_scale() -> None:
    steps = design(COVERAGE, seed=1, num_steps=240)
    sizes = [len(s.decode_contexts) for s in steps if s.decode_contexts and not s.chunk_tokens]
    shares = np.histogram(np.log2(sizes), bins=[0, 1.5, 3, 4.5, 6.01])[0] / len(sizes)
    assert shares.min() > 0.15


def test_growing_doubles_only_the_sizes_that_are_too_small() -> None:
    needed = Coverage(
        decode_queries=65, context=500, encode_tokens=20_000, encode_chunks=32, kv_tokens=32_000
    )
    grown = COVERAGE.grown(needed)
    assert grown.holds(needed)
    assert grown.holds(COVERAGE)
    assert (grown.decode_queries, grown.encode_tokens) == (128, 32_768)
    assert (grown.context, grown.encode_chunks, grown.kv_tokens) == (600, 32, 32_000)


def test_coverage_includes_what_is_no_larger() -> None:
    step = design(COVERAGE, seed=1, num_steps=1)[0]  # all queries, all KV
    assert COVERAGE.includes(step)
    assert not replace(COVERAGE, decode_queries=63).includes(step)
    assert not replace(COVERAGE, kv_tokens=20_000).includes(step)


def test_coverage_that_cannot_hold_one_query_is_refused() -> None:
    with pytest.raises(ValueError, match="one whole query"):
        Coverage(decode_queries=1, context=10, encode_tokens=1, encode_chunks=1, kv_tokens=9)


def test_pairs_of_any_designed_step_stay_below_the_last_knot() -> None:
    for step in design(COVERAGE, seed=5, num_steps=240):
        pairs = math.fsum(
            t * (s + (t + 1) / 2) for s, t in zip(step.chunk_starts, step.chunk_tokens, strict=True)
        )
        assert pairs <= COVERAGE.largest.encode_pairs
