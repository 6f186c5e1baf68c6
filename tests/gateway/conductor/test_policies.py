"""Policies over random views (limits, order, work conservation) and over whole random lives (nobody starves)."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exegpt_gateway.policies import (
    EXTENT_TOKENS,
    ChunkPlan,
    PartialQuery,
    PoolView,
    StepPlan,
    WaitingQuery,
    extents,
    lookahead,
    next_step,
)
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
)

AMPLE = 1 << 30

schedules = st.one_of(
    st.builds(RraSchedule, encode_batch=st.integers(1, 8), encode_interval=st.integers(1, 40)),
    st.builds(CraSchedule, pool=st.integers(1, 12), chunk_tokens=st.integers(1, 300)),
    st.builds(StaticSchedule, batch=st.integers(1, 8), early_termination=st.booleans()),
    st.builds(OrcaSchedule, pool=st.integers(1, 12)),
)


def waiting(*tokens: int, first: int = 100, growth_limit: int = 50) -> tuple[WaitingQuery, ...]:
    return tuple(
        WaitingQuery(query=first + index, tokens=each, growth_limit=growth_limit)
        for index, each in enumerate(tokens)
    )


def view(
    *tokens: int,
    partial: tuple[PartialQuery, ...] = (),
    num_active: int = 0,
    kv_used: int = 0,
    kv_capacity: int = AMPLE,
    growth_tokens: float = 1e9,
) -> PoolView:
    return PoolView(
        waiting=waiting(*tokens),
        partial=partial,
        num_active=num_active,
        kv_used=kv_used,
        kv_capacity=kv_capacity,
        growth_tokens=growth_tokens,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[AnySchedule, PoolView]:
    """A schedule and a pool that it could have led to."""
    schedule = draw(schedules)
    room = {"RRA": 40, "STATIC": lookahead(schedule)}.get(schedule.strategy, lookahead(schedule))
    num_partial = draw(st.integers(0, room)) if isinstance(schedule, CraSchedule) else 0
    partial = tuple(
        PartialQuery(
            query=50 + index, done=draw(st.integers(1, 200)), total=draw(st.integers(201, 400))
        )
        for index in range(num_partial)
    )
    num_active = draw(st.integers(0, room - num_partial))
    used = sum(extents(each.done) for each in partial) + 64 * num_active
    return schedule, view(
        *draw(st.lists(st.integers(1, 400), max_size=12)),
        partial=partial,
        num_active=num_active,
        kv_used=used,
        kv_capacity=draw(st.integers(max(8, used // 64), 100)) * 64,
        growth_tokens=draw(st.floats(0, 200)),
    )


def apart(view: PoolView, plan: StepPlan) -> tuple[list[ChunkPlan], list[ChunkPlan]]:
    """The chunks of queries begun before, and those of new ones."""
    known = {each.query for each in view.partial}
    old = [chunk for chunk in plan.chunks if chunk.query in known]
    return old, [chunk for chunk in plan.chunks if chunk.query not in known]


@given(cases())
def test_there_is_a_step_exactly_when_there_is_work(case: tuple[AnySchedule, PoolView]) -> None:
    schedule, pool = case
    plan = next_step(schedule, pool)
    has_work = bool(pool.waiting or pool.partial or pool.num_active)
    assert (plan is not None) == has_work
    if plan is not None:
        assert plan.chunks or plan.decode_iterations
        assert plan.chunks or pool.num_active, "an iteration without a query"


@given(cases())
def test_queries_begin_in_order_and_chunks_continue_where_the_last_ended(
    case: tuple[AnySchedule, PoolView],
) -> None:
    schedule, pool = case
    plan = next_step(schedule, pool) or StepPlan()
    old, new = apart(pool, plan)
    assert [chunk.query for chunk in old] == [each.query for each in pool.partial[: len(old)]]
    assert [chunk.query for chunk in new] == [each.query for each in pool.waiting[: len(new)]]
    if new:
        assert len(old) == len(pool.partial)
        assert all(chunk.is_last for chunk in old)
    done = {each.query: (each.done, each.total) for each in pool.partial}
    done |= {each.query: (0, each.tokens) for each in pool.waiting}
    for chunk in plan.chunks:
        start, total = done[chunk.query]
        assert chunk.start == start
        assert 1 <= chunk.tokens <= total - start
        assert chunk.is_last == (start + chunk.tokens == total)


@pytest.mark.parametrize(
    "schedule",
    [
        RraSchedule(encode_batch=2, encode_interval=3),
        StaticSchedule(batch=2, early_termination=True),
        OrcaSchedule(pool=2),
    ],
)
@pytest.mark.parametrize("num_active", [0, 3])
def test_what_cra_has_begun_in_chunks_is_encoded_whole_by_whoever_follows_it(
    schedule: AnySchedule, num_active: int
) -> None:
    begun = (PartialQuery(query=50, done=8, total=20), PartialQuery(query=51, done=1, total=9))
    plan = next_step(schedule, view(5, partial=begun, num_active=num_active))
    assert plan is not None
    assert plan.chunks[:2] == (
        ChunkPlan(query=50, start=8, tokens=12, is_last=True),
        ChunkPlan(query=51, start=1, tokens=8, is_last=True),
    )


@given(cases())
def test_no_schedule_exceeds_its_limits(case: tuple[AnySchedule, PoolView]) -> None:
    schedule, pool = case
    plan = next_step(schedule, pool) or StepPlan()
    _, new = apart(pool, plan)
    running = pool.num_active + len(pool.partial) + len(new)
    match schedule:
        case RraSchedule():
            assert len(new) <= schedule.encode_batch
            assert plan.decode_iterations <= schedule.encode_interval
            assert plan.decode_iterations == schedule.encode_interval or not new
            assert all(chunk.is_last for chunk in new)
        case CraSchedule():
            assert running <= schedule.pool
            assert sum(chunk.tokens for chunk in plan.chunks) <= schedule.chunk_tokens
            assert plan.decode_iterations + bool(plan.chunks) <= 1
            assert plan.decode_with_chunks == bool(plan.chunks)
        case StaticSchedule():
            assert running <= max(schedule.batch, pool.num_active)
            assert not (new and pool.num_active)
            assert plan.retain_ended == (not schedule.early_termination) or plan == StepPlan()
        case OrcaSchedule():
            assert running <= schedule.pool
            assert len(new) <= 1
            assert all(chunk.is_last for chunk in new)


@given(cases())
def test_what_is_admitted_fits_unless_it_is_alone(case: tuple[AnySchedule, PoolView]) -> None:
    schedule, pool = case
    plan = next_step(schedule, pool) or StepPlan()
    _, new = apart(pool, plan)
    tokens = {each.query: each.tokens for each in pool.waiting}
    reserved = sum(extents(each.total) - extents(each.done) for each in pool.partial)
    need = pool.kv_used + reserved + sum(extents(tokens[chunk.query]) for chunk in new)
    alone = len(new) == 1 and not pool.num_active and not pool.partial
    assert not new or alone or need <= pool.kv_capacity


@given(cases())
def test_with_room_for_all_nobody_waits_without_cause(case: tuple[AnySchedule, PoolView]) -> None:
    schedule, pool = case
    pool = dataclasses.replace(pool, kv_capacity=AMPLE)
    plan = next_step(schedule, pool) or StepPlan()
    _, new = apart(pool, plan)
    match schedule:
        case RraSchedule():
            assert len(new) == min(schedule.encode_batch, len(pool.waiting))
        case CraSchedule():
            places = schedule.pool - pool.num_active - len(pool.partial)
            budget_is_spent = sum(each.tokens for each in plan.chunks) == schedule.chunk_tokens
            assert len(new) == min(places, len(pool.waiting)) or budget_is_spent
        case StaticSchedule():
            assert len(new) == (0 if pool.num_active else min(schedule.batch, len(pool.waiting)))
        case OrcaSchedule():
            assert len(new) == min(1, schedule.pool - pool.num_active, len(pool.waiting))


@given(schedules, st.integers(1, 10_000))
def test_a_query_that_is_alone_starts_at_once_whatever_the_arena(
    schedule: AnySchedule, tokens: int
) -> None:
    plan = next_step(schedule, view(tokens, kv_capacity=EXTENT_TOKENS))
    assert plan is not None
    assert plan.chunks[0].query == 100


@given(
    schedules,
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 80)), min_size=1, max_size=25),
    st.integers(6, 40),
)
def test_everyone_ends_in_a_pool_of_any_size(
    schedule: AnySchedule, queries: list[tuple[int, int]], arena_extents: int
) -> None:
    """A pool in miniature: (prompt, output) lengths live through steps, the youngest evicted when KV runs out."""
    capacity = arena_extents * EXTENT_TOKENS
    left = dict(enumerate(queries))  # by id: (tokens to encode, output tokens left)
    done: dict[int, int] = {}  # KV tokens of those encoded or being encoded
    decoding: set[int] = set()
    for _ in range(20_000):
        plan = next_step(
            schedule,
            PoolView(
                waiting=tuple(
                    WaitingQuery(query=each, tokens=left[each][0], growth_limit=left[each][1])
                    for each in sorted(left.keys() - done.keys())
                ),
                partial=tuple(
                    PartialQuery(query=each, done=done[each], total=left[each][0])
                    for each in done
                    if each not in decoding
                ),
                num_active=len(decoding),
                kv_used=sum(map(extents, done.values())),
                kv_capacity=capacity,
                growth_tokens=10,
            ),
        )
        if plan is None:
            break
        iterations = plan.decode_iterations + bool(plan.chunks)
        for index in range(min(iterations, 100)):
            is_encode = index == 0 and plan.chunks
            ready = sorted(decoding) if not is_encode or plan.decode_with_chunks else []
            for chunk in plan.chunks if is_encode else ():
                done[chunk.query] = chunk.start + chunk.tokens
                if chunk.is_last:
                    decoding.add(chunk.query)
                    ready.append(chunk.query)
            for each in ready:
                tokens, outputs = left[each]
                left[each] = (tokens + 1, outputs - 1)
                if each in done and not (is_encode and each not in decoding):
                    done[each] = tokens
                if outputs == 1:
                    del left[each], done[each]
                    decoding.discard(each)
            while sum(map(extents, done.values())) > capacity:
                youngest = max(done)
                del done[youngest]
                decoding.discard(youngest)
    assert not left


def test_rra_holds_admission_for_the_growth_of_the_coming_phase() -> None:
    schedule = RraSchedule(encode_batch=4, encode_interval=64)
    pool = view(10, 10, num_active=2, kv_used=2 * 64, kv_capacity=6 * 64)
    # Two active grow by 64 each; a newcomer holds 10 + 50 (its limit): one extent.
    plan = next_step(schedule, pool)
    assert plan is not None
    assert len(plan.chunks) == 2
    plan = next_step(schedule, dataclasses.replace(pool, kv_capacity=5 * 64))
    assert plan is not None
    assert len(plan.chunks) == 1
    plan = next_step(schedule, dataclasses.replace(pool, kv_capacity=4 * 64))
    assert plan == StepPlan(decode_iterations=4)
    # They are expected to end after 2 more tokens: there is room again.
    pool = dataclasses.replace(pool, kv_capacity=4 * 64, growth_tokens=2)
    plan = next_step(schedule, pool)
    assert plan is not None
    assert len(plan.chunks) == 1


def test_static_batches_only_what_fits_at_its_longest() -> None:
    # With 50 output tokens each: one extent, two, two, ...
    schedule = StaticSchedule(batch=4, early_termination=False)
    plan = next_step(schedule, view(10, 20, 30, 40, kv_capacity=64 + 128 + 127))
    assert plan is not None
    assert [chunk.query for chunk in plan.chunks] == [100, 101]


@pytest.mark.parametrize(("tokens", "held"), [(0, 0), (1, 64), (64, 64), (65, 128), (64.5, 128)])
def test_extents_are_whole(tokens: float, held: int) -> None:
    assert extents(tokens) == held
