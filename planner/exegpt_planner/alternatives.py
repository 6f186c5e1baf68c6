"""What each strategy could do under the bound: one row a strategy, WAA's that of its best split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from exegpt_planner.schedule import Prediction, Schedule, Split
from exegpt_planner.search import Candidate, Found
from exegpt_planner.splits import devices_of, named_splits
from exegpt_planner.strategies import StrategySpace
from exegpt_planner.strict import StrictModel
from exegpt_planner.waa_space import WaaSpace

Searched = tuple[StrategySpace, Found]


class Alternative(StrictModel):
    """The best that a strategy can do, and why it was or was not chosen."""

    strategy: str
    schedule: Schedule | None = None
    prediction: Prediction | None = None
    reason: str


def winner(found: Sequence[Found]) -> tuple[int, Candidate] | None:
    """(index, candidate) of the best; on a tie the space named first."""
    reached = [(i, each.best) for i, each in enumerate(found) if each.best is not None]
    return max(reached, key=lambda pair: (pair[1].throughput, -pair[0]), default=None)


def alternatives(
    spaces: Sequence[StrategySpace], found: Sequence[Found], kept: str
) -> tuple[Alternative, ...]:
    """The best of each strategy beside the best of all, of which there must be one."""
    best = winner(found)
    assert best is not None, kept
    top = spaces[best[0]].strategy, best[1].throughput
    searched = list(zip(spaces, found, strict=True))
    groups = [list(each) for _, each in groupby(searched, key=lambda pair: pair[0].strategy)]
    return tuple(_row(each, top, kept, alone=len(groups) == 1) for each in groups)


def _row(
    searched: Sequence[Searched], top: tuple[str, float], kept: str, *, alone: bool
) -> Alternative:
    strategy = searched[0][0].strategy
    best = winner([found for _, found in searched])
    if best is None:
        reason = f"no schedule keeps {kept}{_splits(searched)}"
        return Alternative(strategy=strategy, reason=reason)
    space, candidate = searched[best[0]][0], best[1]
    if strategy == top[0]:
        others = "the only strategy within the bound" if alone else "the most throughput"
        reason = f"chosen: {others}"
    else:
        reason = f"{1 - candidate.throughput / top[1]:.1%} less throughput"
    return Alternative(
        strategy=strategy,
        schedule=space.schedule(candidate.point),
        prediction=space.predict(candidate.point),
        reason=reason + _splits(searched, space, candidate),
    )


def _splits(
    searched: Sequence[Searched],
    space: StrategySpace | None = None,
    candidate: Candidate | None = None,
) -> str:
    """The splits of devices searched (bounds exclude the others), and at the best knobs those that the paper names."""
    spaces = [each for each, _ in searched if isinstance(each, WaaSpace)]
    if not spaces:
        return ""
    splits = sorted({devices_of(each.model) for each in spaces})
    searched_in = f"; splits searched: {', '.join(map(_text, splits))}"
    if candidate is None or not isinstance(space, WaaSpace):
        return searched_in
    if sum(devices_of(space.model)) == 2:
        return searched_in
    named = named_splits(space.model, *candidate.point)
    return f"{searched_in} ({', '.join(f'{name} {_text(split)}' for name, split in named.items())})"


def _text(split: Split) -> str:
    return f"{split[0]}+{split[1]}"
