from __future__ import annotations

from exegpt_gateway.backlog import Backlog, Query
from exegpt_gateway.policies import ChunkPlan, WaitingQuery
from exegpt_gateway.pool import Pool
from exegpt_gateway.query import QueryStream, QueryTimes, SamplingParams


def query(number: int, *, prompt: int = 100, max_tokens: int = 50) -> Query:
    return Query(
        id=number,
        prompt=(7,) * prompt,
        sampling=SamplingParams(),
        max_tokens=max_tokens,
        stream=QueryStream(number, QueryTimes(arrival_s=0.0), lambda _: None),
    )


def chunk(number: int, tokens: int, *, is_last: bool = True) -> ChunkPlan:
    return ChunkPlan(query=number, start=0, tokens=tokens, is_last=is_last)


def pool_of(*numbers: int) -> Pool:
    """A pool in which these are in decode, one token sampled."""
    pool = Pool(kv_capacity=64 * 64, backlog=Backlog())
    chunks = [chunk(number, 100) for number in numbers]
    for number in numbers:
        pool.backlog.wait(query(number))
    pool.begin(chunks)
    for each in chunks:
        pool.encoded(each)
        pool.took(each.query, 5)
    pool.kv_used = 128 * len(numbers)
    return pool


def test_an_evicted_query_waits_in_its_old_place_with_its_output_to_encode() -> None:
    pool = pool_of(1, 2, 3)
    pool.backlog.wait(query(4))
    pool.evict(3)
    pool.evict(2)
    assert pool.view(9).waiting == (
        WaitingQuery(query=2, tokens=101, growth_limit=49),
        WaitingQuery(query=3, tokens=101, growth_limit=49),
        WaitingQuery(query=4, tokens=100, growth_limit=50),
    )
    assert list(pool.active) == [1]


def test_removing_a_query_frees_the_extents_that_it_holds() -> None:
    pool = pool_of(1, 2)
    pool.backlog.wait(query(3))
    pool.backlog.wait(query(4))
    pool.begin([chunk(3, 60, is_last=False)])
    pool.encoded(chunk(3, 60, is_last=False))
    pool.kv_used += 64

    assert pool.remove(1) is not None
    assert pool.kv_used == 128 + 64
    assert pool.remove(3) is not None
    assert pool.kv_used == 128
    assert pool.remove(4) is None, "it waits, and holds nothing"
    assert pool.remove(99) is None
    assert pool.kv_used == 128
    assert len(pool) == 1


def test_what_is_dropped_takes_no_more_tokens() -> None:
    pool = pool_of(1)
    pool.remove(1)
    assert pool.took(1, 9) is None
    assert pool.encoded(chunk(1, 100)) is None
    assert pool.evict(1) is None


def test_growth_is_the_mean_length_of_what_ended_and_unbounded_before() -> None:
    pool = pool_of(1, 2)
    assert pool.view(1).growth_tokens == float("inf")
    for _ in range(3):
        first = pool.took(1, 5)
    second = pool.took(2, 5)
    assert first is not None
    assert second is not None
    pool.finish(first)
    pool.finish(second)
    assert pool.view(1).growth_tokens == 3.0
