"""Mean times of encodes by B_E, and what a prompt longer than the mean adds: what RRA and WAA have in common.

B_E >= M prompts are encoded in M micro-batches as even as can be; between whole micro-batches times are interpolated,
which is exact for their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.prompts import PromptMoments
from exegpt_planner.simulator.costs import COVERED_SDS, StepCosts
from exegpt_planner.simulator.pipeline import Pipeline, Times
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """What a prompt costs beside the mean one."""

    token_s: Floats  # s per prompt token
    residual_var: Floats  # of its cost that its tokens do not explain, s**2


class EncodeTimes:
    """Encodes of whole prompts of one workload."""

    def __init__(
        self,
        pipeline: Pipeline,
        workload: Workload,
        prompts: PromptMoments,
        most: int | None = None,
    ) -> None:
        """`most` is the largest B_E of interest, where the profile covers more."""
        self._pipeline, self._workload, self._prompts = pipeline, workload, prompts
        micro_batches = pipeline.micro_batches
        self.max_batch = micro_batches * self._largest_micro_batch(most)
        if most is not None:
            self.max_batch = min(self.max_batch, max(most, 0))
        self._own: dict[int, Times] = {}
        sizes = np.arange(self.max_batch + 1) / micro_batches
        counts = np.arange(-(-self.max_batch // micro_batches) + 1, dtype=np.float64)
        alone = pipeline.times(
            lambda costs: self._means(costs, counts), lambda costs: self._sds(costs, counts)
        )
        self.times = Times(
            slowest_s=np.interp(sizes, counts, alone.slowest_s),
            pass_s=np.interp(sizes, counts, alone.pass_s),
            pass_sd_s=np.interp(sizes, counts, alone.pass_sd_s),
        )

    def slopes(self, costs: StepCosts, batch: Floats) -> Slopes:
        """Where a micro-batch is of `batch` prompts."""
        prompts = self._prompts
        token = costs.per_token.slope_mean(
            batch * prompts.tokens, np.sqrt(batch * prompts.tokens_var)
        )
        pair = costs.per_pair.slope_mean(batch * prompts.pairs, np.sqrt(batch * prompts.pairs_var))
        return Slopes(
            token_s=token + pair * prompts.pairs_per_token,
            residual_var=pair**2 * prompts.pairs_residual_var,
        )

    def sd_s(self, costs: StepCosts, size: float) -> float:
        """Deviation of the encode of a micro-batch of `size` prompts."""
        return float(self._sds(costs, np.array([size]))[0])

    def own_input(self, length: int) -> tuple[float, float]:
        """(mean, variance) of the prompt of an answer of `length` tokens."""
        workload = self._workload
        k = min(length, workload.output.max)
        mean = float(workload.input_mean[k])
        return mean, max(float(workload.input_square[k]) - mean**2, 0.0)

    def own(self, length: int) -> Times:
        """Expected times of the micro-batch that an answer of `length` tokens is encoded in, by B_E from 1 on.

        Its prompt's length goes with its own.
        """
        found = self._own.get(length)
        if found is None:
            excess = self.own_input(length)[0] - self._prompts.tokens
            sizes = np.maximum(
                np.arange(1.0, self.max_batch + 1) / self._pipeline.micro_batches, 1.0
            )
            more = self._pipeline.times(lambda costs: self.slopes(costs, sizes).token_s)
            found = self._own[length] = Times(
                slowest_s=self.times.slowest_s[1:] + more.slowest_s * excess,
                pass_s=self.times.pass_s[1:] + more.pass_s * excess,
                pass_sd_s=self.times.pass_sd_s[1:],
            )
        return found

    def _largest_micro_batch(self, most: int | None) -> int:
        costs, prompts = self._pipeline.whole, self._prompts
        end = int(costs.per_chunk.limit)
        b = np.arange(1, (end if most is None else min(end, most)) + 1, dtype=np.float64)
        tokens = b * prompts.tokens + COVERED_SDS * np.sqrt(b * prompts.tokens_var)
        pairs = b * prompts.pairs + COVERED_SDS * np.sqrt(b * prompts.pairs_var)
        covered = (tokens <= costs.per_token.limit) & (pairs <= costs.per_pair.limit)
        return int(covered.sum())

    def _sds(self, costs: StepCosts, b: Floats) -> Floats:
        slopes = self.slopes(costs, b)
        each = slopes.token_s**2 * self._prompts.tokens_var + slopes.residual_var
        return np.sqrt(b * each)

    def _means(self, costs: StepCosts, b: Floats) -> Floats:
        prompts = self._prompts
        return np.asarray(
            costs.per_token.mean(b * prompts.tokens, np.sqrt(b * prompts.tokens_var))
            + costs.per_pair.mean(b * prompts.pairs, np.sqrt(b * prompts.pairs_var))
            + costs.per_chunk(b)
            + costs.encode_fixed_s
        )
