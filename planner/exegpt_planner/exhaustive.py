"""Every schedule of a space, one after the other: the oracle that the search is tested against."""

from __future__ import annotations

from exegpt_planner.search import Candidate, Space


def best_of_all(space: Space, bound_s: float) -> Candidate | None:
    """The schedule with the most throughput whose promise keeps `bound_s`, or None."""
    best: Candidate | None = None
    for point in space.whole.points():
        if space.blocked(point) is not None:
            continue
        promised_s = space.promised_s(point)
        if promised_s > bound_s:
            continue
        found = Candidate(point=point, throughput=space.throughput(point), promised_s=promised_s)
        if found.beats(best):
            best = found
    return best
