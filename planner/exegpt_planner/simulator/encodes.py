"""Mean times of encode steps by B_E, and what a prompt longer than the mean adds: what RRA and WAA have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.simulator.costs import COVERED_SDS, PromptMoments, StepCosts
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]


class EncodeTimes:
    """Encode steps of whole prompts of one workload."""

    def __init__(self, costs: StepCosts, workload: Workload, prompts: PromptMoments) -> None:
        self._costs, self._workload, self._prompts = costs, workload, prompts
        self.mean_s = self._means(self._largest_batch())  # by B_E; [0] is unused
        self._own_s: dict[int, Floats] = {}

    @property
    def max_batch(self) -> int:
        """The largest B_E whose encode the profile covers."""
        return len(self.mean_s) - 1

    def slopes(self, batch: Floats) -> tuple[Floats, Floats]:
        """(s per prompt token, variance in s**2 of a prompt's cost that its tokens do not explain)."""
        costs, prompts = self._costs, self._prompts
        token = costs.per_token.slope_mean(
            batch * prompts.tokens, np.sqrt(batch * prompts.tokens_var)
        )
        pair = costs.per_pair.slope_mean(batch * prompts.pairs, np.sqrt(batch * prompts.pairs_var))
        return token + pair * prompts.pairs_per_token, pair**2 * prompts.pairs_residual_var

    def own_input(self, length: int) -> tuple[float, float]:
        """(mean, variance) of the prompt of an answer of `length` tokens."""
        workload = self._workload
        k = min(length, workload.output.max)
        mean = float(workload.input_mean[k])
        return mean, max(float(workload.input_square[k]) - mean**2, 0.0)

    def own_s(self, length: int) -> Floats:
        """Expected time of the encode that an answer of `length` tokens is part of, by B_E from 1 on.

        Its prompt's length goes with its own.
        """
        found = self._own_s.get(length)
        if found is None:
            excess = self.own_input(length)[0] - self._prompts.tokens
            slopes = self.slopes(np.arange(1.0, self.max_batch + 1))[0]
            found = self._own_s[length] = self.mean_s[1:] + slopes * excess
        return found

    def _largest_batch(self) -> int:
        costs, prompts = self._costs, self._prompts
        b = np.arange(1, int(costs.per_chunk.limit) + 1, dtype=np.float64)
        tokens = b * prompts.tokens + COVERED_SDS * np.sqrt(b * prompts.tokens_var)
        pairs = b * prompts.pairs + COVERED_SDS * np.sqrt(b * prompts.pairs_var)
        covered = (tokens <= costs.per_token.limit) & (pairs <= costs.per_pair.limit)
        return int(covered.sum())

    def _means(self, largest: int) -> Floats:
        costs, prompts = self._costs, self._prompts
        b = np.arange(largest + 1, dtype=np.float64)
        return np.asarray(
            costs.per_token.mean(b * prompts.tokens, np.sqrt(b * prompts.tokens_var))
            + costs.per_pair.mean(b * prompts.pairs, np.sqrt(b * prompts.pairs_var))
            + costs.per_chunk(b)
            + costs.encode_fixed_s
        )
