"""ORCA on one unit: a pool of B_D places; at most one whole prompt is encoded in an iteration, beside the decodes.

It is CRA (cra.py) but for its queue: a freed place stands empty until its turn comes, one an iteration, and a step's
encode tokens are those of one prompt or none. n places are taken, for E[D] + 1 iterations each. By Little's law
n / (E[D] + 1) prompts are encoded an iteration, of which none is where all places are taken. Below that the number of
places taken gains one an iteration and loses n / (E[D] + 1): its law is taken as that of a birth and death process
scaled to its variance and cut at B_D, as WAA's pool is (waa.py),

    p(n) / p(n - 1) = ((E[D] + 1) / m)**(1 / v),   m = n - (1 - v) / 2,   n <= B_D

Over long times queries that enter one an iteration have v = sum S (1 - S) / sum S, S(t) = P(D >= t), over short ones,
in which whoever leaves does so by chance, v = 1 / 2; v is taken half way.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.memory import KV_SDS
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.encode_queue import EncodeQueues
from exegpt_planner.simulator.encode_walk import spread
from exegpt_planner.simulator.pipeline import Pipeline

Floats = NDArray[np.float64]

SHORT_TIMES = 0.5  # v where all leave by chance
POINTS = 64  # of a law of prompt tokens
RUN = 1.25  # largest pool of a run over its smallest
FULL_SDS = 5  # sqrt(E[D] + 1) over the mean: at least seven deviations of the places taken


class OrcaQueues:
    """Encodes of one workload, one prompt an iteration at most; pools are of a micro-batch."""

    def __init__(self, law: CompletionLaw) -> None:
        alive = law.alive[1:]
        self._decode_mean = law.decode_mean
        self._life = law.decode_mean + 1
        long_times = float(alive @ (1 - alive)) / max(law.decode_mean, 1.0)
        v = (long_times + SHORT_TIMES) / 2
        self.largest = int(self._life + FULL_SDS * np.sqrt(self._life)) + 2
        n = np.arange(1.0, self.largest + 1)
        logs = np.append(0.0, np.cumsum(np.log(self._life / (n - (1 - v) / 2)) / v))
        chances, taken = np.exp(logs - logs.max()), np.arange(self.largest + 1.0)
        total = np.cumsum(chances)
        self._mean = np.cumsum(taken * chances) / total  # by B_D
        square = np.cumsum(taken**2 * chances) / total
        self._sd = np.sqrt(np.maximum(square - self._mean**2, 0.0))
        pmf = law.workload.input.pmf
        longest = float(np.flatnonzero(pmf)[-1])
        self._tokens = np.linspace(0.0, longest, min(POINTS, int(longest)) + 1)
        at = np.arange(longest + 1) * ((len(self._tokens) - 1) / longest)
        self._prompt_law = spread(at, pmf[: int(longest) + 1], len(self._tokens))
        self._runs: dict[int, EncodeQueues] = {}

    @property
    def num_solved(self) -> int:
        """One law serves all pools."""
        return 1

    def alone(self, _chunk: int) -> float:
        """Iterations of an encode."""
        return 1.0

    def need(self, _pool: int) -> float:
        """C is not a knob."""
        return 0.0

    def most(self, _chunk: int) -> int:
        """The pool beyond which no more places are ever taken."""
        return self.largest

    def taken(self, pool: int) -> tuple[float, float]:
        """(mean, standard deviation) of the places taken."""
        at = min(pool, self.largest)
        return float(self._mean[at]), float(self._sd[at])

    def rate_at_least(self, pool: int, _chunk: int) -> float:
        """Prompts an iteration."""
        return self.taken(pool)[0] / self._life

    def rate_at_most(self, pool: int, _chunk: int) -> float:
        """The same, which rises with the pool."""
        return self.taken(pool)[0] / self._life

    def queues(self, pool: int, _chunk: int) -> EncodeQueues:
        """Those of the run of pools that `pool` is in."""
        low = _run(pool)
        found = self._runs.get(low)
        if found is None:
            found = self._runs[low] = self._of(low, min(_next(low) - 1, self.largest))
        return found

    def _of(self, low: int, high: int) -> EncodeQueues:
        pools = np.arange(low, high + 1, dtype=np.float64)
        rate = self._mean[low : high + 1] / self._life

        def law(rates: Floats) -> Floats:
            tokens = rates[:, None] * self._prompt_law
            tokens[:, 0] += 1 - rates
            return tokens

        ones = np.ones_like(pools)
        return EncodeQueues(
            chunk=None,
            is_single=True,
            pools=pools,
            completions=rate / pools,
            stay=pools / rate - self._decode_mean,
            span=ones,
            span_var=np.zeros_like(pools),
            begins=np.zeros(1),
            begins_law=ones[:, None],
            tokens=self._tokens,
            tokens_law=law(rate),
            beside_law=law(rate * (1 - 1 / pools)),
        )


class OrcaModel(CraModel):
    """ORCA on one unit; pools are of all micro-batches, and C is the longest prompt."""

    def __init__(
        self,
        pipeline: Pipeline,
        law: CompletionLaw,
        prompts: PromptMoments,
        most: int | None = None,
    ) -> None:
        """`most` is the largest pool of interest."""
        super().__init__(pipeline, law, prompts, most)
        self._places = orca_queues_of(law)
        self.queues = self._places
        self.longest = int(np.flatnonzero(law.workload.input.pmf)[-1])

    def kv_need(self, pool: int, chunk: int) -> float:
        """KV tokens to hold ready: places that stand empty hold none."""
        number = self.pipeline.micro_batches
        mean, sd = self._places.taken(self.size(pool))
        taken = int(np.ceil(number * mean + KV_SDS * np.sqrt(number) * sd))
        return super().kv_need(min(pool, -(-taken // number) * number), chunk)


@lru_cache(maxsize=8)
def orca_queues_of(law: CompletionLaw) -> OrcaQueues:
    """The law's, made once."""
    return OrcaQueues(law)


def _run(pool: int) -> int:
    """The smallest pool of its run."""
    low = 1
    while _next(low) <= pool:
        low = _next(low)
    return low


def _next(low: int) -> int:
    return max(low + 1, int(low * RUN))
