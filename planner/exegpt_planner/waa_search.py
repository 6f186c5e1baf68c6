"""The search of all pairs of sides together: best first by their bounds, a few of them at a time.

Pairs are many more than shapes. Only the best are put into one search; should a pair that was left out be able to beat
what it finds, it is repeated with many more. What is left out is recorded by how many devices encode.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.proof import Relaxed
from exegpt_planner.search import ROUNDING, Found, search_together
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.waa_sites import WaaSite, WaaSites
from exegpt_planner.waa_space import WaaSpace

Floats = NDArray[np.float64]

FIRST, MORE = 256, 16  # pairs put in at first, and times as many each time that does not do


def search_waa(
    sites: WaaSites, promise: Promise, bound_s: float
) -> tuple[list[tuple[WaaSite, WaaSpace, Found]], list[Relaxed]]:
    """(what was searched, what could win nothing)."""
    uppers = sites.uppers(promise)
    order = np.argsort(-uppers, kind="stable")
    number = FIRST
    while True:
        some = [sites[int(at)] for at in order[:number]]
        openers = [partial(site.space, promise) for site in some]
        opened = search_together(openers, uppers[order[:number]].tolist(), bound_s)
        best = max((f.best.throughput for _, f in opened.values() if f.best is not None), default=0)
        if number >= len(order) or uppers[order[number]] * (1 + ROUNDING) < best:
            break
        number *= MORE
    done = [(some[at], space, found) for at, (space, found) in opened.items()]
    return done, _left_out(sites, uppers, {site.number for site, _, _ in done})


def _left_out(sites: WaaSites, uppers: Floats, opened: set[int]) -> list[Relaxed]:
    """A record for all pairs with as many devices that encode."""
    left = np.array([at not in opened for at in range(len(uppers))])
    return [
        Relaxed(
            strategy="WAA",
            shape=first,
            number=int(left[first:end].sum()),
            throughput=float(uppers[first:end][left[first:end]].max()),
        )
        for first, end in sites.spans()
        if left[first:end].any()
    ]
