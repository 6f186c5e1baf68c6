"""Branch and bound over two integer knobs: the most throughput within a latency bound, exactly.

Best first on a block's upper throughput bound. A block is dropped when nothing in it can fit, keep the bound, or beat
what is already found; blocks of a few points are evaluated. The bounds come from the space and need no monotonicity,
so neither does the result. What was dropped, and why, is kept: the leaves cover the space (certificate.py checks
them).
No incumbent is put in at the start (the paper's N_D = ceil(s99 / q) were tried): best first finds one as soon.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

ROUNDING = 1e-9  # relative: bounds and values are sums in different orders

# load: CRA's chunks could not keep up; shape: WAA's pool has too few places, or more than are ever taken
Blocked = Literal["memory", "coverage", "load", "shape"]
Reason = Literal["throughput", "latency", "evaluated", "memory", "coverage", "load", "shape"]
Point = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """The points x1..x2 by y1..y2, ends included."""

    x1: int
    x2: int
    y1: int
    y2: int

    @property
    def num_points(self) -> int:
        return (self.x2 - self.x1 + 1) * (self.y2 - self.y1 + 1)

    def points(self) -> Iterator[Point]:
        """Every point of the block."""
        for x in range(self.x1, self.x2 + 1):
            for y in range(self.y1, self.y2 + 1):
                yield x, y

    def split(self) -> tuple[Block, Block]:
        """Two halves, across the relatively longer side, near its geometric mean."""
        if self.x2 * self.y1 >= self.y2 * self.x1 and self.x2 > self.x1:
            cut = _middle(self.x1, self.x2)
            return Block(self.x1, cut, self.y1, self.y2), Block(cut + 1, self.x2, self.y1, self.y2)
        if self.y2 > self.y1:
            cut = _middle(self.y1, self.y2)
            return Block(self.x1, self.x2, self.y1, cut), Block(self.x1, self.x2, cut + 1, self.y2)
        cut = _middle(self.x1, self.x2)
        return Block(self.x1, cut, self.y1, self.y2), Block(cut + 1, self.x2, self.y1, self.y2)


def _middle(low: int, high: int) -> int:
    return min(max(int((low * high) ** 0.5), low), high - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """No point of a block has more throughput or promises less; `blocked` if none of them fits."""

    throughput: float
    promised_s: float
    blocked: Blocked | None = None


class Space(Protocol):
    """What a strategy offers to be searched: knobs x and y, each from 1 up."""

    @property
    def few(self) -> int:
        """Points that cost no more to evaluate than a block of them to bound."""
        ...

    @property
    def whole(self) -> Block: ...
    def roughly(self, block: Block) -> Bounds | None:
        """Bounds that cost little, no tighter than `bound`; None: there are none."""
        ...

    def bound(self, block: Block) -> Bounds: ...
    def blocked(self, point: Point) -> Blocked | None: ...
    def throughput(self, point: Point) -> float: ...
    def promised_s(self, point: Point) -> float: ...


S = TypeVar("S", bound=Space)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An evaluated point."""

    point: Point
    throughput: float
    promised_s: float

    def beats(self, other: Candidate | None) -> bool:
        """More throughput; on a tie, less latency, then smaller knobs."""
        if other is None:
            return True
        ours = (-self.throughput, self.promised_s, self.point)
        return ours < (-other.throughput, other.promised_s, other.point)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A block that was settled, why, and the bound that settled it."""

    block: Block
    reason: Reason
    bound: float  # of throughput or latency, by the reason; 0 where none was needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best point, or None if no point keeps the bound, and the proof."""

    best: Candidate | None
    leaves: tuple[Leaf, ...]
    num_evaluations: int


@dataclass(slots=True)
class _Incumbent:
    """The best so far, of all spaces that are searched together."""

    best: Candidate | None = None
    space: int = -1  # where it lies

    def beats(self, throughput: float) -> bool:
        """Whether what has no more throughput than this may be left out: of equals, one is enough."""
        return self.best is not None and throughput <= self.best.throughput * (1 + ROUNDING)


