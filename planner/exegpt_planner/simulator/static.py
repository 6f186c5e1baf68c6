"""Static batches, FasterTransformer's policy: encode a batch, decode until all of it is done, then the next.

Without early termination a query that has ended goes on being computed until the longest of its batch ends; with it,
the batch shrinks, which is RRA with an N_D as long as the longest answer. FasterTransformer must keep a bound for the
longest answer there can be (paper, section 7.1), the other for one of the bound's length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import PhaseLaw
from exegpt_planner.simulator.costs import COVERED_SDS
from exegpt_planner.simulator.latency import Latency
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

    def latency(self, batch: int, length: int) -> Latency:
        """The same with its deviation: that of the batch's prompts, where nobody leaves early."""
        model = self._model
        if self._is_early:
            return model.latency(batch, model.law.longest, length)
        pipeline, prompts, everyone = model.pipeline, model.prompts, self._everyone()
        part = batch / pipeline.micro_batches
        context, context_sd = part * everyone.context, np.sqrt(part * everyone.context_var)
        # whoever is in a batch holds up the slowest stage for all micro-batches, a pass for its own
        size, stages = (batch, pipeline.stages) if pipeline.is_filled else (part, (pipeline.whole,))
        squares = []
        for costs in stages:
            slopes = model.encodes.slopes(costs, np.array([part]))
            decodes = float(costs.per_context.slope_mean(context, context_sd).sum())
            slope = float(slopes.token_s[0]) + decodes
            squares.append(slope**2 * prompts.tokens_var + float(slopes.residual_var[0]))
        return Latency(
            mean_s=self.latency_s(batch, length), sd_s=float(np.sqrt(size * max(squares)))
        )

    def kv_need(self, batch: int) -> float:
        """KV tokens to hold ready: FasterTransformer's are of the longest answer, for every query."""
        if self._is_early:
            return self._model.kv_need(batch, self._model.law.longest)
        workload = self._model.law.workload
        return float(batch * (workload.input.max + workload.output.max))

    def covers(self, batch: int) -> bool:
        """Whether a micro-batch at its last iteration lies within the profile."""
        if self._is_early:
            return self._model.covers(batch, self._model.law.longest)
        costs, everyone = self._model.costs, self._everyone()
        part = batch / self._model.pipeline.micro_batches
        context = part * everyone.context + COVERED_SDS * np.sqrt(part * everyone.context_var)
        return part <= costs.per_query.limit and float(context.max()) <= costs.per_context.limit

    def _everyone(self) -> PhaseLaw:
        """All of a batch, in every iteration up to the longest answer's last."""
        prompts, t = self._model.prompts, np.arange(1.0, self._model.law.longest + 1)
        return PhaseLaw(
            queries=np.ones(len(t)),
            queries_var=np.zeros(len(t)),
            context=prompts.tokens + t,
            context_var=np.full(len(t), prompts.tokens_var),
            log_empty=np.full(len(t), -np.inf),
        )

    def _cycle_s(self, batch: int, chances: Floats) -> float:
        """One batch, all of it computed in those iterations that happen, each with its chance."""
        model = self._model
        decodes = model.decodes(batch, self._everyone())
        rounds_s = model.pipeline.round_s(decodes)
        return model.turn_s(batch, decodes, rounds_s) + float(rounds_s @ chances)
