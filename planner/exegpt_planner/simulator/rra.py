"""RRA on one unit: encode B_E queries, then decode the pool N_D times, in turn (open form).

In M micro-batches on P stages (pipeline.py; a device is P = M = 1), with t the slowest stage's time and w a pass, of
encodes e and of the u-th decode iteration:

    cycle = turn + sum_u r(u) + dispatch,   r = max(M t, w),   throughput = B_E / cycle
    turn  = max(M (t_e + t), max(w_e + t, w + t_e) + (M - 1) max(t_e, t)) - r     of u = 1, M >= P
            max(w_e, w + t_e - t) + (M - 1) max(t_e, t)  of u = 1,  - (r - t) of u = N_D,  M < P
    Lat(s) = begin + (q - 1) (turn + dispatch) + sum of r over d iterations,   d = s - 1, q = ceil(d / N_D)
    begin  = max(M t_e + (M - 1) t + w - r, w_e + (M - 1) t_e) - (M - 1) (t_e + apart) / 2    of u = 1

(paper, section 4, for its even stages and t_e >= t; exact for constant times on even stages.) w in r and w_e - t_e in
an encode are those of the longest of the M micro-batches; in Lat(s) all are of a pool that the answer is in. The clock
of an answer starts with the encode of its micro-batch, any of M; `apart` is what lies between micro-batches as they
decode.

An iteration costs nothing when nobody decodes: its fixed cost counts with the exact probability of that. Lat(s) is
that of an answer of s tokens given that it is there: one query more than chance would have at its place in every
iteration, and micro-batches that never empty before it ends. `dispatch` is paid once a cycle, as the conductor sends a
cycle in one message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw, PhaseLaw
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.schedule import Prediction, RraSchedule
from exegpt_planner.simulator.arrivals import wait_for_encode
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.fluctuation import Window, shares_var
from exegpt_planner.simulator.latency import Latency
from exegpt_planner.simulator.pipeline import Pipeline, Times
from exegpt_planner.simulator.promise import KEPT_SDS, Promise, longest_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Laws of a micro-batch's queries and of their context; arrays over decode iterations."""

    queries: Floats
    queries_sd: Floats
    context: Floats
    context_sd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A mean latency, and what its deviation depends on."""

    latency_s: float
    pool: Pool
    is_by_slowest: bool  # the slowest stage sets the pace, not the passes
    closing_s: float  # by which a micro-batch further behind gains on the one before


class RraModel:
    """Everything the search asks of RRA, with what does not depend on the schedule computed once."""

    def __init__(
        self,
        pipeline: Pipeline,
        law: CompletionLaw,
        prompts: PromptMoments,
        most: int | None = None,
    ) -> None:
        """`most` is the largest B_E of interest."""
        self.pipeline, self.law, self.prompts = pipeline, law, prompts
        self.costs = pipeline.whole
        self._latencies: dict[tuple[int, int, int], Latency] = {}
        self.encodes = EncodeTimes(pipeline, law.workload, prompts, most)

    @property
    def max_batch(self) -> int:
        """The largest B_E whose encode the profile covers."""
        return self.encodes.max_batch

    def throughput(self, batch: int, interval: int) -> float:
        """Queries per second."""
        return batch / self.cycle_s(batch, interval)

    def cycle_s(self, batch: int, interval: int) -> float:
        """Mean time of one encode, its dispatch and its decode phase."""
        decodes = self.decodes(batch, self.law.phase(interval))
        rounds_s = self.pipeline.round_s(decodes)
        return self.turn_s(batch, decodes, rounds_s) + float(rounds_s.sum())

    def decodes(self, batch: int, phase: PhaseLaw) -> Times:
        """E[T_D] of a micro-batch at each iteration of a phase, nothing where nobody decodes."""
        size = batch / self.pipeline.micro_batches
        pool = self._pool(batch, phase)

        def time_s(costs: StepCosts) -> Floats:
            # a round passes through all stages as long as any micro-batch is not empty
            number = batch if costs is self.pipeline.whole else size
            fixed = costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s
            empty = np.exp(number * phase.log_empty)
            return np.asarray(np.maximum(_decode_times(costs, pool) - fixed * empty, 0.0))

        return self.pipeline.times(time_s, lambda costs: _decode_sds(costs, pool))

    def _pool(self, batch: int, phase: PhaseLaw) -> Pool:
        """One micro-batch at each iteration of a phase."""
        size = batch / self.pipeline.micro_batches
        return Pool(
            queries=size * phase.queries,
            queries_sd=np.sqrt(size * phase.queries_var),
            context=size * phase.context,
            context_sd=np.sqrt(size * phase.context_var),
        )

    def turn_s(self, batch: int, decodes: Times, rounds_s: Floats) -> float:
        """What an encode and its dispatch add to a cycle."""
        encode, passing = self._encode(batch, self.pipeline.excess_sds)
        first, first_pass = float(decodes.slowest_s[0]), float(decodes.pass_s[0])
        number, dispatch_s = self.pipeline.micro_batches, self.costs.dispatch_s
        spread = (number - 1) * max(encode, first)
        if self.pipeline.is_filled:
            way = max(passing + first, first_pass + encode) + spread
            return max(number * (encode + first), way) - float(rounds_s[0]) + dispatch_s
        overlap = float(rounds_s[-1] - decodes.slowest_s[-1])
        return max(passing, first_pass + encode - first) + spread - overlap + dispatch_s

    def _encode(self, batch: int, excess_sds: float) -> tuple[float, float]:
        """(slowest stage's time, a pass behind the longest so far) of a micro-batch's encode."""
        times = self.encodes.times
        slowest_s, pass_s = float(times.slowest_s[batch]), float(times.pass_s[batch])
        behind = (pass_s - slowest_s) / pass_s  # of a pass, what is spent on all stages but one
        longer_s = excess_sds * float(times.pass_sd_s[batch])
        return slowest_s, pass_s + behind * longer_s

    def latency_mean_s(self, batch: int, interval: int, length: int) -> float:
        """Mean latency of an answer of `length` tokens."""
        return self._parts(batch, interval, length).latency_s

    def latency(self, batch: int, interval: int, length: int) -> Latency:
        """Mean and standard deviation of the latency of an answer of `length` tokens."""
        key = batch, interval, length
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = self._latency(batch, interval, length)
        return found

    def _parts(self, batch: int, interval: int, length: int) -> Parts:
        """The mean latency and what it is made of."""
        own = self.encodes.own(length)
        own_pass_s = float(own.pass_s[batch - 1])
        d, number = length - 1, self.pipeline.micro_batches
        pool = self._conditional(batch, interval, length)
        if d == 0:
            return Parts(latency_s=own_pass_s, pool=pool, is_by_slowest=False, closing_s=0.0)
        decodes = self.decodes(batch, self.law.phase(interval))
        rounds_s = self.pipeline.round_s(decodes)
        with_it = self.pipeline.times(lambda costs: _decode_times(costs, pool))
        slowest_s = with_it.slowest_s + self._others_s(batch, interval, d)
        mine_s = np.maximum(slowest_s, with_it.pass_s)
        if number > 1:
            mine_s = np.maximum(mine_s, np.resize(rounds_s, d))
        encode, passing = self._encode(batch, self.pipeline.excess_mean_sds)
        first, first_pass = float(decodes.slowest_s[0]), float(decodes.pass_s[0])
        again = np.arange(interval, d, interval)  # the iterations after another encode
        if self.pipeline.is_filled:
            excess = float(own.slowest_s[batch - 1]) - encode
            apart = first
            longest = self._encode(batch, self.pipeline.excess_sds)[1]
            way = np.maximum(longest + with_it.slowest_s[again], first_pass + encode)
            way = way + (number - 1) * max(encode, first)
            turns_s = np.maximum(number * encode + slowest_s[again], way) - mine_s[again]
            turns_s = turns_s + self.costs.dispatch_s
        else:
            excess = own_pass_s - float(self.encodes.times.pass_s[batch])
            apart = min(max(encode, first), first_pass / number)
            turns_s = np.full(len(again), self.turn_s(batch, decodes, rounds_s))
        served = number * encode + (number - 1) * first + first_pass - float(rounds_s[0])
        begin_s = max(served, passing + (number - 1) * encode) - (number - 1) / 2 * (encode + apart)
        return Parts(
            latency_s=begin_s + excess + float(turns_s.sum() + mine_s.sum()),
            pool=pool,
            is_by_slowest=float(mine_s.sum()) > float(with_it.pass_s.sum()),
            closing_s=encode - apart,
        )

    def _others_s(self, batch: int, interval: int, d: int) -> Floats:
        """What the slowest stage spends on the other micro-batches, none of them empty, as an answer sees it."""
        others = self.pipeline.micro_batches - 1
        if others == 0:
            return np.zeros(d)
        pool = self._pool(batch, self.law.phase(interval))
        times = self.pipeline.times(lambda costs: _decode_times(costs, pool))
        return others * np.resize(times.slowest_s, d)

    def _latency(self, batch: int, interval: int, length: int) -> Latency:
        parts = self._parts(batch, interval, length)
        pool, number = parts.pool, self.pipeline.micro_batches
        # Whoever is in a micro-batch holds up the slowest stage for all of them, a pass for its own.
        costs = self._slowest(pool) if parts.is_by_slowest else self.costs
        size = batch if parts.is_by_slowest else batch / number
        encodes = max(1, -(-(length - 1) // interval))
        slopes = self.encodes.slopes(costs, np.array([batch / number]))
        prompt_slope = float(slopes.token_s[0])
        window = Window(
            per_query=costs.per_query.slope_mean(pool.queries, pool.queries_sd),
            per_context=costs.per_context.slope_mean(pool.context, pool.context_sd),
            per_prompt_token=prompt_slope,
            interval=interval,
            num_encodes=encodes,
        )
        others = shares_var(window, self.law.workload, size)
        own_slope = prompt_slope + float(window.per_context.sum())
        own = own_slope**2 * self.encodes.own_input(length)[1]
        place = parts.closing_s**2 * (number**2 - 1) / 12
        residual = encodes * size * float(slopes.residual_var[0])
        return Latency(mean_s=parts.latency_s, sd_s=float(np.sqrt(others + own + residual + place)))

    def _slowest(self, pool: Pool) -> StepCosts:
        """The stage that decodes the slowest."""
        stages = self.pipeline.stages
        return max(stages, key=lambda costs: float(_decode_times(costs, pool).sum()))

    def first_token(self, batch: int, interval: int) -> Latency:
        """From the start of its encode to a query's first token, which T5's encode does not sample."""
        if self.law.workload.delay:
            return self.latency(batch, interval, 1 + self.law.workload.delay)
        size = batch / self.pipeline.micro_batches
        mean_s = float(self.encodes.times.pass_s[batch])
        return Latency(mean_s=mean_s, sd_s=self.encodes.sd_s(self.costs, size))

    def gap(self, batch: int, interval: int, decodes: int) -> Latency:
        """The longest between two tokens of an answer: over another encode, if it stays for one."""
        phase = self.law.phase(interval)
        times = self.decodes(batch, phase)
        rounds_s = self.pipeline.round_s(times)
        turns = -(-decodes // interval) - 1
        first = min(1, len(rounds_s) - 1)
        if turns == 0:
            return Latency(mean_s=float(rounds_s[first:].max()), sd_s=0.0)
        turn_s = self.turn_s(batch, times, rounds_s) + float(rounds_s[0])
        size = batch / self.pipeline.micro_batches
        sd_s = self.encodes.sd_s(self.costs, size) * self.pipeline.micro_batches**0.5
        return Latency(mean_s=turn_s, sd_s=sd_s * longest_of(turns))

    def wait(self, batch: int, interval: int, rate_per_s: float) -> Latency:
        """From arrival to encode."""
        return wait_for_encode(rate_per_s, self.cycle_s(batch, interval), batch)

    def kv_need(self, batch: int, interval: int) -> float:
        """KV tokens to hold ready, and room for the activations of an encode."""
        phase = self.law.phase(interval)
        tokens, var = self._kv(phase)
        size, prompts = batch / self.pipeline.micro_batches, self.prompts
        packed = size * prompts.tokens + COVERED_SDS * float(np.sqrt(size * prompts.tokens_var))
        need = memory.need(batch * tokens, batch * var, batch * phase.queries)
        return need + self.pipeline.activation_tokens * packed

    def covers(self, batch: int, interval: int) -> bool:
        """Whether the pool, up to mean + 3 sd, lies within the profile."""
        return self.edge(batch, interval) <= 1.0

    def edge(self, batch: int, interval: int) -> float:
        """How far a micro-batch reaches into the profile's decode curves: 1 is their end."""
        phase, costs = self.law.phase(interval), self.costs
        size = batch / self.pipeline.micro_batches
        queries = size * phase.queries + COVERED_SDS * np.sqrt(size * phase.queries_var)
        context = size * phase.context + COVERED_SDS * np.sqrt(size * phase.context_var)
        return float(
            max(queries.max() / costs.per_query.limit, context.max() / costs.per_context.limit)
        )

    def predict(self, schedule: RraSchedule, promise: Promise) -> Prediction:
        """All that is expected of a schedule."""
        batch, interval = schedule.encode_batch, schedule.encode_interval
        if not (batch <= self.max_batch and self.covers(batch, interval)):
            raise IncompleteProfile(
                f"RRA with encode_batch={batch}, encode_interval={interval} goes beyond the profile (encode "
                f"batches up to {self.max_batch}, pool up to {self.costs.per_query.limit:.0f} queries and "
                f"{self.costs.per_context.limit:.0f} KV tokens). Profile larger steps."
            )
        phase = self.law.phase(interval)
        cycle_s = self.cycle_s(batch, interval)
        decodes_s = float(self.pipeline.round_s(self.decodes(batch, phase)).sum())
        rate = schedule.units * batch / cycle_s
        latency = self.latency(batch, interval, promise.length)
        pool_mean, pool_sd = _running_pool(batch, phase)
        return Prediction(
            queries_per_s=rate,
            tokens_per_s=rate * self.law.output_mean,
            cycle_s=cycle_s,
            encode_share=(cycle_s - decodes_s - self.costs.dispatch_s) / cycle_s,
            first_token_s=float(self.encodes.times.pass_s[batch]),
            latency_mean_s=latency.mean_s,
            latency_sd_s=latency.sd_s,
            latency_p99_s=latency.mean_s + KEPT_SDS * latency.sd_s,
            promised_s=promise.promised_s(latency.mean_s, latency.sd_s),
            pool_mean=pool_mean,
            pool_sd=pool_sd,
            kv_tokens=float((batch * self._kv(phase)[0]).max()),
            kv_tokens_reserved=self.kv_need(batch, interval),
        )

    def _kv(self, phase: PhaseLaw) -> tuple[Floats, Floats]:
        """(mean, variance) per query encoded of KV tokens held; a query that ends at its encode holds KV during it."""
        workload = self.law.workload
        at_once = float(workload.output.pmf[1])
        held = at_once * float(workload.input_mean[1])
        held_var = at_once * float(workload.input_square[1]) - held**2
        tokens, var = phase.context.copy(), phase.context_var.copy()
        tokens[0] += held
        var[0] += held_var
        return tokens, var

    def _conditional(self, batch: int, interval: int, length: int) -> Pool:
        """Its micro-batch, at each iteration of the answer."""
        phase, d = self.law.phase(interval), length - 1
        size = batch / self.pipeline.micro_batches
        t = np.arange(1, d + 1)
        alive, own, own_var = self.law.one_query(d)
        mean, var = self.encodes.own_input(length)
        others_var = size * np.resize(phase.queries_var, d) - alive * (1 - alive)
        context_var = size * np.resize(phase.context_var, d) - own_var + var
        return Pool(
            queries=size * np.resize(phase.queries, d) - alive + 1,
            queries_sd=np.sqrt(np.maximum(others_var, 0.0)),
            context=size * np.resize(phase.context, d) - own + mean + t,
            context_sd=np.sqrt(np.maximum(context_var, 0.0)),
        )


def _decode_times(costs: StepCosts, pool: Pool) -> Floats:
    return np.asarray(
        costs.per_query.mean(pool.queries, pool.queries_sd)
        + costs.per_context.mean(pool.context, pool.context_sd)
        + costs.decode_fixed_s
    )


def _decode_sds(costs: StepCosts, pool: Pool) -> Floats:
    """Deviations of a micro-batch's iterations, as more queries bring more context."""
    by_queries = costs.per_query.slope_mean(pool.queries, pool.queries_sd) * pool.queries_sd
    by_context = costs.per_context.slope_mean(pool.context, pool.context_sd) * pool.context_sd
    return np.maximum(by_queries + by_context, 0.0)


def _running_pool(batch: int, phase: PhaseLaw) -> tuple[float, float]:
    """(mean, sd) of the queries decoding, over the iterations that run."""
    running = float((1 - np.exp(batch * phase.log_empty)).sum())
    if running == 0:
        return 0.0, 0.0
    mean = float(batch * phase.queries.sum()) / running
    square = float((batch * phase.queries_var + (batch * phase.queries) ** 2).sum()) / running
    return mean, float(np.sqrt(max(square - mean**2, 0.0)))
