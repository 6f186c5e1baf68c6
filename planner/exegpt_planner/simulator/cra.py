"""CRA on one unit: a pool of B_D queries, refilled every iteration; encodes ride on decode steps, C tokens at most.

In M micro-batches on P stages (mixed_rounds.py; a device is P = M = 1) each has a pool of B_D / M of its own, which an
iteration of its own refills with C tokens at most. So what is in its steps does not depend on the pipeline:

    throughput = M rate / T,   rate = B_D / M / (E[e] + E[D]),   T = E[T(round)], its message included
    Lat(s)     = E[e'] T* + (s - 1) T' - (T' - w'),   on one stage the last term is the message

The encode queue (encode_queue.py) gives E[e], E[e'] and the law of a step's encode tokens; decoding slots are
independent of it, each with probability E[D] / (E[e] + E[D]). T* is a round in which a query is encoded (so more than
the mean round), T' one in which it decodes, w' its last step's way through the stages. Every sum has its exact mean, so
costs that are affine are averaged exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.schedule import CraSchedule, Prediction
from exegpt_planner.simulator.arrivals import wait_for_place
from exegpt_planner.simulator.costs import COVERED_SDS
from exegpt_planner.simulator.cra_steps import Decoding, Steps, steps_of
from exegpt_planner.simulator.encode_queue import EncodeQueues, queues_of
from exegpt_planner.simulator.latency import Latency
from exegpt_planner.simulator.mixed_rounds import MixedRounds
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import KEPT_SDS, Promise
from exegpt_planner.simulator.renewal import slots_of

Floats = NDArray[np.float64]

UNSEEN = 0.01  # expected number of steps of an answer, below which it is not counted on


class Queues(Protocol):
    """Encode queues of one workload; pools are of a micro-batch."""

    @property
    def num_solved(self) -> int:
        """Laws computed so far."""
        ...

    def alone(self, chunk: int, /) -> float:
        """Iterations that a prompt which never waits is encoded in, mean."""
        ...

    def need(self, pool: int, /) -> float:
        """The least C of a pool."""
        ...

    def most(self, chunk: int, /) -> int:
        """The largest pool that C keeps up with."""
        ...

    def rate_at_least(self, pool: int, chunk: int, /) -> float: ...
    def rate_at_most(self, pool: int, chunk: int, /) -> float: ...
    def queues(self, pool: int, chunk: int, /) -> EncodeQueues:
        """Those of the run of pools that `pool` is in."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what is cached needs a dict
class Latencies:
    """Of an answer of one length, in each pool of a run; s."""

    encode_s: Floats  # the rounds that encode it, messages included
    mean_s: Floats
    deviation: Callable[[], Floats]

    @cached_property
    def sd_s(self) -> Floats:
        """Standard deviations; mean latencies alone do not need them."""
        return self.deviation()

    def promised_s(self, promise: Promise) -> Floats:
        """What is promised of such an answer."""
        if promise.sds == 0:
            return self.mean_s * (1 + promise.error)
        return (self.mean_s + promise.sds * self.sd_s) * (1 + promise.error)


