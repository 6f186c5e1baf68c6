"""Moments of a workload's prompts, which the cost of encodes is a function of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exegpt_planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMoments:
    """What the encodes of a workload's prompts cost is a function of."""

    tokens: float  # E[I]
    tokens_var: float
    pairs: float  # E[I (I + 1) / 2]
    pairs_var: float
    pairs_per_token: float  # slope of the regression of pairs on tokens
    pairs_residual_var: float


def prompt_moments(workload: Workload) -> PromptMoments:
    """Moments of the input law."""
    pmf = workload.input.pmf
    tokens = np.arange(len(pmf), dtype=np.float64)
    pairs = tokens * (tokens + 1) / 2
    mean, mean_pairs = float(pmf @ tokens), float(pmf @ pairs)
    var = float(pmf @ (tokens - mean) ** 2)
    var_pairs = float(pmf @ (pairs - mean_pairs) ** 2)
    covariance = float(pmf @ ((tokens - mean) * (pairs - mean_pairs)))
    slope = covariance / var if var > 0 else 0.0
    return PromptMoments(
        tokens=mean,
        tokens_var=var,
        pairs=mean_pairs,
        pairs_var=var_pairs,
        pairs_per_token=slope,
        pairs_residual_var=max(var_pairs - slope * covariance, 0.0),
    )
