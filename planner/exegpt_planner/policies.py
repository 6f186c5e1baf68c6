"""The comparison policies at their best: the same tables, bounds and shapes as the planner's, every knob tuned.

    FT       static batches, FasterTransformer's: all of a batch is computed until its longest answer ends
    FT-ET    static batches with early termination
    ORCA     a pool that one whole prompt may join in each iteration
    chunked  a pool that is refilled every iteration in chunks of 512 tokens at most, as vLLM does by default

Each has one knob, the batch or the pool, and is searched over all of it on every shape that is given: one for the
paper's fixed shape, all of them for free shapes and units. FasterTransformer must keep the bound with the longest
answer there can be, the others with one of the 99th percentile length (paper, section 7.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.cra_relaxation import PoolRelaxation
from exegpt_planner.cra_space import CraSpace
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.relaxation import Relaxation
from exegpt_planner.search import Space, search_together
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.orca import OrcaModel
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.static_space import EarlySpace, PlainSpace

Floats = NDArray[np.float64]
Policy = Literal["FT", "FT-ET", "ORCA", "chunked"]

POOLS: tuple[Policy, ...] = ("ORCA", "chunked")
CHUNK_TOKENS = 512  # C of chunked refill
PERCENTILE = 0.99  # of output lengths, that the bound is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of a policy."""

    policy: Policy
    shape: Shape
    queries: int  # the knob, of a unit: FT's and FT-ET's batch, ORCA's and chunked refill's pool
    queries_per_s: float  # of all units
    latency_s: float  # what is held against the bound


def best(
    policy: Policy,
    shapes: Sequence[Shape],
    table: ProfileTable,
    law: CompletionLaw,
    bound_s: float,
    mode: Literal["mean", "p99"] = "mean",
) -> Best | None:
    """The most throughput within the bound on any of the shapes; None if none keeps it.

    `law` is the workload's on the table (`law_on`); `mode` as in `plan.Bound`.
    """
    is_pool, length = policy in POOLS, law.workload.output.quantile(PERCENTILE)
    if is_pool and table.encoder is not None:
        return None  # an encoder's steps cannot ride on a decoder's
    promise = (
        Promise.of_mean(length=length)
        if mode == "mean"
        else Promise.full(length=length, error=table.error_p95)
    )
    openers: list[Callable[[], Space]] = [
        partial(_space, policy, shape, table, law, promise) for shape in shapes
    ]
    most = uppers(policy, shapes, table, law, bound_s / (1 + promise.error))
    for number, (_, found) in search_together(openers, most.tolist(), bound_s).items():
        if found.best is not None:
            return Best(
                policy=policy,
                shape=shapes[number],
                queries=found.best.point[0] * (shapes[number].micro_batches if is_pool else 1),
                queries_per_s=found.best.throughput,
                latency_s=found.best.promised_s,
            )
    return None


def _space(
    policy: Policy, shape: Shape, table: ProfileTable, law: CompletionLaw, promise: Promise
) -> Space:
    prompts = prompt_moments(law.workload)
    pipeline, kv_tokens, units = Pipeline.of(shape, table), shape.room.kv_tokens, shape.units
    fitting = int(kv_tokens / prompts.tokens) + 1
    match policy:
        case "FT":
            unit = RraModel(pipeline, law, prompts, fitting)
            return PlainSpace(unit, promise, kv_tokens, units)
        case "FT-ET":
            unit = RraModel(pipeline, law, prompts, fitting)
            return EarlySpace(unit, promise, kv_tokens, units)
        case "ORCA":
            orca = OrcaModel(pipeline, law, prompts, fitting)
            return CraSpace(orca, promise, kv_tokens, units, chunks=(orca.longest,))
        case "chunked":
            refilled = CraModel(pipeline, law, prompts, fitting)
            return CraSpace(refilled, promise, kv_tokens, units, chunks=(CHUNK_TOKENS,))


def uppers(
    policy: Policy,
    shapes: Sequence[Shape],
    table: ProfileTable,
    law: CompletionLaw,
    mean_s: float,
) -> Floats:
    """What a policy cannot exceed on each shape with a mean latency of at most `mean_s`, queries/s."""
    prompts, length = prompt_moments(law.workload), law.workload.output.quantile(PERCENTILE)
    if policy in POOLS:
        pools = PoolRelaxation(table, law, prompts, length)
        return pools.orca(shapes, mean_s) if policy == "ORCA" else pools.cra(shapes, mean_s)
    relaxation = Relaxation(table, law, prompts, length)
    if policy == "FT":
        return relaxation.static(shapes, mean_s)
    # with early termination they are RRA with an N_D as long as the longest answer
    return np.asarray(relaxation.rra(shapes, mean_s)[:, -1])
