"""How far a schedule uses each limit that it is asked to keep, and what of that are margins.

Each is a time with a mean and a deviation, promised as the answer's latency is. Of all answers, the 99th percentile is
that of the mixture over lengths, each length's latency normal. Where an arrival rate is given, answers and first tokens
count from arrival, and the rate itself is held against the throughput.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.simulator.arrivals import FULLEST
from exegpt_planner.simulator.latency import Latency
from exegpt_planner.simulator.promise import KEPT, Limits, Promise
from exegpt_planner.strict import StrictModel

Floats = NDArray[np.float64]
Knobs = tuple[int, int]
Name = Literal["answer", "all_answers", "first_token", "gap", "token", "arrivals"]

LENGTHS = 16  # at which latencies are computed for that of all answers
TAIL = 0.1  # the longest answers, among which those lengths are: only they can be the slowest 1 %
HALVINGS = 50
NOTHING = Latency(mean_s=0.0, sd_s=0.0)


class Timed(Protocol):
    """What a strategy's simulator says of a schedule, by its two knobs."""

    law: CompletionLaw

    def latency(self, x: int, y: int, length: int, /) -> Latency: ...
    def latency_mean_s(self, x: int, y: int, length: int, /) -> float: ...
    def first_token(self, x: int, y: int, /) -> Latency: ...
    def gap(self, x: int, y: int, decodes: int, /) -> Latency:
        """The longest between two tokens of an answer of so many decode iterations."""
        ...

    def wait(self, x: int, y: int, rate_per_s: float, /) -> Latency:
        """From arrival to encode, of queries that arrive at this rate at a unit."""
        ...


class Use(StrictModel):
    """Of one limit."""

    name: Name
    promised: float  # s; queries/s of arrivals
    mean: float  # of it, without the margins for fluctuation and the table's error
    limit: float  # s; of arrivals 95 % of the throughput

    @property
    def share(self) -> float:
        """Used of the limit; above 1 it is broken."""
        return self.promised / self.limit


def held_s(
    model: Timed, knobs: Knobs, promise: Promise, queries_per_s: float, units: int = 1
) -> float:
    """What is held against the bound: the most used limit, in terms of `Limits.reference_s`."""
    if promise.limits is None and promise.sds == 0:
        return promise.promised_s(model.latency_mean_s(*knobs, promise.length), 0.0)
    if promise.limits is None:
        latency = model.latency(*knobs, promise.length)
        return promise.promised_s(latency.mean_s, latency.sd_s)
    found = uses(model, knobs, promise, promise.limits, queries_per_s=queries_per_s, units=units)
    return max((use.share for use in found), default=0.0) * promise.limits.reference_s


def held_at_least_s(promise: Promise, promised_s: float, queries_per_s: float) -> float:
    """A lower bound on what is held against the bound, from ones on what is promised of whole answers and on 1 / X."""
    limits = promise.limits
    if limits is None:
        return promised_s
    share = promised_s / limits.answer_s
    if queries_per_s > 0:  # 0: none keeps the limit on whole answers
        share = max(share, limits.arrivals_per_s / queries_per_s)
    return share * limits.reference_s


def uses(
    model: Timed,
    knobs: Knobs,
    promise: Promise,
    limits: Limits,
    *,
    queries_per_s: float,
    units: int = 1,
) -> list[Use]:
    """How far each finite limit is used."""
    rate, found = limits.arrivals_per_s, []
    wait = NOTHING
    if rate:
        most = FULLEST * queries_per_s
        found.append(Use(name="arrivals", promised=rate, mean=rate, limit=most))
        wait = model.wait(*knobs, min(rate, most) / units)  # beyond, it grows without end

    def use(name: Name, limit: float, time: Latency) -> None:
        promised_s = promise.promised_s(time.mean_s, time.sd_s)
        found.append(Use(name=name, promised=promised_s, mean=time.mean_s, limit=limit))

    answer = model.latency(*knobs, promise.length)
    if math.isfinite(limits.answer_s):
        use("answer", limits.answer_s, answer.after(wait))
    if math.isfinite(limits.all_answers_s):
        use("all_answers", limits.all_answers_s, _of_all(model, knobs, promise, wait))
    if math.isfinite(limits.first_token_s):
        use("first_token", limits.first_token_s, model.first_token(*knobs).after(wait))
    d = promise.length - 1
    if math.isfinite(limits.gap_s) and d > 0:
        use("gap", limits.gap_s, model.gap(*knobs, d))
    if math.isfinite(limits.token_s) and d > 0:
        first = model.latency(*knobs, 1)
        each = Latency(mean_s=(answer.mean_s - first.mean_s) / d, sd_s=answer.sd_s / d)
        use("token", limits.token_s, each)
    return found


def _of_all(model: Timed, knobs: Knobs, promise: Promise, wait: Latency) -> Latency:
    """The mean latency at the 99th percentile of lengths, and what its promise needs of deviations beside that."""
    pmf = model.law.workload.output.pmf
    lengths = _some_lengths(pmf)
    some = [model.latency(*knobs, int(length)).after(wait) for length in lengths]
    every = np.arange(1, len(pmf))
    mean = np.interp(every, lengths, [each.mean_s for each in some])
    sd = np.interp(every, lengths, [each.sd_s for each in some])
    at = model.law.workload.output.quantile(KEPT)
    mean_s = float(mean[at - 1])
    if promise.sds == 0:
        return Latency(mean_s=mean_s, sd_s=0.0)
    percentile_s = _percentile(pmf[1:], mean, np.maximum(sd, 1e-12))
    return Latency(mean_s=mean_s, sd_s=(percentile_s - mean_s) / promise.sds)


def _some_lengths(pmf: Floats) -> NDArray[np.int64]:
    """From where the tail begins to the longest, about evenly in probability and in length."""
    cumulative = np.cumsum(pmf)
    first = int(np.searchsorted(cumulative, 1 - TAIL))
    at = np.searchsorted(cumulative, [KEPT - 1e-12])  # as LengthLaw.quantile finds it
    shares = np.linspace(1 - TAIL, 1, LENGTHS // 2, endpoint=False)
    by_chance = np.searchsorted(cumulative, shares)
    by_length = np.linspace(first, len(pmf) - 1, LENGTHS // 2).round().astype(np.int64)
    return np.unique(np.maximum(np.concatenate([by_chance, by_length, at]), 1))


def _percentile(chance: Floats, mean: Floats, sd: Floats) -> float:
    """Where a mixture of normal laws has 99 % of its mass."""
    low, high = 0.0, float((mean + 8 * sd).max())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = float(chance @ ndtr((middle - mean) / sd))
        low, high = (middle, high) if below < KEPT else (low, middle)
    return high
