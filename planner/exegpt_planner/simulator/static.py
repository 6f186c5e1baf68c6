"""Static batches, FasterTransformer's policy: encode a batch, decode until all of it is done, then the next.

Without early termination a query that has ended goes on being computed until the longest of its batch ends; with it,
the batch shrinks, which is RRA with an N_D as long as the longest answer. FasterTransformer must keep a bound for the
longest answer there can be (paper, section 7.1), the other for one of the bound's length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import PhaseLaw
from exegpt_planner.simulator.rra import RraModel

Floats = NDArray[np.float64]


class StaticModel:
    """Static batches on one unit."""

    def __init__(self, model: RraModel, *, early_termination: bool) -> None:
        """`model` is RRA's on the same unit."""
        self._model, self._is_early = model, early_termination

    def throughput(self, batch: int) -> float:
        """Queries per second of a unit under a backlog."""
        if self._is_early:
            return self._model.throughput(batch, self._model.law.longest)
        with np.errstate(divide="ignore"):
            log_dead = np.log1p(-self._model.law.alive[1:])
        return batch / self._cycle_s(batch, 1 - np.exp(batch * log_dead))

    def latency_s(self, batch: int, length: int) -> float:
        """What must keep the bound, from the start of the batch's encode: s."""
        if self._is_early:
            return self._model.latency_mean_s(batch, self._model.law.longest, length)
        return self._cycle_s(batch, np.ones(self._model.law.longest))

    def kv_need(self, batch: int) -> float:
        """KV tokens to hold ready: FasterTransformer's are of the longest answer, for every query."""
        if self._is_early:
            return self._model.kv_need(batch, self._model.law.longest)
        workload = self._model.law.workload
        return float(batch * (workload.input.max + workload.output.max))

    def _cycle_s(self, batch: int, chances: Floats) -> float:
        """One batch, all of it computed in those iterations that happen, each with its chance."""
        model = self._model
        prompts, t = model.prompts, np.arange(1.0, model.law.longest + 1)
        everyone = PhaseLaw(
            queries=np.ones(len(t)),
            queries_var=np.zeros(len(t)),
            context=prompts.tokens + t,
            context_var=np.full(len(t), prompts.tokens_var),
            log_empty=np.full(len(t), -np.inf),
        )
        decodes = model.decodes(batch, everyone)
        rounds_s = model.pipeline.round_s(decodes)
        return model.turn_s(batch, decodes, rounds_s) + float(rounds_s @ chances)
