"""Mean times of CRA's steps, of a run of pools at once: sums of curves over the laws of what a step holds.

Binomial(slots, chance) queries decode, and `own` more; encode tokens have a law of their own, independent of them. The
curves of whole numbers of queries are tabulated once, and the binomial law is summed over `REACH_SDS` standard
deviations. The token curve is met at the mean number of decoding queries where tokens are encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.expectation import Hinges
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.encode_queue import EncodeQueues
from exegpt_planner.simulator.renewal import SlotWork

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REACH_SDS = 6.5
FAR = 1e3  # of a curve's limit: beyond what steps reach
AGES = 16  # at which a query's own context is met, in place of every one


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what is cached needs a dict
class Steps:
    """What is in a step of each pool; arrays over pools, laws (pools, tokens)."""

    slots: Floats
    chance: Floats
    tokens: Floats
    tokens_law: Floats
    chunks_extra: Floats  # chunks beyond tokens / E[I], where there are tokens
    finished: Floats  # prompts that end in the step, mean
    is_single: bool  # one whole prompt at most: ORCA's

    @property
    def decoding(self) -> Floats:
        """Queries that decode, mean."""
        return self.slots * self.chance

    @cached_property
    def counts(self) -> tuple[Ints, Floats]:
        """(numbers of them around the mean, their probabilities), (pools, counts)."""
        return _binomial(self.slots, self.chance)

    def encoding(self, weights: Floats) -> Steps:
        """The same with another law of tokens, in proportion to `weights`."""
        return replace(self, tokens_law=weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """Seconds of a step by its number of decoding queries 0, 1, ..., what is sampled apart."""

    decode_s: Floats  # queries and their context
    token_s: Floats  # the queries' own tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """A query's decode."""

    iterations: float  # E[D]
    context: float  # KV tokens that it attends to in one of them, mean
    context_square: float

    @classmethod
    def of(cls, law: CompletionLaw) -> Self:
        """Of a workload."""
        decode = law.decode_mean
        return cls(
            iterations=decode,
            context=law.context_mean / decode if decode else 0.0,
            context_square=law.context_square / decode if decode else 0.0,
        )


