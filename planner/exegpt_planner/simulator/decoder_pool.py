"""The pool of one WAA decoder, fed B_E queries at a time by encoders that may have to wait for places.

While encoders never wait, each decoder gains lambda queries a second and loses n / (E[D] tau(n)); its pool fluctuates
with variance v n, v = (sum_t S(t) (1 - S(t)) + J sum_t S(t)**2) / E[D], J the dispersion of what is fed. Its law is
then that of a birth and death process, scaled to that variance, cut at c decoding queries where places run out:

    p(n) / p(n - 1) = (lambda E[D] tau(m) / m)**(1 / v),  m = n - (1 - v) / 2,   n <= c

(v = 1: exact; v small: normal around n = lambda E[D] tau(n), truncated at c). One pass over c gives every B_D:
B_D = c + (B_E - 1) / 2 free places that are not yet a batch + X / y (time from an encode's start to the join).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.simulator.decoder_costs import DecoderCosts

Floats = NDArray[np.float64]

INSIDE = 14.0  # log of what the law falls from its top to the profile's end, where it lies inside
FULL = 1e-3  # share of the law beyond c below which more places change nothing
ROUNDS = 30  # of the pool that empties between joins, at most; it settles in a few
SETTLED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What one decoder is fed."""

    batch: int  # B_E
    encoders: int  # x
    decoders: int  # y
    encode_s: float  # tau_E, from encode to encode of an encoder
    alone_s: float  # an encode, its sending and its dispatch, where no other is underway
    in_line_s: float  # the same where encoders never wait
    spread: float  # J: variance of the queries fed in a long time over their mean
    exposed_s: float
    joined_s: float

    @property
    def rate_per_s(self) -> float:
        """lambda: queries a decoder gains while encoders never wait."""
        return self.encoders * self.batch / self.encode_s / self.decoders


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolState:
    """A decoder at some pools B_D; arrays alike."""

    queries_per_s: Floats  # of the deployment
    busy: Floats  # share of the time that encoders encode
    pool: Floats  # queries decoding, mean over iterations
    pool_var: Floats  # of its slow part
    iteration_s: Floats  # mean, dispatch and joins included
    seen_s: Floats  # the same as queries that join see it
    seen_sd_s: Floats
    idle: Floats  # share of the time that a decoder has nobody to decode
    hand_over_s: Floats  # from the end of an encode to the first iteration after it
    held: Floats  # queries being encoded for a decoder or handed over to it
    transit_var: Floats  # of the pool, as what is held in transit strays while places bind
    memory_iterations: Floats  # for which a pool stays larger or smaller than its mean


