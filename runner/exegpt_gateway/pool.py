"""What the conductor knows of the queries that one worker holds: who is being encoded, who decodes, and how far.

A state machine without clocks, policy or wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from exegpt_gateway.backlog import Backlog, Query
from exegpt_gateway.hand_overs import Transfer
from exegpt_gateway.policies import (
    ChunkPlan,
    Part,
    PartialQuery,
    PoolView,
    Room,
    WaitingQuery,
    extents,
)


@dataclass(slots=True)
class Pool:
    """The queries of one worker by state, each in exactly one."""

    kv_capacity: int
    backlog: Backlog
    partial: dict[int, Query] = field(default_factory=dict)
    active: dict[int, Query] = field(default_factory=dict)
    kv_used: int = 0  # as the worker says

    def __len__(self) -> int:
        return len(self.partial) + len(self.active)

    def view(
        self,
        lookahead: int,
        *,
        part: Part = "both",
        num_joining: int = 0,
        num_arriving: int = 0,
        kv_arriving: int = 0,
        room: Room | None = None,
    ) -> PoolView:
        """What a policy may know, with the first `lookahead` waiting queries, and what is on its way here."""
        return PoolView(
            waiting=tuple(
                WaitingQuery(
                    query=each.id,
                    tokens=each.num_tokens,
                    growth_limit=each.max_tokens - len(each.generated),
                )
                for each in islice(self.backlog.queries, lookahead)
            ),
            partial=tuple(
                PartialQuery(query=each.id, done=each.done, total=each.num_tokens)
                for each in self.partial.values()
            ),
            num_active=len(self.active),
            kv_used=self.kv_used + kv_arriving,
            kv_capacity=self.kv_capacity,
            growth_tokens=self.backlog.growth_tokens,
            part=part,
            num_joining=num_joining,
            num_arriving=num_arriving,
            room=room,
        )

    def begin(self, chunks: Iterable[ChunkPlan]) -> None:
        """Moves the queries whose first chunks these are out of the backlog."""
        for query in self.backlog.take(sum(chunk.start == 0 for chunk in chunks)):
            self.partial[query.id] = query

    def encoded(self, chunk: ChunkPlan) -> Query | None:
        """Notes that a chunk is encoded; its query, or None if that was dropped meanwhile."""
        query = self.partial.get(chunk.query)
        if query is not None:
            query.done = chunk.start + chunk.tokens
            if chunk.is_last:
                self.active[query.id] = self.partial.pop(query.id)
        return query

    def join(self, transfer: Transfer) -> None:
        """Takes in queries whose KV has come; they decode from now on."""
        self.active |= transfer.queries

    def took(self, query: int, token: int) -> Query | None:
        """The active query that this output token is of, or None if it was dropped."""
        found = self.active.get(query)
        if found is not None:
            found.generated.append(token)
        return found

    def finish(self, query: Query) -> None:
        """Forgets a query that ended, but not its length."""
        del self.active[query.id]
        self.backlog.learn(len(query.generated))

    def evict(self, query: int) -> Query | None:
        """Sends a query that lost its KV back to the front of the queue."""
        found = self.active.pop(query, None) or self.partial.pop(query, None)
        if found is not None:
            self.backlog.wait(found)
        return found

    def remove(self, query: int) -> Query | None:
        """Takes a query out for good, if it is here."""
        if (found := self.partial.pop(query, None)) is not None:
            held = found.done
        elif (found := self.active.pop(query, None)) is not None:
            held = found.num_tokens - 1  # the newest token has no KV yet
        else:
            return None
        self.kv_used = max(0, self.kv_used - extents(held))
        return found

    def everyone(self) -> list[Query]:
        """Every query, whatever its state."""
        return [*self.partial.values(), *self.active.values()]

    def clear(self) -> None:
        """Forgets every query."""
        self.partial.clear()
        self.active.clear()
        self.kv_used = 0
