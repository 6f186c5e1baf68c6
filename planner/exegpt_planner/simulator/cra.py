"""CRA on one worker: a pool of B_D queries, refilled every iteration; encodes ride on decode steps, C tokens at most.

    throughput = B_D / (E[e] + E[D]) / T,   T = E[T(step)] + dispatch
    Lat(s)     = E[e'] T* + (s - 1) T' - dispatch

The encode queue (encode_queue.py) gives E[e], E[e'] and the law of a step's encode tokens; decoding slots are
independent of it, each with probability E[D] / (E[e] + E[D]). T* is a step in which a query is encoded (so more than
the mean step), T' one in which it decodes. Every sum has its exact mean, so costs that are affine are averaged
exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.layout import Layout
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.schedule import CraSchedule, Prediction
from exegpt_planner.simulator.arrivals import wait_for_place
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.cra_steps import Counted, Steps, StepTimes
from exegpt_planner.simulator.encode_queue import EncodeQueues, QueueFamily
from exegpt_planner.simulator.latency import Latency
from exegpt_planner.simulator.promise import KEPT_SDS, Promise
from exegpt_planner.simulator.renewal import SlotProcess

Floats = NDArray[np.float64]

UNSEEN = 0.01  # expected number of steps of an answer, below which it is not counted on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latencies:
    """Of an answer of one length, in each pool of a run; s."""

    encode_s: Floats  # the steps that encode it, dispatch included
    mean_s: Floats
    sd_s: Floats


class CraRun:
    """A run of pools with one C, or with any so large that nobody waits for it."""

    def __init__(self, model: CraModel, queues: EncodeQueues) -> None:
        self.queues, self._model = queues, model
        times = self._times = model.times
        self.steps = times.steps(queues, slots=queues.pools, law=queues.tokens_law)
        self.step_s = times.mean_s(self.steps, own=0, counted=times.others)
        self.rate = queues.pools * queues.completions  # queries an iteration
        self.throughput = self.rate / (self.step_s + model.costs.dispatch_s)
        self._latencies: dict[int, Latencies] = {}

    @property
    def last(self) -> int:
        """The largest pool."""
        return int(self.queues.pools[-1])

    def at(self, pool: int) -> int:
        """The index of a pool."""
        return pool - int(self.queues.pools[0])

    def latencies(self, length: int) -> Latencies:
        """Of answers of `length` tokens."""
        found = self._latencies.get(length)
        if found is None:
            found = self._latencies[length] = self._latency(length)
        return found

    def _latency(self, length: int) -> Latencies:
        queues, times, dispatch_s = self.queues, self._times, self._model.costs.dispatch_s
        input_mean, input_var = self._model.own_input(length)
        others = queues.pools - 1
        steps = replace(self.steps, slots=others)
        # a step is met in proportion to its chunks
        steps = steps.encoding(steps.tokens_law * times.chunks(steps))
        span, span_var = self._own_span(input_mean, input_var)
        encode_step_s = times.mean_s(steps, own=0, counted=times.others) + dispatch_s
        excess_s = self._excess_s(steps, input_mean, span)
        encode_s = np.maximum(
            span * encode_step_s + excess_s,
            self._model.costs.mixed_fixed_s + dispatch_s,  # at least one step
        )
        beside = times.steps(queues, slots=others, law=queues.beside_law)
        decode_s = times.mean_s(beside, own=1, counted=self._model.counted(length)) + dispatch_s
        work = times.slot_work(self.steps, queues.span, self._model.query_context_square)
        window = np.round(queues.span).astype(np.int64) + length - 1
        var = others * self._model.slots.window_vars(work, stay=queues.stay, iterations=window)
        token_s = work.per_prompt_token
        own_step_s = np.maximum(encode_s - token_s * input_mean, 0.0) / span
        covariance = np.minimum(input_var / (queues.chunk or np.inf), np.sqrt(input_var * span_var))
        slope = token_s + (length - 1) * work.per_context
        var = var + own_step_s**2 * span_var + 2 * own_step_s * slope * covariance
        return Latencies(
            encode_s=encode_s,
            mean_s=encode_s + (length - 1) * decode_s - dispatch_s,
            sd_s=np.sqrt(var + slope**2 * input_var),
        )

    def _excess_s(self, steps: Steps, input_mean: float, span: Floats) -> Floats:
        """What tokens beyond others' cost: these are in its number of chunks as far as they are full."""
        prompts = self._model.prompts
        saturated = 0.0 if self.queues.chunk is None else steps.tokens_law[:, -1]
        token, pair = self._times.encode_slopes(steps)
        token_s = np.maximum(token, 0.0) + np.maximum(pair, 0.0) * prompts.pairs_per_token
        excess = input_mean - prompts.tokens * span / self.queues.span
        return np.asarray((1 - saturated) * token_s * excess)

    def _own_span(self, mean: float, var: float) -> tuple[Floats, Floats]:
        """(mean, variance) of the number of chunks of a prompt whose length has these."""
        queues, prompts = self.queues, self._model.prompts
        alike = np.allclose((mean, var), (prompts.tokens, prompts.tokens_var), rtol=1e-6)
        if alike or queues.chunk is None:
            return queues.span, queues.span_var
        two = mean + np.array([-1.0, 1.0]) * np.sqrt(var)  # a law of the same mean and variance
        chunks = np.maximum(np.ceil((queues.begins[:, None] + two) / queues.chunk - 1e-9), 1.0)
        span = queues.begins_law @ chunks.mean(axis=1)
        square = queues.begins_law @ (chunks**2).mean(axis=1)
        return span, np.maximum(square - span**2, 0.0)


