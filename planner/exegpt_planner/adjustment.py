"""What is adjusted at run time: encodes of equal token sums, and a pool that is led back to the plan's (paper, 5.2).

An encode takes the first waiting queries whose token sum is nearest to T = B_E E[I]. What is not taken stays first in
the queue, so every query is in exactly one encode, the sum strays from T alike on both sides, and the mean batch is
B_E: E[N] = T / E[I]. (Drawn afresh each time it would be T / E[I] + Var I / (2 E[I]**2).) Below LEAST_BATCH "at least
one query" shows, and there is no adjustment.

The pool that an RRA encode finds has mean B_E sum_j S(jN) and sd sigma. Beyond a band of BAND_SDS sigma the encode
takes `gain` queries fewer, or more, for each one; gain sigma is at most the sd sqrt(Var I B_E) / E[I] that the first
rule has just taken from the encode. Both keep every mean (docs/theory.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate

import numpy as np

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.schedule import (
    Adjustment,
    PoolBand,
    Prediction,
    RraSchedule,
    Schedule,
    WaaSchedule,
)
from exegpt_planner.workload import Workload

LEAST_BATCH = 4  # queries; with 3 the mean batch strays by 1 %, with 1 by 16 %
MOST_TIMES = 2  # an encode takes at most so many times B_E
REACH_SDS = 3.0  # of B_E prompts' tokens: as far as a profile covers an encode (simulator/costs.py)
BAND_SDS = (
    0.5  # wider, the pool strays as if left alone; narrower, every encode is changed for nothing
)
MOST_GAIN = 0.5  # beyond, the pool is overshot: what is left of it at the next encode is less than what came
OUTLIVES = 1.5  # encodes' worth of queries that an encode must find, to have a pool to lead
ENCODES_RULE = (
    1 / 3
)  # share of the cycle: where decodes cost more, equal numbers serve latency better


def rra_adjustment(
    law: CompletionLaw, batch: int, interval: int, *, encode_share: float, reach: float
) -> Adjustment | None:
    """The adjustment of RRA's B_E and N_D; `reach` is the most prompts an encode may have by the profile.

    None where it would do harm: few queries an encode, or decodes that cost most while most of the pool leaves before
    the next encode. There equal tokens, being unequal numbers of queries, only move the fluctuation to the decodes.
    """
    found = np.arange(interval + 1, law.longest + 1, interval)
    alive = law.alive[found]
    pool, pool_sd = (
        batch * float(alive.sum()),
        math.sqrt(batch * float((alive * (1 - alive)).sum())),
    )
    outlives = pool >= OUTLIVES * batch
    if not (outlives or encode_share >= ENCODES_RULE):
        return None
    inputs = law.workload.input
    encode_sd = math.sqrt(batch * inputs.var) / inputs.mean  # queries' worth of tokens
    gain = min(MOST_GAIN, encode_sd / pool_sd) if pool_sd > 0 else 0.0
    band = (
        PoolBand(mean=pool, band=BAND_SDS * pool_sd, gain=gain) if outlives and gain > 0 else None
    )
    return _adjustment(law.workload, batch, reach=reach, pool=band)


def adjusted(
    schedule: Schedule, prediction: Prediction, workload: Workload, *, reach: float
) -> Schedule:
    """A schedule set by hand, with the adjustment that a plan of it would have; one that has its own keeps it."""
    adjustment: Adjustment | None
    match schedule:
        case RraSchedule(adjustment=None, encode_batch=batch, encode_interval=interval):
            share = prediction.encode_share
            law = CompletionLaw(workload)
            adjustment = rra_adjustment(law, batch, interval, encode_share=share, reach=reach)
        case WaaSchedule(adjustment=None, encode_batch=batch):
            adjustment = waa_adjustment(workload, batch, reach=reach)
        case _:
            return schedule
    return schedule.model_copy(update={"adjustment": adjustment})


def waa_adjustment(workload: Workload, batch: int, *, reach: float) -> Adjustment | None:
    """The adjustment of WAA's B_E.

    Its pools need no band: places hold them from above, and below that an encoder never waits, so that it could encode
    more at a time but hardly more in a second.
    """
    return _adjustment(workload, batch, reach=reach, pool=None)


def _adjustment(
    workload: Workload, batch: int, *, reach: float, pool: PoolBand | None
) -> Adjustment | None:
    inputs = workload.input
    if batch < LEAST_BATCH or inputs.var == 0:  # of equal prompts, equal numbers are equal tokens
        return None
    tokens = batch * inputs.mean
    return Adjustment(
        encode_tokens=tokens,
        most_tokens=tokens + REACH_SDS * math.sqrt(batch * inputs.var),
        most_queries=max(batch, min(MOST_TIMES * batch, int(reach))),
        pool=pool,
    )


def encode_target(adjustment: Adjustment, batch: int, pool: int) -> float:
    """Tokens to encode when `pool` queries are found in decode."""
    band = adjustment.pool
    if band is None:
        return adjustment.encode_tokens
    excess = pool - band.mean
    beyond = math.copysign(max(0.0, abs(excess) - band.band), excess)
    per_query = adjustment.encode_tokens / batch
    strayed = adjustment.most_tokens - adjustment.encode_tokens
    return adjustment.encode_tokens - min(max(band.gain * beyond * per_query, -strayed), strayed)


def nearest_prefix(tokens: Iterable[int], target: float) -> int:
    """How many of the first prompts, at least one if there is any, have the sum nearest to `target`."""
    best, best_off = 0, math.inf
    for number, total in enumerate(accumulate(tokens), start=1):
        off = abs(total - target)
        if off < best_off:
            best, best_off = number, off
        if total >= target:
            break
    return best