class StepTimes:
    """Step times of one workload on one machine, or on a stage."""

    def __init__(
        self, costs: StepCosts, prompts: PromptMoments, decoding: Decoding, most: int | None
    ) -> None:
        """`most` is the largest pool of interest."""
        self.costs, self.prompts = costs, prompts
        self._decode_mean, self._query_context = decoding.iterations, decoding.context
        self._context_square = decoding.context_square
        limit = int(costs.queries_only.limit)
        self.most = limit if most is None else min(limit, most)  # the largest pool covered
        self._beside: dict[tuple[float, int], Counted] = {}
        self._means: dict[tuple[Steps, tuple[float, int] | None], Floats] = {}
        self._per_token, self._chunks_only, self._per_sampled = (
            _Corners(each) for each in (costs.per_token, costs.chunks_only, costs.per_sampled)
        )
        self.others = self._counted(own=0, own_context=np.zeros(1))

    def beside(self, own_input: float, length: int) -> Counted:
        """What counts of other queries cost beside one's own, of this input and output."""
        found = self._beside.get((own_input, length))
        if found is None:
            ages = (np.arange(AGES) + 0.5) / AGES * (length - 1) + 0.5
            found = self._counted(own=1, own_context=own_input + ages)
            self._beside[own_input, length] = found
        return found

    def _counted(self, *, own: int, own_context: Floats) -> Counted:
        costs, counts = self.costs, np.arange(self.most + 1)
        context_s = np.zeros(len(counts))
        for each in own_context:
            context_s += costs.per_context(counts * self._query_context + each) / len(own_context)
        return Counted(
            decode_s=costs.queries_only(counts + own) + context_s,
            token_s=costs.per_token(counts + own),
        )

    def chunks(self, steps: Steps) -> Floats:
        """Chunks of a step by its tokens, (pools, tokens)."""
        return _chunks(steps, self.prompts)

    def mean_s(self, steps: Steps, *, own: int, beside: tuple[float, int] | None = None) -> Floats:
        """Mean times of steps, dispatch not included; `beside` is one's own (input, output), where `own` is 1."""
        found = self._means.get((steps, beside))
        if found is None:
            counted = self.others if beside is None else self.beside(*beside)
            found = self._means[steps, beside] = self._mean_s(steps, own, counted)
        return found

    def _mean_s(self, steps: Steps, own: int, counted: Counted) -> Floats:
        costs = self.costs
        counts, chances = steps.counts
        quiet, busy = steps.tokens_law[:, 0], steps.tokens_law[:, 1:]
        mean = steps.decoding + own
        sampled_s = self._per_sampled(counts + (own + steps.finished)[:, None])
        by_count_s = sampled_s + counted.decode_s[counts] + quiet[:, None] * counted.token_s[counts]
        by_tokens_s = self._chunks_only(self.chunks(steps)) + costs.per_pair(self._pairs(steps))
        token_s = self._per_token(mean[:, None] + steps.tokens[1:])
        return np.asarray(
            costs.mixed_fixed_s
            + _dot(by_count_s, chances)
            + _dot(by_tokens_s, steps.tokens_law)
            + _dot(token_s, busy)
        )

    def encode_s(self, steps: Steps) -> Floats:
        """What encoding adds to a step, mean."""
        costs, mean = self.costs, steps.decoding
        token_s = self._per_token(mean[:, None] + steps.tokens)
        by_tokens_s = self._chunks_only(self.chunks(steps)) + costs.per_pair(self._pairs(steps))
        return np.asarray(
            _dot(token_s + by_tokens_s, steps.tokens_law)
            - costs.per_token(mean)
            - costs.chunks_only.at_zero
            - costs.per_pair.at_zero
            + costs.per_sampled(mean + steps.finished)
            - costs.per_sampled(mean)
        )

    def encode_slopes(self, steps: Steps) -> tuple[Floats, Floats]:
        """What one more token and one more query-key pair cost, s, on average over the steps' laws."""
        at = steps.decoding[:, None] + steps.tokens
        pairs = self._pairs(steps)
        token = self._per_token(at + 1) - self._per_token(at)
        pair = self.costs.per_pair(pairs + 1) - self.costs.per_pair(pairs)
        return _dot(token, steps.tokens_law), steps.tokens_law @ pair

    def encode_moments(self, steps: Steps, number: float) -> tuple[Floats, Floats]:
        """(mean, standard deviation) by encode tokens of the longest of so many steps; times rise with tokens."""
        time_s = self._per_token(steps.decoding[:, None] + steps.tokens)
        time_s += self._chunks_only(self.chunks(steps)) + self.costs.per_pair(self._pairs(steps))
        below = np.minimum(np.maximum(np.cumsum(steps.tokens_law, axis=1), 0.0), 1.0) ** number
        chances = np.diff(below, axis=1, prepend=0.0)
        mean_s = _dot(time_s, chances)
        return mean_s, np.sqrt(_dot((time_s - mean_s[:, None]) ** 2, chances))

    def decode_var(self, steps: Steps) -> Floats:
        """Variance of a step's time by the queries that decode, s**2."""
        work = self.slot_work(steps, np.ones_like(steps.slots))
        query, context, mean = work.per_query, work.per_context, self._query_context
        square = query**2 + 2 * query * context * mean + context**2 * self._context_square
        return np.asarray(steps.decoding * (square - steps.chance * (query + context * mean) ** 2))

    def slot_work(self, steps: Steps, span: Floats) -> SlotWork:
        """What one slot adds to steps, linearised at the mean."""
        costs, prompts = self.costs, self.prompts
        decoding = steps.decoding
        spread = np.sqrt(decoding * (1 - steps.chance))
        token, pair = self.encode_slopes(steps.encoding(steps.tokens_law * steps.tokens))
        sampled = costs.per_sampled.slope_mean(decoding + steps.finished, spread)
        chunks = steps.finished * span
        chunk = costs.chunks_only.slope_mean(chunks, np.sqrt(chunks))
        query = costs.queries_only.slope_mean(decoding, spread)
        context_sd = np.sqrt(decoding * self._context_square)
        pairs_at_no_tokens = prompts.pairs - prompts.pairs_per_token * prompts.tokens
        return SlotWork(
            per_encode=sampled + chunk * span + pair * pairs_at_no_tokens,
            per_prompt_token=token + pair * prompts.pairs_per_token,
            per_query=self.encode_slopes(steps)[0] + query + sampled,
            per_context=costs.per_context.slope_mean(decoding * self._query_context, context_sd),
        )

    def _pairs(self, steps: Steps) -> Floats:
        return np.asarray(steps.tokens * (self.prompts.pairs / self.prompts.tokens))