class CraModel:
    """Everything the search asks of CRA, with what does not depend on the schedule computed once."""

    def __init__(
        self,
        costs: StepCosts,
        law: CompletionLaw,
        prompts: PromptMoments,
        layout: Layout | None = None,
    ) -> None:
        """`layout` is of a unit, one stage; None: a device."""
        self.costs, self.law, self.prompts, self.layout = costs, law, prompts, layout
        self.queues = QueueFamily(law.workload)
        self.slots = SlotProcess(law)
        decode = law.decode_mean
        self.query_context = law.context_mean / decode if decode else 0.0
        self.query_context_square = law.context_square / decode if decode else 0.0
        self.times = StepTimes(costs, prompts, decode, self.query_context)
        self._runs: dict[EncodeQueues, CraRun] = {}
        self._counted: dict[int, Counted] = {}

    def fits(self, pool: int, chunk: int) -> bool:
        """Whether C is far enough above the steady need B_D E[I] / E[L]."""
        return chunk >= self.queues.need(pool)

    def run(self, pool: int, chunk: int) -> CraRun:
        """The run of pools that `pool` is in; it must fit."""
        queues = self.queues.queues(pool, chunk)
        found = self._runs.get(queues)
        if found is None:
            found = self._runs[queues] = CraRun(self, queues.up_to(self.times.most))
        return found

    def throughput(self, pool: int, chunk: int) -> float:
        """Queries per second."""
        run = self.run(pool, chunk)
        return float(run.throughput[run.at(pool)])

    def latency(self, pool: int, chunk: int, length: int) -> Latency:
        """Mean and standard deviation of the latency of an answer of `length` tokens."""
        run = self.run(pool, chunk)
        found, at = run.latencies(length), run.at(pool)
        return Latency(mean_s=float(found.mean_s[at]), sd_s=float(found.sd_s[at]))

    def latency_mean_s(self, pool: int, chunk: int, length: int) -> float:
        """Mean latency of an answer of `length` tokens."""
        return self.latency(pool, chunk, length).mean_s

    def first_token(self, pool: int, chunk: int) -> Latency:
        """From the start of its encode to a query's first token."""
        return self.latency(pool, chunk, 1)

    def gap(self, pool: int, chunk: int, decodes: int) -> Latency:
        """The longest between two tokens of an answer: of a step whose chunk is full."""
        run = self.run(pool, chunk)
        fullest = np.zeros_like(run.steps.tokens_law)
        seen = run.steps.tokens_law[run.at(pool)] * decodes > UNSEEN
        fullest[:, int(np.flatnonzero(seen)[-1])] = 1.0
        steps = replace(run.steps, tokens_law=fullest)
        step_s = self.times.mean_s(steps, own=0, counted=self.times.others)[run.at(pool)]
        work = self.times.slot_work(run.steps, run.queues.span, 0.0)
        slope_s = float(np.asarray(work.per_query)[run.at(pool)])
        chance = float(run.steps.chance[run.at(pool)])
        sd_s = slope_s * math.sqrt(pool * chance * (1 - chance))
        return Latency(mean_s=float(step_s) + self.costs.dispatch_s, sd_s=sd_s)

    def wait(self, pool: int, chunk: int, rate_per_s: float) -> Latency:
        """From arrival to a place in the pool, at the end of a step."""
        run = self.run(pool, chunk)
        stay_s = pool / float(run.throughput[run.at(pool)])
        span = float(run.queues.span[run.at(pool)])
        varies = self.law.workload.output.var / (span + self.law.decode_mean) ** 2
        step_s = float(run.step_s[run.at(pool)]) + self.costs.dispatch_s
        boundary = Latency(mean_s=step_s / 2, sd_s=step_s / math.sqrt(12))
        return boundary.after(wait_for_place(rate_per_s, stay_s, pool, varies))

    def counted(self, length: int) -> Counted:
        """What counts of queries cost beside one's own of `length` tokens."""
        found = self._counted.get(length)
        if found is None:
            found = self._counted[length] = self.times.beside(self.own_input(length)[0], length)
        return found

    def kv_need(self, pool: int, chunk: int) -> float:
        """KV tokens to hold ready: as if no prompt waited, or all slots held new prompts, where that is more."""
        decode = self.law.decode_mean
        shares = np.array([decode / (self.queues.alone(chunk) + decode), 0.0])
        mean, var = self._kv(pool, shares)
        return memory.need(mean, var, np.full(2, float(pool)))

    def _kv(self, pool: int, decoding: Floats) -> tuple[Floats, Floats]:
        """(mean, variance) of the KV tokens held when slots decode with this chance and else hold a whole prompt."""
        prompts = self.prompts
        mean = decoding * self.query_context + (1 - decoding) * prompts.tokens
        square = decoding * self.query_context_square
        square = square + (1 - decoding) * (prompts.tokens_var + prompts.tokens**2)
        return pool * mean, pool * (square - mean**2)

    def edge(self, pool: int, chunk: int) -> float:
        """How far the schedule reaches into the profile: 1 is its end."""
        costs, prompts = self.costs, self.prompts
        prompts_a_step = chunk / prompts.tokens
        pairs = prompts_a_step * prompts.pairs
        pairs += COVERED_SDS * np.sqrt(prompts_a_step * prompts.pairs_var)
        context = pool * self.query_context
        context_sd = np.sqrt(pool * (self.query_context_square - self.query_context**2))
        return float(
            max(
                (pool + chunk) / costs.per_token.limit,
                pool / costs.queries_only.limit,
                (pool + prompts_a_step) / costs.per_sampled.limit,
                (prompts_a_step + 2) / costs.chunks_only.limit,
                pairs / costs.per_pair.limit,
                (context + COVERED_SDS * context_sd + self._longest_context())
                / costs.per_context.limit,
            )
        )

    def predict(self, schedule: CraSchedule, promise: Promise) -> Prediction:
        """All that is expected of a schedule."""
        pool, chunk = schedule.pool, schedule.chunk_tokens
        self._check(pool, chunk)
        run = self.run(pool, chunk)
        at = run.at(pool)
        latency, encode_s = (
            self.latency(pool, chunk, promise.length),
            self.times.encode_s(run.steps),
        )
        cycle_s = float(run.step_s[at]) + self.costs.dispatch_s
        rate = schedule.units * float(run.rate[at]) / cycle_s
        decoding = float(run.steps.chance[at])
        own_encode_s = float(run.latencies(promise.length).encode_s[at])
        return Prediction(
            queries_per_s=rate,
            tokens_per_s=rate * self.law.output_mean,
            cycle_s=cycle_s,
            encode_share=float(encode_s[at]) / cycle_s,
            first_token_s=own_encode_s - self.costs.dispatch_s,
            latency_mean_s=latency.mean_s,
            latency_sd_s=latency.sd_s,
            latency_p99_s=latency.mean_s + KEPT_SDS * latency.sd_s,
            promised_s=promise.promised_s(latency.mean_s, latency.sd_s),
            pool_mean=pool * decoding,
            pool_sd=float(np.sqrt(pool * decoding * (1 - decoding))),
            kv_tokens=float(self._kv(pool, np.array([decoding]))[0][0]),
            kv_tokens_reserved=self.kv_need(pool, chunk),
        )

    def _check(self, pool: int, chunk: int) -> None:
        if not self.fits(pool, chunk):
            need = self.queues.need(pool)
            raise InvalidSpec(
                "schedule",
                [
                    f"CRA with pool={pool} needs chunk_tokens of at least {need:.0f}, not {chunk}, for this workload: "
                    "its encode queue would grow without end"
                ],
            )
        if self.edge(pool, chunk) > 1:
            raise IncompleteProfile(
                f"CRA with pool={pool}, chunk_tokens={chunk} goes beyond the profile: it reaches "
                f"{self.edge(pool, chunk):.2f} times as far. Profile larger steps."
            )

    def _longest_context(self) -> float:
        workload = self.law.workload
        return float(workload.input.max + workload.output.max)

    def own_input(self, length: int) -> tuple[float, float]:
        workload = self.law.workload
        k = min(length, workload.output.max)
        mean = float(workload.input_mean[k])
        return mean, max(float(workload.input_square[k]) - mean**2, 0.0)
