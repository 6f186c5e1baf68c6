"""WAA on x encoders and y decoders: batches of B_E are encoded and handed over to pools of at most B_D, asynchronously.

    X <= x B_E / tau_E,   Lat(s) = E[T_E + sent] + h + (s - 1) tau_D - what a last iteration lacks of a round

encoders.py gives tau_E, decoder_costs.py tau_D at a pool, decoder_pool.py X, the pool and tau_D (a round with its share
of joins) at every B_D; h = exposed + the wait for a round's end. An answer
sees a pool in which it is itself, and just after its own batch has joined. Its latency strays by what is encoded with
it, by when in a round its KV arrives, by the pool's slow fluctuation, which lasts for `memory_iterations`, by how
many queries are in encode when places bind, and by the context of those beside it. Queries of one token never reach a
decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.layout import Layout
from exegpt_planner.profile_table import HandOverCurves
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.schedule import Prediction, Split, WaaSchedule
from exegpt_planner.simulator.arrivals import wait_for_encode
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.decoder_costs import DecoderCosts
from exegpt_planner.simulator.decoder_pool import Feed, PoolRow, PoolState
from exegpt_planner.simulator.encoders import Encoders
from exegpt_planner.simulator.latency import Latency
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import KEPT_SDS, Promise
from exegpt_planner.simulator.renewal import SlotProcess, SlotWork

Floats = NDArray[np.float64]

ROOM = 2  # a pool has places for at least so many encodes: one decodes while the next is encoded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instances:
    """What an encoder and a decoder are, and the KV's way between them."""

    encoder: Pipeline
    decoder: Pipeline
    hand_over: HandOverCurves
    devices: tuple[int, int] = (1, 1)  # of an encoder, of a decoder
    layouts: tuple[Layout, Layout] | None = None  # None: a device each, which holds the whole model

    @classmethod
    def alike(cls, costs: StepCosts, hand_over: HandOverCurves) -> Self:
        """A stage each, of the same costs."""
        single = Pipeline.single(costs)
        return cls(encoder=single, decoder=single, hand_over=hand_over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """The largest numbers of interest, where the profile covers more."""

    encode_batch: int | None = None
    pool: int | None = None


class WaaModel:
    """Everything the search asks of WAA at one split, with what does not depend on the schedule computed once."""

    def __init__(
        self,
        instances: Instances,
        law: CompletionLaw,
        prompts: PromptMoments,
        split: Split,
        most: Most | None = None,
    ) -> None:
        self.instances, self.law, self.prompts, self.split = instances, law, prompts, split
        most = Most() if most is None else most
        encoder, decoder = instances.encoder, instances.decoder
        self.costs = decoder.whole
        self.encoders = Encoders(
            encoder, instances.hand_over, law.workload, prompts, most.encode_batch, decoder
        )
        self.decoders = DecoderCosts(decoder, law, most.pool)
        self._rows: dict[int, PoolRow] = {}
        self._context_vars: dict[int, float] = {}

    @property
    def max_batch(self) -> int:
        """The largest B_E whose encode and hand-over the profile covers."""
        return self.encoders.max_batch

    @property
    def widest_pool(self) -> int:
        """No pool has more places taken, whatever the B_E."""
        if self.max_batch == 0:
            return 1
        encoders, decoders, (x, y) = self.encoders, self.decoders, self.split
        batches = np.arange(1.0, self.max_batch + 1)
        most = decoders.n[-1]
        rate = x * batches / encoders.interval_s[1:] / y
        rate = np.minimum(rate, decoders.most_per_s(most) / self.law.decode_mean)
        joins = 1 + most / (self.law.decode_mean * batches)
        round_s = decoders.times.max() + joins * encoders.joined_s[1:]
        number, dispatch_s = encoders.pipeline.num_stages, self.costs.dispatch_s
        held_s = (number + 1) * encoders.interval_s[1:] + encoders.pass_s[1:] + 2 * dispatch_s
        held_s = held_s + encoders.exposed_s[1:] + round_s
        return int(np.ceil((most + batches + rate * held_s).max()))

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
        excess_s = self.encoders.own_excess_s(batch, length)
        encode_s = self.encoders.taken_s(batch, state.busy) + excess_s
        if length == 1:
            return encode_s
        d, decoders = length - 1, self.decoders
        seen_s = state.seen_s + self._slope(state) * self._beside(batch, pools, state, d)
        # no law of the pool can give an answer less than Little's law asks of the pool's mean
        decoded = state.queries_per_s * self.law.decode_mean / self.split[1]
        least_s = self.costs.decode_fixed_s + self.costs.dispatch_s
        seen_s = np.maximum(np.maximum(seen_s, least_s), decoders.least_at_s(decoded))
        lacks_s = np.minimum(np.interp(state.pool, decoders.n, decoders.lacks_s), seen_s)
        return np.asarray(encode_s + state.hand_over_s + d * seen_s - lacks_s)

    def latency_sds_s(self, batch: int, state: PoolState, length: int) -> Floats:
        """Standard deviations of the latency of an answer of `length` tokens, by pool."""
        own_var = self.encoders.own_input(length)[1]
        token_s, residual = self.encoders.token_cost(batch)
        encode = batch * residual + (batch - 1) * token_s**2 * self.prompts.tokens_var
        d = length - 1
        if d == 0:
            return np.full(state.pool.shape, float(np.sqrt(encode + token_s**2 * own_var)))
        context_s = self._context_slope(state)
        own = (token_s + d * context_s) ** 2 * own_var
        boundary = (1 - state.idle) * state.iteration_s**2 / 12
        slow = state.seen_sd_s**2 * _window(d, state.memory_iterations)
        transit = self._slope(state) ** 2 * state.transit_var
        transit = transit * _window(
            d, state.held / np.maximum(state.pool, 1e-9) * self.law.decode_mean
        )
        beside = np.interp(state.pool, self.decoders.n, self.decoders.beside)
        contexts = context_s**2 * state.pool * beside * self._context_var(length)
        return np.sqrt(encode + own + boundary + slow + transit + contexts)

    def first_token(self, batch: int, pool: int) -> Latency:
        """From the start of its encode to a query's first token, which T5's encode does not sample."""
        if self.law.workload.delay:
            return self.latency(batch, pool, 1 + self.law.workload.delay)
        busy = self.at(batch, _one(pool)).busy
        token_s, residual = self.encoders.token_cost(batch)
        var = batch * (residual + token_s**2 * self.prompts.tokens_var)
        mean_s = float(self.encoders.taken_s(batch, busy)[0])
        return Latency(mean_s=mean_s, sd_s=float(np.sqrt(var)))

    def gap(self, batch: int, pool: int, decodes: int) -> Latency:
        """The longest between two tokens of an answer: of an iteration in which a batch joins.

        The pool strays slowly, so all iterations of an answer are alike.
        """
        del decodes
        state = self.at(batch, _one(pool))
        period = max(1.0, batch * self.law.decode_mean / max(float(state.pool[0]), 1e-9))
        mean_s = float(state.seen_s[0] + self.encoders.joined_s[batch] * (1 - 1 / period))
        return Latency(mean_s=mean_s, sd_s=float(state.seen_sd_s[0]))

    def wait(self, batch: int, pool: int, rate_per_s: float) -> Latency:
        """From arrival to encode, of queries that arrive at this rate in all."""
        cycle_s = batch / self.throughput(batch, pool)
        return wait_for_encode(rate_per_s, cycle_s, batch)

    def query_costs_s(self, batch: int, pool: int) -> tuple[float, float]:
        """(worker time that a query's encode takes, that its decode takes)."""
        state = self.at(batch, _one(pool))
        decode_s = self.law.decode_mean * float(state.iteration_s[0] / state.pool[0])
        return float(self.encoders.interval_s[batch]) / batch, decode_s

    def kv_tokens(self, batch: int, pool: int) -> float:
        """KV tokens of one decoder just after a join, mean."""
        return float(self._kv(batch, self.at(batch, _one(pool)))[0][0])

    def kv_need(self, batch: int, pool: int) -> float:
        """KV tokens that a decoder holds ready at its fullest, or where it holds more, an encoder."""
        need = float(self.kv_needs(batch, self.at(batch, _one(pool)))[0])
        return max(need, self.encoder_kv_need(batch))

    def encoder_kv_need(self, batch: int) -> float:
        """KV tokens of the encode that a stage works on, and room for its activations."""
        return float(self.encoder_kv_needs(_one(batch))[0])

    def encoder_kv_needs(self, batches: Floats) -> Floats:
        """The same by B_E."""
        prompts, encoder = self.prompts, self.instances.encoder
        tokens, var = batches * prompts.tokens, batches * prompts.tokens_var
        packed = encoder.activation_tokens * (tokens + COVERED_SDS * np.sqrt(var))
        return memory.needs(tokens, var, batches) + packed

    def kv_needs(self, batch: int, state: PoolState) -> Floats:
        """KV tokens of a decoder at its fullest, and room for a micro-batch's activations, by pool."""
        prompts, decoder = self.prompts, self.instances.decoder
        queries = state.pool + (batch - 1) / 2
        mean, var = self._kv(batch, state)
        var = (
            var + state.pool_var * self.decoders.context**2 + state.transit_var * prompts.tokens**2
        )
        packed = decoder.activation_tokens * state.pool / decoder.micro_batches
        return memory.needs(mean, var, queries + state.held) + packed

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
        number = self.instances.decoder.micro_batches
        pool_sd = self._pool_sd(batch, state) / number
        pool = state.pool / number  # of a micro-batch
        context_sd = np.sqrt(pool * decoders.context_var + (decoders.context * pool_sd) ** 2)
        queries = (pool + COVERED_SDS * pool_sd) / costs.per_query.limit
        context = pool * decoders.context + COVERED_SDS * context_sd
        reach = np.maximum(queries, context / costs.per_context.limit)
        return np.maximum(reach, batch / max(1, self.max_batch))

    def _pool_sd(self, batch: int, state: PoolState) -> Floats:
        """The slow part, the saw of whole batches, and what is in encode while places bind."""
        saw = (1 - state.idle) * batch**2 / 12
        return np.sqrt(state.pool_var + saw + state.transit_var)

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
            first_token_s=float(self.encoders.taken_s(batch, state.busy)[0]),
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
        encoders = self.encoders
        dispatch_s = self.costs.dispatch_s
        return Feed(
            batch=batch,
            encoders=self.split[0],
            decoders=self.split[1],
            encode_s=float(encoders.interval_s[batch]),
            alone_s=float(encoders.taken_s(batch, 0.0)) + dispatch_s,
            in_line_s=float(encoders.taken_s(batch, 1.0)) + dispatch_s,
            spread=float(encoders.spread[batch]),
            exposed_s=float(encoders.exposed_s[batch]),
            joined_s=float(encoders.joined_s[batch]),
        )

    def _slope(self, state: PoolState) -> Floats:
        """What one query more costs an iteration, s."""
        return np.asarray(np.interp(state.pool, self.decoders.n, self.decoders.slopes))

    def _context_slope(self, state: PoolState) -> Floats:
        return np.asarray(np.interp(state.pool, self.decoders.n, self.decoders.context_slopes))

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
