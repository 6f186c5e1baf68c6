"""CRA on one worker: a pool of B_D queries, refilled every iteration; encodes ride on decode steps, C tokens at most.

    throughput = B_D / (E[e] + E[D]) / T,   T = E[T(step)] + dispatch
    Lat(s)     = E[e'] T* + (s - 1) T' - dispatch

The encode queue (encode_queue.py) gives E[e], E[e'] and the law of a step's encode tokens; decoding slots are
independent of it, each with probability E[D] / (E[e] + E[D]). T* is a step in which a query is encoded (so more than
the mean step), T' one in which it decodes. Every sum has its exact mean, so costs that are affine are averaged
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.expectation import Hinges
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.schedule import CraSchedule, Prediction
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.encode_queue import EncodeQueue, QueueFamily
from exegpt_planner.simulator.promise import KEPT_SDS, Promise
from exegpt_planner.simulator.renewal import SlotProcess, SlotWork
from exegpt_planner.simulator.rra import Latency

Floats = NDArray[np.float64]

LEAST_SLACK = 1.1  # C over the steady need: at the need itself the encode queue is critical
AGES = 16  # at which a query's own context is met, in place of every one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLaw:
    """What is in a step: Binomial(slots, chance) and `own` more queries decode; encode tokens have `tokens_law`."""

    slots: int
    chance: float
    own: int
    tokens: Floats  # grid
    tokens_law: Floats
    chunks_extra: float  # chunks beyond tokens / E[I], where there are tokens
    finished: float  # prompts that end in the step, mean
    own_context: Floats  # KV tokens, each as likely


class CraModel:
    """Everything the search asks of CRA, with what does not depend on the schedule computed once."""

    def __init__(self, costs: StepCosts, law: CompletionLaw, prompts: PromptMoments) -> None:
        self.costs, self.law, self.prompts = costs, law, prompts
        self._latencies: dict[tuple[int, int, int], Latency] = {}
        self._throughputs: dict[tuple[int, int], float] = {}
        self.queues = QueueFamily(law.workload)
        self._slots = SlotProcess(law)
        self.query_context = law.context_mean / law.decode_mean if law.decode_mean else 0.0
        self._query_context_square = (
            law.context_square / law.decode_mean if law.decode_mean else 0.0
        )

    def fits(self, pool: int, chunk: int) -> bool:
        """Whether C is far enough above the steady need B_D E[I] / E[L]."""
        return chunk >= LEAST_SLACK * pool * self.prompts.tokens / (self.law.decode_mean + 1)

    def throughput(self, pool: int, chunk: int) -> float:
        """Queries per second."""
        found = self._throughputs.get((pool, chunk))
        if found is None:
            found = self._throughputs[pool, chunk] = self._throughput(pool, chunk)
        return found

    def _throughput(self, pool: int, chunk: int) -> float:
        return pool * self.queues.queue(pool, chunk).completions / self.iteration_s(pool, chunk)

    def iteration_s(self, pool: int, chunk: int) -> float:
        """Mean time of one iteration, its dispatch included."""
        queue = self.queues.queue(pool, chunk)
        return self._step_s(self._any_step(pool, queue)) + self.costs.dispatch_s

    def latency_mean_s(self, pool: int, chunk: int, length: int) -> float:
        """Mean latency of an answer of `length` tokens."""
        encode_s, decode_s = self._own_times(pool, chunk, length)
        return encode_s + (length - 1) * decode_s - self.costs.dispatch_s

    def latency(self, pool: int, chunk: int, length: int) -> Latency:
        """Mean and standard deviation of the latency of an answer of `length` tokens."""
        key = pool, chunk, length
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = self._latency(pool, chunk, length)
        return found

    def _latency(self, pool: int, chunk: int, length: int) -> Latency:
        queue = self.queues.queue(pool, chunk)
        encode_s, decode_s = self._own_times(pool, chunk, length)
        work = self._slot_work(pool, queue)
        iterations = round(queue.span) + length - 1
        others = (pool - 1) * self._slots.window_var(work, stay=queue.stay, iterations=iterations)
        own = self._own_var(pool, chunk, length, work)
        return Latency(
            mean_s=encode_s + (length - 1) * decode_s - self.costs.dispatch_s,
            sd_s=float(np.sqrt(others + own)),
        )

    def _own_var(self, pool: int, chunk: int, length: int, work: SlotWork) -> float:
        """Variance from the answer's own prompt: how many steps encode it, and what its tokens cost, s**2."""
        queue = self.queues.queue(pool, chunk)
        encode_s, _ = self._own_times(pool, chunk, length)
        var = self.own_input(length)[1]
        token_s = work.per_prompt_token
        span, span_var = self._own_span(queue, chunk, length)
        step_s = max(encode_s - token_s * self.own_input(length)[0], 0.0) / span
        covariance = min(var / chunk, float(np.sqrt(var * span_var)))
        slope = token_s + (length - 1) * work.per_context
        return step_s**2 * span_var + 2 * step_s * slope * covariance + slope**2 * var

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
        square = decoding * self._query_context_square
        square = square + (1 - decoding) * (prompts.tokens_var + prompts.tokens**2)
        return pool * mean, pool * (square - mean**2)

    def edge(self, pool: int, chunk: int) -> float:
        """How far the schedule reaches into the profile: 1 is its end."""
        costs, prompts = self.costs, self.prompts
        prompts_a_step = chunk / prompts.tokens
        pairs = prompts_a_step * prompts.pairs
        pairs += COVERED_SDS * np.sqrt(prompts_a_step * prompts.pairs_var)
        context = pool * self.query_context
        context_sd = np.sqrt(pool * (self._query_context_square - self.query_context**2))
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
        queue = self.queues.queue(pool, chunk)
        step = self._any_step(pool, queue)
        cycle_s = self._step_s(step) + self.costs.dispatch_s
        rate = schedule.units * pool * queue.completions / cycle_s
        latency = self.latency(pool, chunk, promise.length)
        decoding = queue.completions * self.law.decode_mean
        encode_s, _ = self._own_times(pool, chunk, promise.length)
        return Prediction(
            queries_per_s=rate,
            tokens_per_s=rate * (self.law.decode_mean + 1),
            cycle_s=cycle_s,
            encode_share=self._encode_s(step) / cycle_s,
            first_token_s=encode_s - self.costs.dispatch_s,
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
            need = LEAST_SLACK * pool * self.prompts.tokens / (self.law.decode_mean + 1)
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

    def _any_step(self, pool: int, queue: EncodeQueue) -> StepLaw:
        """A step like any other."""
        return self._step(pool, queue, queue.step_tokens)

    def _step(self, slots: int, queue: EncodeQueue, law: Floats) -> StepLaw:
        finished = slots * queue.completions
        busy = 1 - float(law[0])
        return StepLaw(
            slots=slots,
            chance=queue.completions * self.law.decode_mean,
            own=0,
            tokens=np.arange(len(law), dtype=np.float64) * queue.unit_tokens,
            tokens_law=law,
            chunks_extra=finished * (queue.span - 1) / busy if busy > 0 else 0.0,
            finished=finished,
            own_context=np.zeros(1),
        )

    def _own_times(self, pool: int, chunk: int, length: int) -> tuple[float, float]:
        """(time of the steps that encode an answer of `length` tokens, of each that decodes it), dispatch included."""
        queue = self.queues.queue(pool, chunk)
        any_step = self._any_step(pool, queue)
        chunks = self._chunks(any_step)
        weights = any_step.tokens_law * chunks
        encoding = replace(any_step, slots=pool - 1, tokens_law=weights / weights.sum())
        encode_step_s = self._step_s(encoding) + self.costs.dispatch_s
        own_input = self.own_input(length)[0]
        saturated = float(encoding.tokens_law[-1])
        token, pair = self._encode_slopes(encoding)
        unsaturated = max(token, 0.0) + max(pair, 0.0) * self.prompts.pairs_per_token
        span, _ = self._own_span(queue, chunk, length)
        # Tokens beyond others' are in its number of chunks as far as these are full, else in their size.
        excess = own_input - self.prompts.tokens * span / queue.span
        encode_s = max(
            span * encode_step_s + (1 - saturated) * unsaturated * excess,
            self.costs.mixed_fixed_s + self.costs.dispatch_s,  # at least one step
        )
        ages = (np.arange(AGES) + 0.5) / AGES * (length - 1) + 0.5
        decoding = replace(
            self._step(pool - 1, queue, queue.step_tokens_beside),
            own=1,
            own_context=own_input + ages,
        )
        return encode_s, self._step_s(decoding) + self.costs.dispatch_s

    def _own_span(self, queue: EncodeQueue, chunk: int, length: int) -> tuple[float, float]:
        """(mean, variance) of the number of chunks of the prompt of an answer of `length` tokens."""
        mean, var = self.own_input(length)
        prompts = self.prompts
        if np.allclose((mean, var), (prompts.tokens, prompts.tokens_var), rtol=1e-6):
            return queue.span, queue.span_var
        two = mean + np.array([-1.0, 1.0]) * np.sqrt(var)  # a law of the same mean and variance
        begin = np.arange(len(queue.offset))[:, None] * queue.unit_tokens
        chunks = np.maximum(np.ceil((begin + two) / chunk - 1e-9), 1.0)
        first, second = chunks.mean(axis=1), (chunks**2).mean(axis=1)
        span = float(first @ queue.offset)
        return span, max(float(second @ queue.offset) - span**2, 0.0)

    def _chunks(self, step: StepLaw) -> Floats:
        return np.where(step.tokens > 0, step.chunks_extra, 0.0) + step.tokens / self.prompts.tokens

    def _step_s(self, step: StepLaw) -> float:
        """Mean time of a step."""
        costs = self.costs
        count, chance = _binomial(step.slots, step.chance)
        queries = count + step.own
        mean = step.slots * step.chance + step.own
        quiet, busy = float(step.tokens_law[0]), step.tokens_law[1:]
        contexts = count[:, None] * self.query_context + step.own_context
        per_token = quiet * float(costs.per_token(queries) @ chance)
        per_token += float(busy @ costs.per_token(mean + step.tokens[1:]))
        return float(
            costs.mixed_fixed_s
            + per_token
            + costs.queries_only(queries) @ chance
            + costs.per_context(contexts).mean(axis=1) @ chance
            + costs.per_sampled(queries + step.finished) @ chance
            + costs.chunks_only(self._chunks(step)) @ step.tokens_law
            + costs.per_pair(step.tokens * (self.prompts.pairs / self.prompts.tokens))
            @ step.tokens_law
        )

    def _encode_s(self, step: StepLaw) -> float:
        """What encoding adds to a step, mean."""
        costs = self.costs
        mean = step.slots * step.chance
        at = np.array([mean])
        return float(
            costs.per_token(mean + step.tokens) @ step.tokens_law
            - costs.per_token(at)[0]
            + costs.chunks_only(self._chunks(step)) @ step.tokens_law
            - costs.chunks_only.at_zero
            + costs.per_pair(step.tokens * (self.prompts.pairs / self.prompts.tokens))
            @ step.tokens_law
            - costs.per_pair.at_zero
            + costs.per_sampled(at + step.finished)[0]
            - costs.per_sampled(at)[0]
        )

    def _slot_work(self, pool: int, queue: EncodeQueue) -> SlotWork:
        """What one slot adds to steps, linearised at the mean."""
        costs, prompts = self.costs, self.prompts
        step = self._any_step(pool, queue)
        decoding = step.slots * step.chance
        spread = float(np.sqrt(decoding * (1 - step.chance)))
        context_sd = float(np.sqrt(decoding * self._query_context_square))
        weights = step.tokens_law * step.tokens
        token, pair = self._encode_slopes(replace(step, tokens_law=weights / weights.sum()))
        sampled = _slope(costs.per_sampled, decoding + step.finished, spread)
        chunks = step.finished * queue.span
        chunk = _slope(costs.chunks_only, chunks, float(np.sqrt(chunks)))
        pairs_at_no_tokens = prompts.pairs - prompts.pairs_per_token * prompts.tokens
        return SlotWork(
            per_encode=sampled + chunk * queue.span + pair * pairs_at_no_tokens,
            per_prompt_token=token + pair * prompts.pairs_per_token,
            per_query=self._encode_slopes(step)[0]
            + _slope(costs.queries_only, decoding, spread)
            + sampled,
            per_context=_slope(costs.per_context, decoding * self.query_context, context_sd),
        )

    def _encode_slopes(self, step: StepLaw) -> tuple[float, float]:
        """What one more token and one more query-key pair cost, s, on average over the step's law."""
        at = step.slots * step.chance + step.tokens
        token = (self.costs.per_token(at + 1) - self.costs.per_token(at)) @ step.tokens_law
        pairs = step.tokens * (self.prompts.pairs / self.prompts.tokens)
        pair = (self.costs.per_pair(pairs + 1) - self.costs.per_pair(pairs)) @ step.tokens_law
        return float(token), float(pair)


def _slope(curve: Hinges, mean: float, sd: float) -> float:
    return float(curve.slope_mean(np.array([mean]), np.array([sd]))[0])


def _binomial(n: int, p: float) -> tuple[Floats, Floats]:
    """(counts 0..n, their probabilities)."""
    k = np.arange(n + 1, dtype=np.float64)
    log_ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return k, np.exp(log_ways + xlogy(k, p) + xlog1py(n - k, -p))
