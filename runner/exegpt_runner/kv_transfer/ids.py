"""Which transfers are over, in bounded memory.

One conductor draws the ids of an epoch in increasing order, so the newest few are kept one by one and everything up to
the largest one that no longer is counts as over. A transfer that came later than so many newer ones ended has missed
its deadline anyway.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Ended:
    """Ids that may not come again; at most `kept` of them are held."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._floor = -1  # every id up to this one has ended
        self._ids: set[int] = set()
        self._by_age: list[int] = []  # a heap of the same ids

    def __contains__(self, transfer: int) -> bool:
        return transfer <= self._floor or transfer in self._ids

    def add(self, transfers: Iterable[int]) -> None:
        """Marks `transfers` as ended."""
        for transfer in transfers:
            if transfer not in self:
                self._ids.add(transfer)
                heapq.heappush(self._by_age, transfer)
        while len(self._ids) > self._kept:
            self._floor = heapq.heappop(self._by_age)
            self._ids.remove(self._floor)