class PoolRow:
    """One decoder at every pool B_D, for one B_E."""

    def __init__(self, costs: DecoderCosts, feed: Feed) -> None:
        self._feed, n = feed, costs.n
        batch, decode_mean = feed.batch, costs.decode_mean
        rate, v = feed.rate_per_s, costs.spread(feed.decoders, feed.spread)
        times = costs.smoothed(batch) + feed.joined_s * n / (decode_mean * batch)
        steps = costs.steps[1:]
        at = n[1:] - (steps - 1) / 2 - (1 - v) / 2
        ratio = rate * decode_mean * np.interp(at, n, times) / at
        law = np.append(0.0, np.cumsum(steps * np.log(ratio)) / v)
        law -= law.max()
        is_inside = bool(law[-1] < -INSIDE)
        below = _Below(law + np.log(costs.steps))
        per_s = below.mean(1 / times, first=1)
        queries = below.mean(n / times, first=1) / per_s
        iteration_s = 1 / per_s
        done = below.mean(n / times) / decode_mean
        busy = done / rate
        if (
            is_inside
        ):  # where places never bind, encoders never wait, whatever the grid's coarseness
            busy = busy * (1 + (1 / busy[-1] - 1) * busy / busy[-1])
        self._busy = np.minimum(busy, 1.0)
        seen = below.mean(times, first=1)
        self._seen_sd_s = np.sqrt(np.maximum(below.mean(times**2, first=1) - seen**2, 0.0))
        self._var = np.maximum(below.mean(n * n) - below.mean(n) ** 2, 0.0)
        idle = 0.0
        if is_inside:
            idle, pool, time_s = _emptying(costs, feed, float(iteration_s[-1]))
            if idle > 0:
                queries = queries + self._busy * (pool - queries[-1])
                iteration_s = iteration_s + self._busy * (time_s - iteration_s[-1])
                seen = seen + self._busy * (time_s - seen[-1])
        queries = np.minimum(queries, np.maximum(n, 1.0))
        self._busy = np.minimum(self._busy, costs.most_per_s(queries) / decode_mean / rate)
        self._idle = idle * self._busy
        self._queries, self._iteration_s, self._seen_s = queries, iteration_s, seen
        self._memory = self._var * decode_mean / (v * np.maximum(queries, 1.0))
        self._hand_over_s, self._held = self._in_transit(costs)
        self._transit_var = self._strays(v)
        self._tickets = np.maximum.accumulate(n + self._free(costs) + self._held)
        enough = np.flatnonzero(below.log_total >= below.log_total[-1] + np.log1p(-FULL))
        self._full = int(enough[0]) if is_inside else len(n) - 1

    def _in_transit(self, costs: DecoderCosts) -> tuple[Floats, Floats]:
        """(time from an encode's end to the join, queries in encode and hand-over)."""
        feed, busy = self._feed, self._busy
        boundary_s = (1 - self._idle) * self._iteration_s / 2 + self._idle * costs.dispatch_s
        hand_over_s = feed.exposed_s + boundary_s
        others = 1 - 1 / feed.decoders
        turn_s = others * busy**feed.encoders * feed.encode_s / (2 * feed.encoders)
        stay = 1 - float(costs.law.workload.output.pmf[1])  # that are handed over at all
        taken_s = feed.alone_s + busy * (feed.in_line_s - feed.alone_s)
        held_s = taken_s + turn_s + stay * hand_over_s
        return hand_over_s, feed.rate_per_s * busy * held_s

    def _strays(self, v: float) -> Floats:
        """Where places bind, places less the pool are those of a batch to come and of what is in transit.

        That is what ended while it was, as random as its number, and strays with the encodes' own times: by B_E for
        every one that ends sooner or later than the one after it. By how much places bind the cut law's variance says.
        """
        feed = self._feed
        rate = feed.rate_per_s * self._busy
        encode_sd_s = feed.encode_s * np.sqrt(feed.spread / feed.batch)
        uncut = np.maximum(v * self._queries, 1e-12)
        bound = 1 - np.minimum(self._var / uncut, 1.0)
        return np.asarray(bound * (self._held + feed.batch * rate * encode_sd_s / np.sqrt(np.pi)))

    def _free(self, costs: DecoderCosts) -> Floats:
        """Places free but not yet a batch, mean: less than half a batch where a whole batch ends at once."""
        workload = costs.law.workload
        spread = np.sqrt(12 * workload.output.var)  # iterations over which a batch ends
        period = self._feed.batch * costs.decode_mean / np.maximum(self._queries, 1.0)
        return np.asarray((self._feed.batch - 1) / 2 * np.minimum(spread / period, 1.0))

    @property
    def most(self) -> int:
        """The largest pool that makes a difference, or that the profile tells of."""
        return int(np.ceil(self._tickets[self._full]))

    def at(self, pools: Floats) -> PoolState:
        """The decoder at these B_D; beyond the largest told of, at that."""
        where = np.interp(pools, self._tickets, np.arange(len(self._tickets)))
        low = np.minimum(where.astype(np.int64), len(self._tickets) - 2)
        part = where - low

        def pick(values: Floats) -> Floats:
            return np.asarray(values[low] * (1 - part) + values[low + 1] * part)

        busy = pick(self._busy)
        return PoolState(
            queries_per_s=busy * self._feed.rate_per_s * self._feed.decoders,
            busy=busy,
            pool=pick(self._queries),
            pool_var=pick(self._var),
            iteration_s=pick(self._iteration_s),
            seen_s=pick(self._seen_s),
            seen_sd_s=pick(self._seen_sd_s),
            idle=pick(self._idle),
            hand_over_s=pick(self._hand_over_s),
            held=pick(self._held),
            transit_var=pick(self._transit_var),
            memory_iterations=pick(self._memory),
        )


class _Below:
    """Means under a law, given in logarithms, cut at each of its values."""

    def __init__(self, law: Floats) -> None:
        self._law = law
        self.log_total = np.logaddexp.accumulate(law)

    def mean(self, values: Floats, *, first: int = 0) -> Floats:
        """E[values | first <= n <= c] for each c; below `first`, that at `first`."""
        law = self._law[first:]
        total = self.log_total if first == 0 else np.logaddexp.accumulate(law)
        with np.errstate(divide="ignore"):
            sums = np.logaddexp.accumulate(law + np.log(values[first:]))
        means = np.exp(sums - total)
        return np.append(np.full(first, means[0]), means)


def _emptying(costs: DecoderCosts, feed: Feed, time_s: float) -> tuple[float, float, float]:
    """(share of the time with nobody to decode, pool and time of the iterations that run), while no encoder waits."""
    rate, n = feed.rate_per_s, costs.n
    idle, pool = 0.0, 0.0
    for _ in range(ROUNDS):
        before = idle, pool
        period = feed.batch / (rate * time_s)  # iterations from join to join
        idle = _empty_share(costs.law, feed.batch, period)
        pool = rate * costs.decode_mean * time_s / (1 - idle)
        joins = 1 / (period * (1 - idle))
        time_s = float(np.interp(pool, n, costs.times)) + feed.joined_s * joins
        if abs(idle - before[0]) < SETTLED and abs(pool - before[1]) < SETTLED * pool:
            break
    return (idle, pool, time_s) if idle > 1e-3 else (0.0, pool, time_s)


def _empty_share(law: CompletionLaw, batch: int, period: float) -> float:
    """Share of a period in which nobody decodes, when every period a batch joins."""
    if period >= law.longest:
        alone = 1 - (1 - law.alive[1:]) ** batch
        return float(1 - alone.sum() / period)
    low = max(1, int(period))
    part = min(max(period - low, 0.0), 1.0)
    ends = [float(np.exp(batch * law.phase(each).log_empty).mean()) for each in (low, low + 1)]
    return ends[0] * (1 - part) + ends[1] * part
