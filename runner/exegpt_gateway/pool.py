"""What the conductor knows of its queries: who waits, who is being encoded, who decodes, and how far each got.

A state machine without clocks, policy or wire. The largest id is the youngest query, and the waiting queue is in order
of id, so a query that is evicted, or loses its worker, goes back to its place at the front.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from exegpt_gateway.policies import (
    ChunkPlan,
    PartialQuery,
    PoolView,
    WaitingQuery,
    extents,
)
from exegpt_gateway.query import QueryStream, SamplingParams

LENGTHS_REMEMBERED = 512  # output lengths the expected growth is the mean of


@dataclass(slots=True, kw_only=True, eq=False)
class Query:
    """One query in the conductor."""

    id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    stream: QueryStream
    generated: list[int] = field(default_factory=list)
    done: int = 0  # tokens encoded
    first_iteration: int | None = None
    last_iteration: int | None = None
    last_token_s: float | None = None
    losses: int = 0  # workers it was lost with

    @property
    def text(self) -> list[int]:
        """What an encode of this query reads: its prompt and the output so far."""
        return [*self.prompt, *self.generated]


@dataclass(slots=True)
class Pool:
    """All queries of the conductor by state, each in exactly one."""

    kv_capacity: int
    waiting: list[Query] = field(default_factory=list)  # by id
    partial: dict[int, Query] = field(default_factory=dict)
    active: dict[int, Query] = field(default_factory=dict)
    kv_used: int = 0
    _lengths: deque[int] = field(default_factory=lambda: deque(maxlen=LENGTHS_REMEMBERED))

    def __len__(self) -> int:
        return len(self.waiting) + self.num_running

    @property
    def num_running(self) -> int:
        """Queries that hold KV."""
        return len(self.partial) + len(self.active)

    def wait(self, query: Query) -> None:
        """Puts a query in its place in the waiting queue, nothing of it encoded."""
        query.done = 0
        bisect.insort(self.waiting, query, key=lambda each: each.id)

    def view(self, lookahead: int) -> PoolView:
        """What a policy may know, with the first `lookahead` waiting queries."""
        return PoolView(
            waiting=tuple(
                WaitingQuery(
                    query=each.id,
                    tokens=len(each.prompt) + len(each.generated),
                    growth_limit=each.max_tokens - len(each.generated),
                )
                for each in islice(self.waiting, lookahead)
            ),
            partial=tuple(
                PartialQuery(
                    query=each.id, done=each.done, total=len(each.prompt) + len(each.generated)
                )
                for each in self.partial.values()
            ),
            num_active=len(self.active),
            kv_used=self.kv_used,
            kv_capacity=self.kv_capacity,
            growth_tokens=self._mean_length(),
        )

    def begin(self, chunks: Iterable[ChunkPlan]) -> None:
        """Moves the queries whose first chunks these are out of the waiting queue."""
        begun = sum(chunk.start == 0 for chunk in chunks)
        for query in self.waiting[:begun]:
            self.partial[query.id] = query
        del self.waiting[:begun]

    def encoded(self, chunk: ChunkPlan) -> Query | None:
        """Notes that a chunk is encoded; its query, or None if that was dropped meanwhile."""
        query = self.partial.get(chunk.query)
        if query is not None:
            query.done = chunk.start + chunk.tokens
            if chunk.is_last:
                self.active[query.id] = self.partial.pop(query.id)
        return query

    def took(self, query: int, token: int) -> Query | None:
        """The active query that this output token is of, or None if it was dropped."""
        found = self.active.get(query)
        if found is not None:
            found.generated.append(token)
        return found

    def finish(self, query: Query) -> None:
        """Forgets a query that ended, but not its length."""
        del self.active[query.id]
        self.learn(len(query.generated))

    def learn(self, output_tokens: int) -> None:
        """Counts an answer of this length into the expected growth."""
        self._lengths.append(output_tokens)

    def evict(self, query: int) -> Query | None:
        """Sends a query that lost its KV back to the front of the queue."""
        found = self.active.pop(query, None) or self.partial.pop(query, None)
        if found is not None:
            self.wait(found)
        return found

    def remove(self, query: int) -> tuple[Query | None, bool]:
        """Takes a query out for good: the query, if it is here, and whether the worker holds it."""
        index = bisect.bisect_left(self.waiting, query, key=lambda each: each.id)
        if index < len(self.waiting) and self.waiting[index].id == query:
            return self.waiting.pop(index), False
        if (found := self.partial.pop(query, None)) is not None:
            held = found.done
        elif (found := self.active.pop(query, None)) is not None:
            held = len(found.prompt) + len(found.generated) - 1  # the newest token has no KV yet
        else:
            return None, False
        self.kv_used = max(0, self.kv_used - extents(held))
        return found, True

    def lose_worker(self) -> list[Query]:
        """Sends every running query back to the front of the queue, and says which they were."""
        lost = [*self.active.values(), *self.partial.values()]
        self.active.clear()
        self.partial.clear()
        self.kv_used = 0
        for query in lost:
            query.losses += 1
            self.wait(query)
        return lost

    def everyone(self) -> list[Query]:
        """Every query, whatever its state."""
        return [*self.waiting, *self.partial.values(), *self.active.values()]

    def clear(self) -> None:
        """Forgets every query."""
        self.waiting.clear()
        self.partial.clear()
        self.active.clear()

    def _mean_length(self) -> float:
        # Nothing ended yet: no expectation but the phase itself.
        return sum(self._lengths) / len(self._lengths) if self._lengths else float("inf")
