"""Queries on their way from the worker that encodes them to the one that decodes them.

A transfer is the queries of one encode for one decoder. It may begin to decode once its encode's result has come (the
first tokens are known) and its KV has arrived, in whichever order. A transfer that fails, or loses either worker before
it has arrived, sends its queries back to the front of the queue. Pure bookkeeping: lanes are numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from exegpt_gateway.backlog import Query
from exegpt_gateway.policies import extents


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """Queries of one encode for one decoder."""

    id: int
    source: int
    target: int
    queries: dict[int, Query]
    is_encoded: bool = False  # and then the queries are nowhere else
    has_arrived: bool = False
    problem: str = "its decoder was lost"  # once it is given up

    @property
    def can_join(self) -> bool:
        """Whether its queries can decode."""
        return self.is_encoded and self.has_arrived


@dataclass(slots=True)
class HandOvers:
    """All transfers under way."""

    _transfers: dict[int, Transfer] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __len__(self) -> int:
        return sum(len(each.queries) for each in self._transfers.values() if each.is_encoded)

    def next_id(self) -> int:
        """A number for a transfer, never given twice."""
        return next(self._ids)

    def begin(self, source: int, target: int, queries: Iterable[Query]) -> Transfer:
        """A new transfer of queries whose encode begins."""
        transfer = Transfer(
            id=self.next_id(),
            source=source,
            target=target,
            queries={query.id: query for query in queries},
        )
        self._transfers[transfer.id] = transfer
        return transfer

    def encoded(self, transfer: Transfer, queries: Iterable[Query]) -> bool:
        """Notes who is left when the encode is over; False if the transfer was given up meanwhile."""
        if self._transfers.get(transfer.id) is not transfer:
            return False
        transfer.queries = {query.id: query for query in queries}
        transfer.is_encoded = True
        return True

    def arrived(self, target: int, transfer: int) -> bool:
        """Notes that the KV is there; False if nobody waits for it."""
        found = self._transfers.get(transfer)
        if found is None or found.target != target:
            return False
        found.has_arrived = True
        return True

    def joining(self, target: int) -> list[Transfer]:
        """What can decode at `target` now, which is under way no longer."""
        ready = [each for each in self._to(target) if each.can_join]
        for each in ready:
            del self._transfers[each.id]
        return ready

    def num_joining(self, target: int) -> int:
        """Queries that can decode at `target` now."""
        return sum(len(each.queries) for each in self._to(target) if each.can_join)

    def num_arriving(self, target: int) -> int:
        """Queries handed over to `target`, or being encoded for it."""
        return sum(len(each.queries) for each in self._to(target))

    def kv_tokens(self, target: int) -> int:
        """KV tokens that these will take."""
        return sum(
            extents(query.num_tokens)
            for each in self._to(target)
            for query in each.queries.values()
        )

    def give_up(self, transfer: int, problem: str) -> Transfer | None:
        """Forgets a transfer that failed; queries that are still being encoded stay where they are."""
        found = self._transfers.get(transfer)
        if found is None or found.has_arrived:  # it came all the same
            return None
        found.problem = problem
        return self._transfers.pop(transfer)

    def forget(self, transfer: Transfer) -> None:
        """Takes out a transfer whose KV nobody needs any more, arrived or not."""
        del self._transfers[transfer.id]

    def lose(self, lane: int) -> list[Transfer]:
        """Forgets what a lost worker was to receive, or had not wholly sent."""
        lost = [
            each
            for each in self._transfers.values()
            if each.target == lane or (each.source == lane and not each.can_join)
        ]
        for each in lost:
            del self._transfers[each.id]
        return lost

    def remove(self, query: int) -> Query | None:
        """Takes a query that is on its way, and nowhere else, out for good."""
        for transfer in self._transfers.values():
            if transfer.is_encoded and query in transfer.queries:
                return transfer.queries.pop(query)
        return None

    def clear(self) -> list[Query]:
        """Forgets every transfer; returns whom."""
        queries = [
            query
            for each in self._transfers.values()
            if each.is_encoded
            for query in each.queries.values()
        ]
        self._transfers.clear()
        return queries

    def _to(self, target: int) -> list[Transfer]:
        return [each for each in self._transfers.values() if each.target == target]
