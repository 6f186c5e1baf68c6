"""The arena's extents never overlap, lose or mix up what they hold, however queries come, grow and go."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from exegpt_runner.kv_arena import GRANULE_TOKENS, KVArena, KVLayout, KVShape, round_up

CAPACITY = 10 * GRANULE_TOKENS
SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=1)


class ArenaMachine(RuleBasedStateMachine):
    """Each query's tokens are written as its id; a moved, grown or neighboured query must still hold it."""

    queries = Bundle("queries")

    def __init__(self) -> None:
        super().__init__()
        self.arena = KVArena(SHAPE, CAPACITY + 13, torch.float64)  # 13 tokens are no granule
        for layer in self.arena.layers:
            layer.fill_(-1)
        self.tokens: dict[int, int] = {}
        self.next_id = 1

    @rule(target=queries, tokens=st.integers(1, CAPACITY))
    def begin(self, tokens: int) -> int:
        query = self.next_id
        self.next_id += 1
        self.tokens[query] = 0
        self._reserve(query, tokens)
        return query

    @rule(query=queries, more=st.integers(0, 3 * GRANULE_TOKENS))
    def grow(self, query: int, more: int) -> None:
        if query in self.tokens:
            self._reserve(query, self.tokens[query] + more)

    @rule(query=consumes(queries))
    def end(self, query: int) -> None:
        if query in self.tokens:
            self.arena.layout.release(query)
            del self.tokens[query]

    def _reserve(self, query: int, tokens: int) -> None:
        layout = self.arena.layout
        others = sum(layout[each].size for each in layout if each != query)
        assert layout.fits(query, tokens) == (others + round_up(tokens) <= CAPACITY)
        if not layout.fits(query, tokens):
            if not self.tokens[query]:
                del self.tokens[query]
            return
        self.arena.reserve(query, tokens)
        start = layout[query].start
        for layer in self.arena.layers:
            layer[:, :, start + self.tokens[query] : start + tokens] = query
        self.tokens[query] = max(tokens, self.tokens[query])

    @invariant()
    def extents_are_whole_disjoint_and_inside(self) -> None:
        layout = self.arena.layout
        assert sorted(layout) == sorted(self.tokens)
        end = 0
        for query in layout:  # by start
            extent = layout[query]
            assert end <= extent.start < extent.end <= CAPACITY
            assert extent.start % GRANULE_TOKENS == extent.size % GRANULE_TOKENS == 0
            assert extent.size >= self.tokens[query]
            end = extent.end
        assert layout.held == sum(layout[query].size for query in layout)

    @invariant()
    def contents_are_preserved(self) -> None:
        for query, tokens in self.tokens.items():
            start = self.arena.layout[query].start
            for layer in self.arena.layers:
                assert (layer[:, :, start : start + tokens] == query).all()


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=30, stateful_step_count=25)


def test_a_query_grows_in_place_while_there_is_room_behind_it() -> None:
    layout = KVLayout(CAPACITY)
    assert layout.reserve(1, 1) == []
    assert layout.reserve(1, CAPACITY) == []
    assert (layout[1].start, layout[1].size) == (0, CAPACITY)


def test_a_new_query_leaves_its_left_neighbour_half_of_the_gap() -> None:
    layout = KVLayout(CAPACITY)
    layout.reserve(1, GRANULE_TOKENS)
    layout.reserve(2, GRANULE_TOKENS)
    assert layout[2].start == 5 * GRANULE_TOKENS


def test_compaction_gives_every_query_an_equal_share_of_what_is_free() -> None:
    layout = KVLayout(CAPACITY)
    for query in range(1, 11):
        layout.reserve(query, GRANULE_TOKENS)
    for query in list(layout)[::2]:
        layout.release(query)
    assert layout.reserve(20, 3 * GRANULE_TOKENS)  # 5 are free, no 2 of them together
    starts = [layout[query].start // GRANULE_TOKENS for query in layout]
    assert starts == sorted(starts)
    gaps = [
        after - layout[query].end // GRANULE_TOKENS
        for query, after in zip(layout, [*starts[1:], 10], strict=True)
    ]
    assert sum(gaps) == 2
    assert max(gaps) <= 1


def test_a_reservation_that_does_not_fit_is_the_callers_mistake() -> None:
    layout = KVLayout(CAPACITY)
    layout.reserve(1, CAPACITY - GRANULE_TOKENS)
    assert not layout.fits(2, GRANULE_TOKENS + 1)
    with pytest.raises(AssertionError, match="do not fit"):
        layout.reserve(2, GRANULE_TOKENS + 1)
