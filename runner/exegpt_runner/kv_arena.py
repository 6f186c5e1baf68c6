"""Where each query's keys and values lie: one contiguous extent a query, in one preallocated buffer.

`KVLayout` is the bookkeeping (integers only) and `KVArena` the buffer that follows it. An extent is a whole number of
granules; it grows in place, else moves to another gap, else all extents are spread evenly over the buffer, so that each
can grow in place for a while. When even that does not fit, `reserve` says so and changes nothing: whom to evict is the
engine's decision. New extents go to the middle of the widest gap for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

GRANULE_TOKENS = 64  # a query outgrows its extent once in so many iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Tokens `start` to `start + size` of the arena."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first token after the extent."""
        return self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Copy `tokens` tokens from `source` to `target`; the two may overlap."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What one token's keys and values take."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class KVLayout:
    """Extents of queries in an arena of `capacity` tokens (rounded down to whole granules)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // GRANULE_TOKENS * GRANULE_TOKENS
        self._extents: dict[int, Extent] = {}
        self._order: list[int] = []  # ids by start

    def __contains__(self, query: int) -> bool:
        return query in self._extents

    def __getitem__(self, query: int) -> Extent:
        return self._extents[query]

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def held(self) -> int:
        """Tokens in extents, their slack included."""
        return sum(extent.size for extent in self._extents.values())

    def fits(self, query: int, tokens: int) -> bool:
        """Whether `reserve` would succeed."""
        own = self._extents[query].size if query in self else 0
        return self.held - own + round_up(tokens) <= self.capacity

    def reserve(self, query: int, tokens: int) -> list[Move]:
        """Makes the extent of `query` hold `tokens`; returns the copies to make, in order. It must fit."""
        assert self.fits(query, tokens), f"{tokens} tokens of query {query} do not fit"
        size = round_up(tokens)
        old = self._extents.get(query)
        if old is not None and size <= self._room(query):
            self._extents[query] = replace(old, size=max(size, old.size))
            return []
        others = [other for other in self._order if other != query]
        index, start, width = max(self._gaps(others), key=lambda gap: gap[2])
        if width < size:
            return self._spread(query, size)
        self._order = [*others[:index], query, *others[index:]]
        if (
            index
        ):  # leave half of the gap to the extent on the left; at the arena's start there is none
            start += (width - size) // 2 // GRANULE_TOKENS * GRANULE_TOKENS
        self._extents[query] = Extent(start=start, size=size)
        return [Move(source=old.start, target=start, tokens=old.size)] if old else []

    def release(self, query: int) -> None:
        """Frees the extent of `query`."""
        del self._extents[query]
        self._order.remove(query)

    def clear(self) -> None:
        """Frees every extent."""
        self._extents.clear()
        self._order.clear()

    def _room(self, query: int) -> int:
        """The size to which the extent of `query` can grow in place."""
        after = self._order.index(query) + 1
        end = self._extents[self._order[after]].start if after < len(self._order) else self.capacity
        return end - self._extents[query].start

    def _gaps(self, order: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(index in `order` of what follows, start, width) of the space between the extents of `order`."""
        start = 0
        for index, query in enumerate(order):
            yield index, start, self._extents[query].start - start
            start = self._extents[query].end
        yield len(order), start, self.capacity - start

    def _spread(self, query: int, size: int) -> list[Move]:
        """Gives `query` its new size, and all extents, in their order, equal gaps; returns the copies."""
        old = dict(self._extents)
        if query not in self:
            self._order.append(query)
        self._extents[query] = Extent(start=0, size=size)
        free = self.capacity - self.held
        start = 0
        for index, each in enumerate(self._order):
            self._extents[each] = replace(self._extents[each], start=start)
            shares = [free // GRANULE_TOKENS * i // len(self._order) for i in (index, index + 1)]
            start = self._extents[each].end + (shares[1] - shares[0]) * GRANULE_TOKENS
        return self._ordered_moves(old)

    def _ordered_moves(self, old: Mapping[int, Extent]) -> list[Move]:
        """The copies from `old` places to the present ones, in an order in which none overwrites another's source.

        As their rank is kept, an extent that moves left can only run into its left neighbour's old place, and only if
        that one moves left too: so left movers from the left, then right movers from the right.
        """
        moves = [
            Move(source=old[each].start, target=self._extents[each].start, tokens=old[each].size)
            for each in self._order
            if each in old and old[each].start != self._extents[each].start
        ]
        left = [move for move in moves if move.target < move.source]
        right = [move for move in moves if move.target > move.source]
        return left + right[::-1]


class KVArena:
    """The keys and values of all layers, where a `KVLayout` says."""

    def __init__(self, shape: KVShape, capacity: int, dtype: torch.dtype) -> None:
        self.layout = KVLayout(capacity)
        size = (2, shape.num_kv_heads, self.layout.capacity, shape.head_dim)
        # (2, G, C, D) a layer, so that a head's keys are contiguous; pages never written are never touched.
        self.layers = [torch.empty(size, dtype=dtype) for _ in range(shape.num_layers)]

    def reserve(self, query: int, tokens: int) -> bool:
        """Makes room for `tokens` of `query`, which must fit; whether any extent moved."""
        moves = self.layout.reserve(query, tokens)
        for move in moves:
            for layer in self.layers:
                source = layer[:, :, move.source : move.source + move.tokens]
                if abs(move.source - move.target) < move.tokens:
                    source = source.clone()  # copy_ does not allow overlap
                layer[:, :, move.target : move.target + move.tokens] = source
        return bool(moves)

    def write(self, query: int, layer: int, kv: Tensor) -> None:
        """Puts keys and values, (2, G, t, D), at the beginning of the extent of `query`, which holds them."""
        start = self.layout[query].start
        self.layers[layer][:, :, start : start + kv.shape[2]] = kv

    def fill(self, query: int, granule: Tensor) -> None:
        """Fills the extent of `query`, in every layer, with repetitions of `granule` (2, G, 64, D)."""
        extent = self.layout[query]
        for start in range(extent.start, extent.end, GRANULE_TOKENS):
            for layer in self.layers:
                layer[:, :, start : start + GRANULE_TOKENS] = granule


def round_up(tokens: int) -> int:
    """`tokens` in whole granules."""
    return -(-tokens // GRANULE_TOKENS) * GRANULE_TOKENS
