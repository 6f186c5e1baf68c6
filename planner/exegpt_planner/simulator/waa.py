"""WAA on x encoders and y decoders: batches of B_E are encoded and handed over to pools of at most B_D, asynchronously.

    tau_E  = E[T_E(B_E)] + E[sent] + dispatch,   X <= x B_E / tau_E
    Lat(s) = E[T_E + sent] + h + (s - 1) tau_D - dispatch,   h = exposed + the wait for an iteration's end

decoder_pool.py gives X, the pool and tau_D (an iteration, its dispatch and its share of joins) at every B_D. An answer
sees a pool in which it is itself, and just after its own batch has joined. Its latency strays by what is encoded with
it, by when in an iteration its KV arrives, by the pool's slow fluctuation, which lasts for `memory_iterations`, by how
many queries are in encode when places bind, and by the context of those beside it. Queries of one token never reach a
decoder.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.expectation import Hinges, add
from exegpt_planner.layout import Layout
from exegpt_planner.profile_table import HandOverCurves
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.schedule import Prediction, Split, WaaSchedule
from exegpt_planner.simulator.arrivals import wait_for_encode
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.decoder_pool import DecoderCosts, Feed, PoolRow, PoolState
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.latency import Latency
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import KEPT_SDS, Promise
from exegpt_planner.simulator.renewal import SlotProcess, SlotWork
from exegpt_planner.simulator.waa_points import Points

Floats = NDArray[np.float64]

ROOM = 2  # a pool has places for at least so many encodes: one decodes while the next is encoded


class WaaModel:
    """Everything the search asks of WAA at one split, with what does not depend on the schedule computed once."""

    def __init__(  # noqa: PLR0913 - what WAA depends on
        self,
        costs: StepCosts,
        hand_over: HandOverCurves,
        law: CompletionLaw,
        prompts: PromptMoments,
        split: Split,
        most: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        """`most` is the largest pool of interest, where the profile covers more.

        `layout` is of every encoder and decoder, one stage; None: a device.
        """
        self.costs, self.law, self.prompts, self.split = costs, law, prompts, split
        self.layout = layout
        self.encodes = EncodeTimes(Pipeline.single(costs), law.workload, prompts, most)
        self.decoders = DecoderCosts(costs, law, most)
        sent, joined, exposed = (
            add([(1.0, curve)]) for curve in (hand_over.sent, hand_over.joined, hand_over.exposed)
        )
        self.hand_over_limit = min(sent.limit, joined.limit, exposed.limit)
        self._sent_s, self._joined_s, self._exposed_s = map(self._by_batch, (sent, joined, exposed))
        self._sent = sent
        self._rows: dict[int, PoolRow] = {}
        self._context_vars: dict[int, float] = {}
        self.points: dict[int, Points] = {}  # by length

    @property
    def max_batch(self) -> int:
        """The largest B_E whose encode and hand-over the profile covers."""
        return min(self.encodes.max_batch, len(self._sent_s) - 1)

    def row(self, batch: int) -> PoolRow:
        """A decoder at every pool, for one B_E."""
        found = self._rows.get(batch)
        if found is None:
            found = self._rows[batch] = PoolRow(self.decoders, self._feed(batch))
        return found

    def at(self, batch: int, pools: Floats) -> PoolState:
        """A decoder at these pools."""
        return self.row(batch).at(pools)

    def throughput(self, batch: int, pool: int) -> float:
        """Queries per second, of all decoders together."""
        return float(self.at(batch, _one(pool)).queries_per_s[0])

    def latency_mean_s(self, batch: int, pool: int, length: int) -> float:
        """Mean latency of an answer of `length` tokens."""
        pools = _one(pool)
        return float(self.latency_means_s(batch, pools, self.at(batch, pools), length)[0])

    def latency(self, batch: int, pool: int, length: int) -> Latency:
        """Mean and standard deviation of the latency of an answer of `length` tokens."""
        pools = _one(pool)
        state = self.at(batch, pools)
        return Latency(
            mean_s=float(self.latency_means_s(batch, pools, state, length)[0]),
            sd_s=float(self.latency_sds_s(batch, state, length)[0]),
        )

    def latency_means_s(self, batch: int, pools: Floats, state: PoolState, length: int) -> Floats:
        """Mean latencies of an answer of `length` tokens, by pool."""
        encode_s = self.first_token_s(batch, length)
        if length == 1:
            return np.full(pools.shape, encode_s)
        d = length - 1
        seen_s = state.seen_s + self._slope(state) * self._beside(batch, pools, state, d)
        least_s = self.costs.decode_fixed_s + self.costs.dispatch_s
        decode_s = d * np.maximum(seen_s, least_s) - self.costs.dispatch_s
        return np.asarray(encode_s + state.hand_over_s + decode_s)

    def first_token_s(self, batch: int, length: int) -> float:
        """Mean time of the encode that an answer of `length` tokens is part of, its sending included."""
        excess = self.encodes.own_input(length)[0] - self.prompts.tokens
        own_s = float(self.encodes.own(length).pass_s[batch - 1])
        return own_s + float(self._sent_s[batch]) + excess * self._sent_slope(batch)

    def latency_sds_s(self, batch: int, state: PoolState, length: int) -> Floats:
        """Standard deviations of the latency of an answer of `length` tokens, by pool."""
        own_var = self.encodes.own_input(length)[1]
        token_s, residual = self._token_cost(batch)
        encode = batch * residual + (batch - 1) * token_s**2 * self.prompts.tokens_var
        d = length - 1
        if d == 0:
            return np.full(state.pool.shape, float(np.sqrt(encode + token_s**2 * own_var)))
        context_s = self._context_slope(state)
        own = (token_s + d * context_s) ** 2 * own_var
        boundary = (1 - state.idle) * state.iteration_s**2 / 12
        slow = state.seen_sd_s**2 * _window(d, state.memory_iterations)
        transit = self._slope(state) ** 2 * (1 - state.busy) * state.held
        transit = transit * _window(
            d, state.held / np.maximum(state.pool, 1e-9) * self.law.decode_mean
        )
        contexts = context_s**2 * state.pool * self._context_var(length)
        return np.sqrt(encode + own + boundary + slow + transit + contexts)

    def first_token(self, batch: int, pool: int) -> Latency:
        """From the start of its encode to a query's first token."""
        token_s, residual = self._token_cost(batch)
        del pool
        var = batch * (residual + token_s**2 * self.prompts.tokens_var)
        mean_s = float(self.encodes.times.pass_s[batch] + self._sent_s[batch])
        return Latency(mean_s=mean_s, sd_s=float(np.sqrt(var)))

    def gap(self, batch: int, pool: int, decodes: int) -> Latency:
        """The longest between two tokens of an answer: of an iteration in which a batch joins.

        The pool strays slowly, so all iterations of an answer are alike.
        """
        del decodes
        state = self.at(batch, _one(pool))
        period = max(1.0, batch * self.law.decode_mean / max(float(state.pool[0]), 1e-9))
        mean_s = float(state.seen_s[0] + self._joined_s[batch] * (1 - 1 / period))
        return Latency(mean_s=mean_s, sd_s=float(state.seen_sd_s[0]))

    def wait(self, batch: int, pool: int, rate_per_s: float) -> Latency:
        """From arrival to encode, of queries that arrive at this rate in all."""
        cycle_s = batch / self.throughput(batch, pool)
        return wait_for_encode(rate_per_s, cycle_s, batch)

    def query_costs_s(self, batch: int, pool: int) -> tuple[float, float]:
        """(worker time that a query's encode takes, that its decode takes)."""
        state = self.at(batch, _one(pool))
        decode_s = self.law.decode_mean * float(state.iteration_s[0] / state.pool[0])
        return self._feed(batch).encode_s / batch, decode_s

    def kv_tokens(self, batch: int, pool: int) -> float:
        """KV tokens of one decoder just after a join, mean."""
        return float(self._kv(batch, self.at(batch, _one(pool)))[0][0])

    def kv_need(self, batch: int, pool: int) -> float:
        """KV tokens that one worker holds ready: a decoder at its fullest, or an encoder's batch."""
        return float(self.kv_needs(batch, self.at(batch, _one(pool)))[0])

    def kv_needs(self, batch: int, state: PoolState) -> Floats:
        """The same by pool."""
        prompts = self.prompts
        queries = state.pool + (batch - 1) / 2
        mean, var = self._kv(batch, state)
        var = (
            var
            + state.pool_var * self.decoders.context**2
            + ((1 - state.busy) * state.held * (prompts.tokens**2))
        )
        encoder = memory.needs(
            *(np.array([batch * value]) for value in (prompts.tokens, prompts.tokens_var, 1.0))
        )
        return np.maximum(memory.needs(mean, var, queries + state.held), encoder)

    def _kv(self, batch: int, state: PoolState) -> tuple[Floats, Floats]:
        """(mean, variance at those numbers of queries) of the KV tokens of a decoder just after a join."""
        prompts, decoders = self.prompts, self.decoders
        queries = state.pool + (batch - 1) / 2
        mean = queries * decoders.context + state.held * prompts.tokens
        return mean, queries * decoders.context_var + state.held * prompts.tokens_var

    def edge(self, batch: int, pool: int) -> float:
        """How far the schedule reaches into the profile: 1 is its end."""
        return float(self.edges(batch, self.at(batch, _one(pool)))[0])

    def edges(self, batch: int, state: PoolState) -> Floats:
        """The same by pool."""
        costs, decoders = self.costs, self.decoders
        pool_sd = self._pool_sd(batch, state)
        context_sd = np.sqrt(state.pool * decoders.context_var + (decoders.context * pool_sd) ** 2)
        queries = (state.pool + COVERED_SDS * pool_sd) / costs.per_query.limit
        context = state.pool * decoders.context + COVERED_SDS * context_sd
        reach = np.maximum(queries, context / costs.per_context.limit)
        return np.maximum(reach, batch / max(1, self.max_batch))

    def _pool_sd(self, batch: int, state: PoolState) -> Floats:
        """The slow part, the saw of whole batches, and what is in encode while places bind."""
        saw = (1 - state.idle) * batch**2 / 12
        return np.sqrt(state.pool_var + saw + (1 - state.busy) * state.held)

    def predict(self, schedule: WaaSchedule, promise: Promise) -> Prediction:
        """All that is expected of a schedule."""
        batch, pool = schedule.encode_batch, schedule.pool
        self._check(batch, pool)
        state = self.at(batch, _one(pool))
        rate = float(state.queries_per_s[0])
        latency = self.latency(batch, pool, promise.length)
        return Prediction(
            queries_per_s=rate,
            tokens_per_s=rate * self.law.output_mean,
            cycle_s=float(state.iteration_s[0]),
            encode_share=float(state.busy[0]),
            first_token_s=float(self.encodes.times.pass_s[batch] + self._sent_s[batch]),
            latency_mean_s=latency.mean_s,
            latency_sd_s=latency.sd_s,
            latency_p99_s=latency.mean_s + KEPT_SDS * latency.sd_s,
            promised_s=promise.promised_s(latency.mean_s, latency.sd_s),
            pool_mean=float(state.pool[0]),
            pool_sd=float(self._pool_sd(batch, state)[0]),
            kv_tokens=self.kv_tokens(batch, pool),
            kv_tokens_reserved=self.kv_need(batch, pool),
        )

    def _check(self, batch: int, pool: int) -> None:
        if pool < ROOM * batch:
            raise InvalidSpec(
                "schedule",
                [
                    f"WAA with encode_batch={batch} needs a pool of at least {ROOM * batch}, not {pool}: "
                    "one batch decodes while the next is encoded"
                ],
            )
        if batch > self.max_batch or self.edge(batch, pool) > 1:
            reach = f"batches up to {self.max_batch}, {self.costs.per_query.limit:.0f} queries"
            raise IncompleteProfile(
                f"WAA with encode_batch={batch}, pool={pool} goes beyond the profile ({reach} and "
                f"{self.costs.per_context.limit:.0f} KV tokens in a decode). Profile larger steps."
            )

    def _feed(self, batch: int) -> Feed:
        encoders, decoders = self.split
        encode_s = (
            float(self.encodes.times.pass_s[batch] + self._sent_s[batch]) + self.costs.dispatch_s
        )
        token_s, residual = self._token_cost(batch)
        encode_var = batch * (residual + token_s**2 * self.prompts.tokens_var)
        return Feed(
            batch=batch,
            encoders=encoders,
            decoders=decoders,
            encode_s=encode_s,
            spread=batch * encode_var / encode_s**2,
            exposed_s=float(self._exposed_s[batch]),
            joined_s=float(self._joined_s[batch]),
        )

    def _by_batch(self, curve: Hinges) -> Floats:
        """Mean seconds by B_E as far as the hand-over was measured; [0] is unused."""
        b = np.arange(self.encodes.max_batch + 1, dtype=np.float64)
        sds = np.sqrt(b * self.prompts.tokens_var)
        covered = b * self.prompts.tokens + COVERED_SDS * sds <= self.hand_over_limit
        return curve.mean(b * self.prompts.tokens, sds)[covered]

    def _token_cost(self, batch: int) -> tuple[float, float]:
        """(s per prompt token of an encode, variance of a prompt's cost beside that, s**2)."""
        slopes = self.encodes.slopes(self.costs, np.array([float(batch)]))
        return float(slopes.token_s[0]) + self._sent_slope(batch), float(slopes.residual_var[0])

    def _sent_slope(self, batch: int) -> float:
        mean, var = batch * self.prompts.tokens, batch * self.prompts.tokens_var
        return float(self._sent.slope_mean(np.array([mean]), np.array([np.sqrt(var)]))[0])

    def _slope(self, state: PoolState) -> Floats:
        """What one query more costs an iteration, s."""
        return np.asarray(np.interp(state.pool, self.decoders.n, self.decoders.slopes))

    def _context_slope(self, state: PoolState) -> Floats:
        decoders = self.decoders
        sds = np.sqrt(state.pool * decoders.context_var)
        return self.costs.per_context.slope_mean(state.pool * decoders.context, sds)

    def _beside(self, batch: int, pools: Floats, state: PoolState, d: int) -> Floats:
        """Queries more than the mean pool that an answer of d decode iterations sees, itself included."""
        alive = self.law.one_query(d)[0].mean()
        fed = state.busy * (1 - state.idle) * (1 - alive)
        full = (1 - state.busy) * (1 - np.minimum(state.pool / pools, 1.0))
        periods = d * state.pool / (batch * self.law.decode_mean)
        saw = np.where(periods < 1, (1 - periods) / 2, 1 / 12 / np.maximum(periods, 1.0))
        return np.asarray(fed + full + (1 - state.idle) * batch * saw)

    def _context_var(self, length: int) -> float:
        """Variance of the context that one place adds in the window of an answer beside its mean, tokens**2."""
        found = self._context_vars.get(length)
        if found is None:
            work = SlotWork(
                per_encode=0.0,
                per_prompt_token=0.0,
                per_query=-self.decoders.context,
                per_context=1.0,
            )
            slots = SlotProcess(self.law).window_var(work, stay=1.0, iterations=length - 1)
            found = slots * (1 + self.law.decode_mean) / self.law.decode_mean
            self._context_vars[length] = found
        return found


def _one(pool: int) -> Floats:
    return np.array([float(pool)])


def _window(d: int, memory_iterations: Floats) -> Floats:
    """Variance of a sum over d iterations of something of variance 1 that is forgotten exponentially."""
    t = np.maximum(memory_iterations, 1e-3)
    sums = 2 * t**2 * (d / t - 1 + np.exp(-d / t))
    return np.clip(sums, 0.0, float(d) ** 2)