class CraRun:
    """A run of pools of a micro-batch with one C, or with any so large that nobody waits for it."""

    def __init__(self, model: CraModel, queues: EncodeQueues) -> None:
        self.queues, self._model = queues, model
        rounds = self._rounds = model.rounds
        self._steps = steps_of(queues, model.prompts, model.decoding.iterations)
        self.steps = self._steps.every
        self._times = rounds.times(self.steps, own=0)
        self._spread = rounds.spread(self.steps)
        self.round_s = rounds.rounds(self._times, self._times, self._spread).mean_s
        self.rate = queues.pools * queues.completions  # queries an iteration of a micro-batch
        self.throughput = model.pipeline.micro_batches * self.rate / self.round_s
        self._latencies: dict[int, Latencies] = {}

    @property
    def last(self) -> int:
        """The largest pool."""
        return int(self.queues.pools[-1])

    def at(self, pool: int) -> int:
        """The index of a pool."""
        return pool - int(self.queues.pools[0])

    @property
    def encode_share(self) -> Floats:
        """Of a round, what encoding adds to it."""
        pace, number = self._rounds.pace(self.steps, self._times)
        return number * pace.encode_s(self.steps) / self.round_s

    def longest_gap(self, at: int, decodes: int) -> Latency:
        """Of an answer in pool `at`: a round of steps whose chunk is as full as it sees them."""
        rounds, law = self._rounds, np.zeros_like(self.steps.tokens_law)
        seen = self.steps.tokens_law[at] * decodes > UNSEEN
        law[:, int(np.flatnonzero(seen)[-1])] = 1.0
        fullest = rounds.times(replace(self.steps, tokens_law=law), own=0)
        mean_s = rounds.rounds(fullest, self._times, self._spread).mean_s
        pace, number = rounds.pace(self.steps, self._times)
        slope_s = np.asarray(pace.slot_work(self.steps, self.queues.span).per_query)[at]
        chance, size = float(self.steps.chance[at]), float(self.queues.pools[at])
        sd_s = float(slope_s) * math.sqrt(number * size * chance * (1 - chance))
        return Latency(mean_s=float(mean_s[at]), sd_s=sd_s)

    def latencies(self, length: int) -> Latencies:
        """Of answers of `length` tokens."""
        found = self._latencies.get(length)
        if found is None:
            found = self._latencies[length] = self._latency(length)
        return found

    def _latency(self, length: int) -> Latencies:
        queues, rounds = self.queues, self._rounds
        costs = self._model.costs
        input_mean, input_var = self._model.own_input(length)
        steps = self._steps.encoding
        span, span_var = self._own_span(input_mean, input_var)
        encoding = rounds.times(steps, own=0)
        encode_round_s = rounds.rounds(encoding, self._times, self._spread).mean_s
        pace, number = rounds.pace(self.steps, self._times)
        excess_s = self._excess_s(steps, input_mean, span)
        encode_s = np.maximum(
            span * encode_round_s + excess_s,
            costs.mixed_fixed_s + costs.dispatch_s,  # at least one step
        )
        decoding = rounds.times(self._steps.beside, own=1, beside=(input_mean, length))
        decodes = rounds.rounds(decoding, self._times, self._spread)
        decode_s = decodes.mean_s
        after_s = costs.dispatch_s if length == 1 else decode_s - decoding.pass_s

        def deviation() -> Floats:
            work = pace.slot_work(self.steps, queues.span)
            window = np.round(queues.span).astype(np.int64) + length - 1
            others = number * queues.pools - 1
            slots = self._model.slots
            var = others * slots.window_vars(work, stay=queues.stay, iterations=window)
            var = var + (length - 1) * decodes.wait_var
            token_s = work.per_prompt_token
            own_step_s = np.maximum(encode_s - token_s * input_mean, 0.0) / span
            covariance = np.minimum(
                input_var / (queues.chunk or np.inf), np.sqrt(input_var * span_var)
            )
            slope = token_s + (length - 1) * work.per_context
            var = var + own_step_s**2 * span_var + 2 * own_step_s * slope * covariance
            return np.asarray(np.sqrt(var + slope**2 * input_var))

        return Latencies(
            encode_s=encode_s,
            mean_s=encode_s + (length - 1) * decode_s - after_s,
            deviation=deviation,
        )

    def _excess_s(self, steps: Steps, input_mean: float, span: Floats) -> Floats:
        """What tokens beyond others' cost: these are in its number of chunks as far as they are full."""
        prompts = self._model.prompts
        saturated = 0.0 if self.queues.chunk is None else steps.tokens_law[:, -1]
        token, pair = self._rounds.pace(self.steps, self._times)[0].encode_slopes(steps)
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
    """Everything the search asks of CRA, with what does not depend on the schedule computed once.

    Pools are B_D, of all micro-batches together, and multiples of their number.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        law: CompletionLaw,
        prompts: PromptMoments,
        most: int | None = None,
    ) -> None:
        """`most` is the largest pool of interest."""
        self.pipeline, self.law, self.prompts = pipeline, law, prompts
        self.costs = pipeline.whole
        self.queues: Queues = queues_of(law.workload)
        self.slots = slots_of(law)
        self.decoding = Decoding.of(law)
        self.most = None if most is None else most // pipeline.micro_batches
        self.rounds = MixedRounds(pipeline, prompts, self.decoding, self.most)
        self._runs: dict[EncodeQueues, CraRun] = {}

    def size(self, pool: int) -> int:
        """The pool of a micro-batch."""
        return pool // self.pipeline.micro_batches

    def fits(self, pool: int, chunk: int) -> bool:
        """Whether C is far enough above the steady need B_D / M E[I] / E[L]."""
        return chunk >= self.queues.need(self.size(pool))

    def run(self, size: int, chunk: int) -> CraRun:
        """The run of pools of a micro-batch that `size` is in; it must fit."""
        queues = self.queues.queues(size, chunk)
        found = self._runs.get(queues)
        if found is None:
            found = self._runs[queues] = CraRun(self, queues.up_to(self.rounds.whole.most))
        return found

    def throughput(self, pool: int, chunk: int) -> float:
        """Queries per second."""
        run = self.run(self.size(pool), chunk)
        return float(run.throughput[run.at(self.size(pool))])

    def latency(self, pool: int, chunk: int, length: int) -> Latency:
        """Mean and standard deviation of the latency of an answer of `length` tokens."""
        run = self.run(self.size(pool), chunk)
        found, at = run.latencies(length), run.at(self.size(pool))
        return Latency(mean_s=float(found.mean_s[at]), sd_s=float(found.sd_s[at]))

    def latency_mean_s(self, pool: int, chunk: int, length: int) -> float:
        """Mean latency of an answer of `length` tokens."""
        return self.latency(pool, chunk, length).mean_s

    def first_token(self, pool: int, chunk: int) -> Latency:
        """From the start of its encode to a query's first token."""
        return self.latency(pool, chunk, 1)

    def gap(self, pool: int, chunk: int, decodes: int) -> Latency:
        """The longest between two tokens of an answer: of a step whose chunk is full."""
        run = self.run(self.size(pool), chunk)
        return run.longest_gap(run.at(self.size(pool)), decodes)

    def wait(self, pool: int, chunk: int, rate_per_s: float) -> Latency:
        """From arrival to a place in the pool, at the end of a round."""
        run = self.run(self.size(pool), chunk)
        at = run.at(self.size(pool))
        stay_s, span = pool / float(run.throughput[at]), float(run.queues.span[at])
        varies = self.law.workload.output.var / (span + self.law.decode_mean) ** 2
        round_s = float(run.round_s[at])
        boundary = Latency(mean_s=round_s / 2, sd_s=round_s / math.sqrt(12))
        return boundary.after(wait_for_place(rate_per_s, stay_s, pool, varies))

    def kv_need(self, pool: int, chunk: int) -> float:
        """KV tokens to hold ready, and room for a step's activations.

        As if no prompt waited, or all slots held new prompts, where that is more.
        """
        decode = self.decoding.iterations
        shares = np.array([decode / (self.queues.alone(chunk) + decode), 0.0])
        mean, var = self._kv(pool, shares)
        need = memory.need(mean, var, np.full(2, float(pool)))
        return need + self.pipeline.activation_tokens * (self.size(pool) + chunk)

    def kv_least(self, pool: int, narrowest: int, widest: int) -> float:
        """What schedules with a C between these, and with this pool or a larger one, need at least."""
        if narrowest == widest:
            return self.kv_need(pool, narrowest)
        decode = self.decoding.iterations
        alone = np.array([self.queues.alone(narrowest), self.queues.alone(widest)])
        # between them the mean is linear in the share of slots that decode, the variance concave
        mean, var = (each.min() for each in self._kv(pool, decode / (alone + decode)))
        new, new_var = (each[0] for each in self._kv(pool, np.zeros(1)))
        means, variances = np.array([mean, new]), np.array([var, new_var])
        need = memory.need(means, variances, np.full(2, float(pool)))
        return need + self.pipeline.activation_tokens * (self.size(pool) + narrowest)

    def _kv(self, pool: int, decoding: Floats) -> tuple[Floats, Floats]:
        """(mean, variance) of the KV tokens held when slots decode with this chance and else hold a whole prompt."""
        prompts = self.prompts
        mean = decoding * self.decoding.context + (1 - decoding) * prompts.tokens
        square = decoding * self.decoding.context_square
        square = square + (1 - decoding) * (prompts.tokens_var + prompts.tokens**2)
        return pool * mean, pool * (square - mean**2)

    def edge(self, pool: int, chunk: int) -> float:
        """How far a micro-batch reaches into the profile: 1 is its end."""
        costs, prompts, size = self.costs, self.prompts, self.size(pool)
        prompts_a_step = chunk / prompts.tokens
        pairs = prompts_a_step * prompts.pairs
        pairs += COVERED_SDS * np.sqrt(prompts_a_step * prompts.pairs_var)
        context = size * self.decoding.context
        context_sd = np.sqrt(size * (self.decoding.context_square - self.decoding.context**2))
        return float(
            max(
                (size + chunk) / costs.per_token.limit,
                size / costs.queries_only.limit,
                (size + prompts_a_step) / costs.per_sampled.limit,
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
        run = self.run(self.size(pool), chunk)
        at = run.at(self.size(pool))
        latency = self.latency(pool, chunk, promise.length)
        rate = schedule.units * float(run.throughput[at])
        decoding = float(run.steps.chance[at])
        own_encode_s = float(run.latencies(promise.length).encode_s[at])
        return Prediction(
            queries_per_s=rate,
            tokens_per_s=rate * self.law.output_mean,
            cycle_s=float(run.round_s[at]),
            encode_share=float(run.encode_share[at]),
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
            need = self.queues.need(self.size(pool))
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