class _Corners:
    """A curve on [0, far), looked up: of many points faster than a sum over hinges."""

    def __init__(self, curve: Hinges) -> None:
        x, _ = curve.points()
        self._x = np.append(x, FAR * curve.limit)
        self._y = curve(self._x)

    def __call__(self, x: Floats) -> Floats:
        return np.interp(x, self._x, self._y)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSteps:
    """The steps of a run of pools: any, those that a query is encoded in, and what is beside a decoding one."""

    every: Steps
    encoding: Steps
    beside: Steps


@lru_cache(maxsize=2048)
def steps_of(queues: EncodeQueues, prompts: PromptMoments, decode_mean: float) -> RunSteps:
    """A run's, made once for all machines."""
    others = queues.pools - 1
    every = _steps(queues, queues.pools, queues.tokens_law, decode_mean)
    # a step is met in proportion to its chunks
    met = replace(every, slots=others)
    return RunSteps(
        every=every,
        encoding=met.encoding(met.tokens_law * _chunks(met, prompts)),
        beside=_steps(queues, others, queues.beside_law, decode_mean),
    )


@lru_cache(maxsize=512)
def step_times(
    costs: StepCosts, prompts: PromptMoments, decoding: Decoding, most: int | None
) -> StepTimes:
    """A stage's, made once for all pipelines that it is in."""
    return StepTimes(costs, prompts, decoding, most)


def _steps(queues: EncodeQueues, slots: Floats, law: Floats, decode_mean: float) -> Steps:
    """Steps in which `slots` slots take part and encode tokens have this law."""
    finished = slots * queues.completions
    busy = 1 - law[:, 0]
    extra = finished * (queues.span - 1)
    return Steps(
        slots=slots,
        chance=queues.completions * decode_mean,
        tokens=queues.tokens,
        tokens_law=law,
        chunks_extra=np.divide(extra, busy, out=np.zeros_like(extra), where=busy > 0),
        finished=finished,
        is_single=queues.is_single,
    )


def _chunks(steps: Steps, prompts: PromptMoments) -> Floats:
    if steps.is_single:
        return np.broadcast_to(np.minimum(steps.tokens, 1.0), steps.tokens_law.shape)
    extra = np.where(steps.tokens > 0, steps.chunks_extra[:, None], 0.0)
    return np.asarray(extra + steps.tokens / prompts.tokens)


def _binomial(slots: Floats, chance: Floats) -> tuple[Ints, Floats]:
    """(counts around the mean, their probabilities), (pools, counts)."""
    reach = REACH_SDS * np.sqrt(slots * chance * (1 - chance)) + 4
    low = np.maximum(slots * chance - reach, 0).astype(np.int64)
    n = slots.astype(np.int64)[:, None]
    width = int(min(2 * reach.max() + 2, n.max() + 1))
    low = np.minimum(low[:, None], np.maximum(n - width + 1, 0))
    counts = np.minimum(low + np.arange(width), n)
    log_factorials = gammaln(np.arange(1.0, n.max() + 2))
    log_ways = log_factorials[n] - log_factorials[counts]
    log_ways -= log_factorials[n - counts]
    p = chance[:, None]
    chances = np.exp(log_ways + xlogy(counts, p) + xlog1py(n - counts, -p))
    chances[low + np.arange(width) > n] = 0.0
    return counts, chances


def _dot(values: Floats, law: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", np.broadcast_to(values, law.shape), law))