class _Search(Generic[S]):
    """One of the spaces."""

    def __init__(self, number: int, space: S, bound_s: float, incumbent: _Incumbent) -> None:
        self.number, self.space, self.bound_s = number, space, bound_s
        self.incumbent = incumbent
        self.leaves: list[Leaf] = []
        self.evaluated: set[Point] = set()

    def try_point(self, point: Point) -> None:
        if point in self.evaluated or self.space.blocked(point) is not None:
            return
        self.evaluated.add(point)
        throughput = self.space.throughput(point)
        best = self.incumbent.best
        if best is not None and throughput < best.throughput:
            return
        promised_s = self.space.promised_s(point)
        found = Candidate(point=point, throughput=throughput, promised_s=promised_s)
        if promised_s <= self.bound_s and found.beats(best):
            self.incumbent.best, self.incumbent.space = found, self.number

    def settle(self, block: Block, bounds: Bounds) -> bool:
        """Whether nothing in the block can be the answer; if so it becomes a leaf."""
        if bounds.blocked is not None:
            self._leaf(block, bounds.blocked, 0.0)
        elif bounds.promised_s * (1 - ROUNDING) > self.bound_s:
            self._leaf(block, "latency", bounds.promised_s)
        elif self.incumbent.beats(bounds.throughput):
            self._leaf(block, "throughput", bounds.throughput)
        else:
            return False
        return True

    def evaluate(self, block: Block) -> None:
        for point in block.points():
            self.try_point(point)
        self._leaf(block, "evaluated", 0.0)

    def found(self) -> Found:
        is_here = self.incumbent.space == self.number
        return Found(
            best=self.incumbent.best if is_here else None,
            leaves=tuple(self.leaves),
            num_evaluations=len(self.evaluated),
        )

    def _leaf(self, block: Block, reason: Reason, bound: float) -> None:
        self.leaves.append(Leaf(block=block, reason=reason, bound=bound))


def search(space: Space, bound_s: float) -> Found:
    """The schedule with the most throughput whose promise keeps `bound_s`."""
    ((_, found),) = search_together([lambda: space], [math.inf], bound_s).values()
    return found


def search_together(
    openers: Sequence[Callable[[], S]], uppers: Sequence[float], bound_s: float
) -> dict[int, tuple[S, Found]]:
    """The best of several spaces, as of one: only where it lies is there a `best`.

    `uppers` is what nothing in each space can exceed; a space that cannot beat the best is never opened and not among
    the answers, which are by place. Blocks of all are taken best first, so none is searched further than beating the
    best of all needs.
    """
    incumbent = _Incumbent()
    opened: dict[int, _Search[S]] = {}
    # by bound; a space without a block is yet to be opened, and tuples of one space differ in their blocks
    queue: list[tuple[float, int, Block | None, Bounds | None]] = [
        (-upper, number, None, None) for number, upper in enumerate(uppers) if upper > 0
    ]
    heapq.heapify(queue)

    def consider(state: _Search[S], block: Block) -> None:
        if block.num_points <= state.space.few:
            state.evaluate(block)
            return
        rough = state.space.roughly(block)
        if rough is not None and state.settle(block, rough):
            return
        bounds = state.space.bound(block)
        if state.settle(block, bounds):
            return
        if block.num_points == 1:
            state.evaluate(block)
        else:
            heapq.heappush(queue, (-bounds.throughput, state.number, block, bounds))

    while queue:
        negative, number, block, bounds = heapq.heappop(queue)
        if block is None or bounds is None:
            if not incumbent.beats(-negative):
                state = _Search(number, openers[number](), bound_s, incumbent)
                opened[number] = state
                consider(state, state.space.whole)
            continue
        state = opened[number]
        if not state.settle(block, bounds):
            for half in block.split():
                consider(state, half)
    return {number: (state.space, state.found()) for number, state in opened.items()}


def fastest(space: Space, slack: float = ROUNDING) -> Candidate | None:
    """The point that promises the least latency, the answer to "what could be reached"; None if none fits.

    No point promises less by more than a relative `slack`.
    """
    best: Candidate | None = None
    queue: list[tuple[float, Block]] = [(0.0, space.whole)]
    while queue:
        low, block = heapq.heappop(queue)
        if best is not None and low > best.promised_s * (1 - slack):
            break
        if block.num_points > max(space.few, 1):
            for half in block.split():
                bounds = space.bound(half)
                if bounds.blocked is None:
                    heapq.heappush(queue, (bounds.promised_s, half))
            continue
        for point in block.points():
            if space.blocked(point) is None:
                promised_s = space.promised_s(point)
                if best is None or promised_s < best.promised_s:
                    best = Candidate(
                        point=point, throughput=space.throughput(point), promised_s=promised_s
                    )
    return best
