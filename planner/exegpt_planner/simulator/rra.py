"""RRA on one worker: encode B_E queries, then decode the pool N_D times, in turn (open form).

    cycle    = E[T_E(B_E)] + dispatch + sum_u E[T_D(n(u))],       throughput = B_E / cycle
    Lat(s)   = q T_E + (q - 1) dispatch + (q - 1) full phases + r iterations,   d = s - 1, q = ceil(d / N_D)

An iteration costs nothing when nobody decodes: its fixed cost counts with the exact probability of that. Lat(s) is
that of an answer of s tokens given that it is there: one query more than chance would have at its place in every
iteration, and a pool that never empties before it ends. `dispatch` is paid once a cycle, as the conductor sends a
cycle in one message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw, PhaseLaw
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.schedule import Prediction, RraSchedule
from exegpt_planner.simulator.costs import COVERED_SDS, PromptMoments, StepCosts
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.fluctuation import Window, shares_var
from exegpt_planner.simulator.promise import KEPT_SDS, Promise

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Of an answer of one length, from the start of its encode."""

    mean_s: float
    sd_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conditional:
    """Decode iterations t = 1..d given that the answer is there: laws of the pool and of its context."""

    queries: Floats
    queries_sd: Floats
    context: Floats
    context_sd: Floats


class RraModel:
    """Everything the search asks of RRA, with what does not depend on the schedule computed once."""

    def __init__(self, costs: StepCosts, law: CompletionLaw, prompts: PromptMoments) -> None:
        self.costs, self.law, self.prompts = costs, law, prompts
        self._latencies: dict[tuple[int, int, int], Latency] = {}
        self.encodes = EncodeTimes(costs, law.workload, prompts)
        self.encode_s = self.encodes.mean_s  # by B_E; [0] is unused

    @property
    def max_batch(self) -> int:
        """The largest B_E whose encode the profile covers."""
        return self.encodes.max_batch

    def throughput(self, batch: int, interval: int) -> float:
        """Queries per second."""
        return batch / self.cycle_s(batch, interval)

    def cycle_s(self, batch: int, interval: int) -> float:
        """Mean time of one encode, its dispatch and its decode phase."""
        decodes = self.decode_s(batch, self.law.phase(interval))
        return float(self.encode_s[batch] + self.costs.dispatch_s + decodes.sum())

    def decode_s(self, batch: int, phase: PhaseLaw) -> Floats:
        """E[T_D] at each iteration of a phase, nothing where nobody decodes."""
        costs = self.costs
        fixed = costs.per_query.at_zero + costs.per_context.at_zero + costs.decode_fixed_s
        times = (
            costs.per_query.mean(batch * phase.queries, np.sqrt(batch * phase.queries_var))
            + costs.per_context.mean(batch * phase.context, np.sqrt(batch * phase.context_var))
            + costs.decode_fixed_s
        )
        return np.asarray(np.maximum(times - fixed * np.exp(batch * phase.log_empty), 0.0))

    def latency_mean_s(self, batch: int, interval: int, length: int) -> float:
        """Mean latency of an answer of `length` tokens."""
        d = length - 1
        encodes = max(1, -(-d // interval))
        between = (encodes - 1) * float(self.encode_s[batch] + self.costs.dispatch_s)
        return (
            float(self.encodes.own_s(length)[batch - 1])
            + between
            + float(self._decode_times(self._conditional(batch, interval, length)).sum())
        )

    def latency(self, batch: int, interval: int, length: int) -> Latency:
        """Mean and standard deviation of the latency of an answer of `length` tokens."""
        key = batch, interval, length
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = self._latency(batch, interval, length)
        return found

    def _latency(self, batch: int, interval: int, length: int) -> Latency:
        costs = self.costs
        pool = self._conditional(batch, interval, length)
        encodes = max(1, -(-(length - 1) // interval))
        prompt_slope, residual_var = (
            float(value[0]) for value in self.encodes.slopes(np.array([float(batch)]))
        )
        window = Window(
            per_query=costs.per_query.slope_mean(pool.queries, pool.queries_sd),
            per_context=costs.per_context.slope_mean(pool.context, pool.context_sd),
            per_prompt_token=prompt_slope,
            interval=interval,
            num_encodes=encodes,
        )
        others = shares_var(window, self.law.workload, batch)
        own_slope = prompt_slope + float(window.per_context.sum())
        own = own_slope**2 * self.encodes.own_input(length)[1]
        return Latency(
            mean_s=self.latency_mean_s(batch, interval, length),
            sd_s=float(np.sqrt(others + own + encodes * batch * residual_var)),
        )

    def kv_need(self, batch: int, interval: int) -> float:
        """KV tokens to hold ready."""
        phase = self.law.phase(interval)
        tokens, var = self._kv(phase)
        return memory.need(batch * tokens, batch * var, batch * phase.queries)

    def covers(self, batch: int, interval: int) -> bool:
        """Whether the pool, up to mean + 3 sd, lies within the profile."""
        return self.edge(batch, interval) <= 1.0

    def edge(self, batch: int, interval: int) -> float:
        """How far the pool reaches into the profile's decode curves: 1 is their end."""
        phase, costs = self.law.phase(interval), self.costs
        queries = batch * phase.queries + COVERED_SDS * np.sqrt(batch * phase.queries_var)
        context = batch * phase.context + COVERED_SDS * np.sqrt(batch * phase.context_var)
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
        decodes = self.decode_s(batch, phase)
        encode_s = float(self.encode_s[batch])
        cycle_s = encode_s + self.costs.dispatch_s + float(decodes.sum())
        rate = schedule.units * batch / cycle_s
        latency = self.latency(batch, interval, promise.length)
        pool_mean, pool_sd = _running_pool(batch, phase)
        return Prediction(
            queries_per_s=rate,
            tokens_per_s=rate * (self.law.decode_mean + 1),
            cycle_s=cycle_s,
            encode_share=encode_s / cycle_s,
            first_token_s=encode_s,
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

    def _conditional(self, batch: int, interval: int, length: int) -> Conditional:
        phase, d = self.law.phase(interval), length - 1
        t = np.arange(1, d + 1)
        alive, own, own_var = self.law.one_query(d)
        mean, var = self.encodes.own_input(length)
        others_var = batch * np.resize(phase.queries_var, d) - alive * (1 - alive)
        context_var = batch * np.resize(phase.context_var, d) - own_var + var
        return Conditional(
            queries=batch * np.resize(phase.queries, d) - alive + 1,
            queries_sd=np.sqrt(np.maximum(others_var, 0.0)),
            context=batch * np.resize(phase.context, d) - own + mean + t,
            context_sd=np.sqrt(np.maximum(context_var, 0.0)),
        )

    def _decode_times(self, pool: Conditional) -> Floats:
        costs = self.costs
        return np.asarray(
            costs.per_query.mean(pool.queries, pool.queries_sd)
            + costs.per_context.mean(pool.context, pool.context_sd)
            + costs.decode_fixed_s
        )


def _running_pool(batch: int, phase: PhaseLaw) -> tuple[float, float]:
    """(mean, sd) of the queries decoding, over the iterations that run."""
    running = float((1 - np.exp(batch * phase.log_empty)).sum())
    if running == 0:
        return 0.0, 0.0
    mean = float(batch * phase.queries.sum()) / running
    square = float((batch * phase.queries_var + (batch * phase.queries) ** 2).sum()) / running
    return mean, float(np.sqrt(max(square - mean**2, 0.0)))
