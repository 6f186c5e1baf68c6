"""Queries that wait for their encode, first come first served, whichever worker takes them.

In order of id, and the largest id is the youngest: a query that is evicted, or loses its worker, goes back to its
place at the front. Also remembers how long answers have been, from which admission expects how much KV will grow.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

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
    losses: int = 0  # workers and hand-overs it was lost with

    @property
    def text(self) -> list[int]:
        """What an encode of this query reads: its prompt and the output so far."""
        return [*self.prompt, *self.generated]

    @property
    def num_tokens(self) -> int:
        """Tokens of its text."""
        return len(self.prompt) + len(self.generated)


@dataclass(slots=True)
class Backlog:
    """The waiting queue."""

    queries: list[Query] = field(default_factory=list)  # by id
    _lengths: deque[int] = field(default_factory=lambda: deque(maxlen=LENGTHS_REMEMBERED))

    def __len__(self) -> int:
        return len(self.queries)

    def wait(self, query: Query) -> None:
        """Puts a query in its place, nothing of it encoded."""
        query.done = 0
        bisect.insort(self.queries, query, key=lambda each: each.id)

    def take(self, number: int) -> list[Query]:
        """The first so many, which wait no longer."""
        taken = self.queries[:number]
        del self.queries[:number]
        return taken

    def remove(self, query: int) -> Query | None:
        """Takes a query out, if it waits."""
        index = bisect.bisect_left(self.queries, query, key=lambda each: each.id)
        if index < len(self.queries) and self.queries[index].id == query:
            return self.queries.pop(index)
        return None

    def learn(self, output_tokens: int) -> None:
        """Counts an answer of this length into the expected growth."""
        self._lengths.append(output_tokens)

    @property
    def growth_tokens(self) -> float:
        """Output tokens that a query is expected to produce; without an answer so far there is no expectation."""
        return sum(self._lengths) / len(self._lengths) if self._lengths else float("inf")
