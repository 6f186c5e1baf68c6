"""A profile table's curves, summed by what they are functions of, in the form expectations need.

decode step: per_query(n) + per_context(context) + decode_fixed_s
encode step: per_token(tokens) + per_chunk(chunks) + per_pair(pairs) + encode_fixed_s
mixed step:  its tokens are packed, so the token curve is met once, at decode queries + encode tokens;
             per_token + queries_only + per_context + chunks_only + per_pair + per_sampled + mixed_fixed_s
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.expectation import Hinges, add, on_counts
from exegpt_planner.profile_table import HandOverCurves, ProfileTable
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]

COVERED_SDS = 3.0  # a schedule's sums must lie in the table up to mean + 3 sd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCosts:
    """Seconds of a step by its sums, all layers and what lies outside them together."""

    per_query: Hinges  # of a decode step that encodes nothing: tokens = queries = sampled
    per_context: Hinges
    per_token: Hinges
    per_chunk: Hinges  # of an encode step that decodes nothing and samples once a chunk
    per_pair: Hinges
    chunks_only: Hinges  # without the sampling
    queries_only: Hinges  # without the tokens and the sampling
    per_sampled: Hinges
    decode_fixed_s: float  # of a step that only decodes
    encode_fixed_s: float  # of a step that only encodes
    mixed_fixed_s: float
    dispatch_s: float


def costs_of(table: ProfileTable) -> StepCosts:
    """The table's step costs."""
    layers, layer, outside = float(table.num_layers), table.layer, table.outside
    tokens = [(layers, layer.tokens), (1.0, outside.tokens)]
    sampled = (1.0, outside.sampled)
    return StepCosts(
        per_query=on_counts(add([*tokens, (layers, layer.decode_queries), sampled])),
        per_context=add([(layers, layer.decode_context)]),
        per_token=on_counts(add(tokens)),
        per_chunk=add([(layers, layer.encode_chunks), sampled]),
        per_pair=add([(layers, layer.encode_pairs)]),
        chunks_only=add([(layers, layer.encode_chunks)]),
        queries_only=add([(layers, layer.decode_queries)]),
        per_sampled=add([sampled]),
        decode_fixed_s=table.step_overhead_s
        + layers * (layer.encode_chunks(0) + layer.encode_pairs(0)),
        encode_fixed_s=table.step_overhead_s
        + layers * (layer.decode_queries(0) + layer.decode_context(0)),
        mixed_fixed_s=table.step_overhead_s,
        dispatch_s=table.dispatch_s,
    )


def hand_over_of(table: ProfileTable) -> HandOverCurves:
    """The table's hand-over times; raises `IncompleteProfile` if it holds none."""
    if table.hand_over is None:
        raise IncompleteProfile(
            "the profile holds no times of handing over KV, without which WAA cannot be predicted. "
            "Profile two workers or more."
        )
    return table.hand_over


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
