"""What a worker does next, from what its pool holds now: RRA, CRA, WAA, and the comparison policies STATIC and ORCA.

Pure functions of values; no policy sees a query's output length, only the limit its client set. All are first in, first
out and work-conserving: a query that is alone starts at once. Admission is held while a prompt, rounded up to KV
extents, does not fit beside the expected growth of the queries in the coming phase; what outgrows that expectation is
evicted by the worker, youngest first, and encoded again.

An RRA cycle is one step: encode B_E whole prompts, or what the plan's adjustment makes of B_E, then N_D decode
iterations. CRA and ORCA decide anew for every iteration. In WAA an encoder's prompts leave for the decoder with the
most room, as many at a time as that has places for; a worker that had another part before the schedule changed decodes
what it still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from exegpt_planner.adjustment import encode_target, nearest_prefix
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    StaticSchedule,
    WaaSchedule,
)

Part = Literal["both", "encoder", "decoder"]

EXTENT_TOKENS = 64  # the worker's KV arena hands out extents of this many tokens

# Decode iterations a message when RRA has nothing to encode: an arrival then waits for few of them, and the gap between
# messages (well under a millisecond beside tens for an iteration) is shared by as many.
IDLE_ITERATIONS = 4

UNTIL_DONE = 1 << 20  # decode iterations; the worker stops when no query is left


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingQuery:
    """A query of which nothing is encoded."""

    query: int
    tokens: int  # to encode: the prompt and, after an eviction, the output so far
    growth_limit: int  # output tokens it may still produce


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialQuery:
    """A query whose prompt is being encoded in chunks."""

    query: int
    done: int  # tokens encoded
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the decoder has room for that an encoder's next prompts would go to."""

    places: int  # queries
    kv_held: float  # KV tokens, the growth of the next iteration and what is on its way included
    kv_capacity: int
    is_empty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """What a policy may know. Queries are in order of admission."""

    waiting: tuple[WaitingQuery, ...]  # at least the first `lookahead(schedule)` of them
    partial: tuple[PartialQuery, ...]
    num_active: int  # queries in decode
    kv_used: int  # KV tokens held, extents' slack included
    kv_capacity: int
    growth_tokens: float  # output tokens a query is expected to produce yet
    part: Part = "both"
    num_joining: int = 0  # queries whose KV has arrived, which begin to decode with the next step
    num_arriving: int = 0  # these, and those that are on their way here or being encoded for here
    room: Room | None = None  # None: there is no decoder to hand over to


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """Tokens start .. start + tokens of a query's prompt."""

    query: int
    start: int
    tokens: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One message to the worker (Step in worker.proto)."""

    chunks: tuple[ChunkPlan, ...] = ()
    decode_with_chunks: bool = False
    decode_iterations: int = 0
    retain_ended: bool = False
    leaves: bool = False  # the chunks' queries go to a decoder


def parts(schedule: AnySchedule, num_workers: int) -> tuple[Part, ...]:
    """What each worker is there for; raises `InvalidSpec` where the schedule is for another number of them."""
    match schedule:
        case WaaSchedule():
            needed = schedule.encoders + schedule.decoders
        case RraSchedule() | CraSchedule():
            needed = schedule.units
        case StaticSchedule() | OrcaSchedule():
            needed = num_workers
    if needed != num_workers:
        problem = (
            f"{schedule.strategy} for {needed} workers, but there are {num_workers}. Plan again."
        )
        raise InvalidSpec("schedule", [problem])
    if not isinstance(schedule, WaaSchedule):
        return tuple("both" for _ in range(num_workers))
    return tuple("encoder" if index < schedule.encoders else "decoder" for index in range(needed))


def extents(tokens: float) -> int:
    """KV tokens held for `tokens` of them: whole extents."""
    return -int(-tokens // EXTENT_TOKENS) * EXTENT_TOKENS


def lookahead(schedule: AnySchedule) -> int:
    """Waiting queries a policy looks at, at most."""
    match schedule:
        case RraSchedule() | WaaSchedule():
            adjustment = schedule.adjustment
            return schedule.encode_batch if adjustment is None else adjustment.most_queries
        case CraSchedule():
            return schedule.pool
        case StaticSchedule():
            return schedule.batch
        case OrcaSchedule():
            return 1


def next_step(schedule: AnySchedule, view: PoolView) -> StepPlan | None:
    """The step to send now, or None when there is nothing to do."""
    if isinstance(schedule, WaaSchedule):
        return _waa(schedule, view)
    if not (view.waiting or view.partial or view.num_active or view.num_joining):
        return None
    match schedule:
        case RraSchedule():
            return _rra(schedule, view)
        case CraSchedule():
            return _cra(schedule, view)
        case StaticSchedule():
            return _static(schedule, view)
        case OrcaSchedule():
            return _orca(schedule, view)


def _rra(schedule: RraSchedule, view: PoolView) -> StepPlan:
    interval = schedule.encode_interval
    limit = _batch(schedule, view)
    chunks = _rest(view) + _whole(_admit(view, limit=limit, iterations=interval))
    if not chunks:
        return StepPlan(decode_iterations=min(interval, IDLE_ITERATIONS))
    return StepPlan(chunks=chunks, decode_iterations=interval)


def _waa(schedule: WaaSchedule, view: PoolView) -> StepPlan | None:
    decodes = bool(view.num_active or view.num_joining)
    chunks = _leaving(schedule, view) if view.part == "encoder" else _rest(view)
    if chunks:
        return StepPlan(chunks=chunks, decode_with_chunks=decodes, leaves=view.part == "encoder")
    return StepPlan(decode_iterations=1) if decodes else None


def _leaving(schedule: WaaSchedule, view: PoolView) -> tuple[ChunkPlan, ...]:
    """Whole prompts for the decoder there is room at: a batch, or all that wait; never fewer because places are few."""
    room = view.room
    if room is None:
        return ()
    batch = view.waiting[: min(_batch(schedule, view), schedule.pool)]
    if room.places < len(batch):
        return _rest(view)
    growth = min(1, view.growth_tokens)
    fitting = _fitting(batch, growth, room.kv_held, room.kv_capacity, is_empty=room.is_empty)
    return _rest(view) + _whole(fitting)


def _batch(schedule: RraSchedule | WaaSchedule, view: PoolView) -> int:
    """Queries to encode next, of those that wait: B_E, or what its adjustment makes of it."""
    adjustment = schedule.adjustment
    if adjustment is None:
        return schedule.encode_batch
    target = encode_target(adjustment, schedule.encode_batch, view.num_active + view.num_arriving)
    waiting = view.waiting[: adjustment.most_queries]
    return nearest_prefix((each.tokens for each in waiting), target)


def _cra(schedule: CraSchedule, view: PoolView) -> StepPlan:
    left = schedule.chunk_tokens
    chunks: list[ChunkPlan] = []
    places = schedule.pool - view.num_active - view.num_arriving - len(view.partial)
    begun = [
        *view.partial,
        *(
            PartialQuery(query=each.query, done=0, total=each.tokens)
            for each in _admit(view, limit=places, iterations=1)
        ),
    ]
    for each in begun:
        if left == 0:
            break
        tokens = min(left, each.total - each.done)
        is_last = each.done + tokens == each.total
        chunks.append(ChunkPlan(query=each.query, start=each.done, tokens=tokens, is_last=is_last))
        left -= tokens
    return _ride(tuple(chunks))


def _static(schedule: StaticSchedule, view: PoolView) -> StepPlan:
    retain = not schedule.early_termination
    if view.num_active or view.partial or view.num_joining:
        return StepPlan(chunks=_rest(view), decode_iterations=UNTIL_DONE, retain_ended=retain)
    # A batch holds its place until all of it is done, so all of it must fit at its longest.
    batch: list[WaitingQuery] = []
    held = 0
    for each in view.waiting[: schedule.batch]:
        held += extents(each.tokens + each.growth_limit)
        if batch and held > view.kv_capacity:
            break
        batch.append(each)
    return StepPlan(chunks=_whole(batch), decode_iterations=UNTIL_DONE, retain_ended=retain)


def _orca(schedule: OrcaSchedule, view: PoolView) -> StepPlan:
    places = min(1, schedule.pool - view.num_active - view.num_arriving)
    return _ride(_rest(view) + _whole(_admit(view, limit=places, iterations=1)))


def _ride(chunks: tuple[ChunkPlan, ...]) -> StepPlan:
    """One iteration: the chunks, if any, ride on a decode of every active query."""
    if chunks:
        return StepPlan(chunks=chunks, decode_with_chunks=True)
    return StepPlan(decode_iterations=1)


def _rest(view: PoolView) -> tuple[ChunkPlan, ...]:
    """What is left of prompts that another policy, the one in force before, has begun in chunks."""
    return tuple(
        ChunkPlan(query=each.query, start=each.done, tokens=each.total - each.done, is_last=True)
        for each in view.partial
    )


def _whole(queries: Sequence[WaitingQuery]) -> tuple[ChunkPlan, ...]:
    return tuple(
        ChunkPlan(query=each.query, start=0, tokens=each.tokens, is_last=True) for each in queries
    )


def _admit(view: PoolView, *, limit: int, iterations: int) -> Sequence[WaitingQuery]:
    """The first waiting queries that fit beside everyone's expected growth in so many iterations."""
    growth = min(iterations, view.growth_tokens)
    held = view.kv_used + view.num_active * growth
    held += sum(extents(each.total) - extents(each.done) for each in view.partial)
    is_empty = not (view.num_active or view.partial or view.num_arriving)
    queries = view.waiting[: max(limit, 0)]
    return _fitting(queries, growth, held, view.kv_capacity, is_empty=is_empty)


def _fitting(
    queries: Sequence[WaitingQuery], growth: float, held: float, capacity: int, *, is_empty: bool
) -> Sequence[WaitingQuery]:
    """The first of `queries` that fit beside what is held.

    The first of an empty pool always does: what could never fit was refused when it came.
    """
    for index, each in enumerate(queries):
        held += extents(each.tokens + min(growth, each.growth_limit))
        if held > capacity and not (is_empty and index == 0):
            return queries[:index]
    return queries
