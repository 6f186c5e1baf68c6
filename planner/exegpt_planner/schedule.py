"""Schedules, what is predicted of them, and the plan that holds both (docs/formats.md).

RRA and CRA are what the planner chooses from; Static and ORCA are the comparison policies of the paper
(FasterTransformer, ORCA), which the same conductor and engine can run.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from exegpt_planner.strict import StrictModel


class RraSchedule(StrictModel):
    """Encode a batch, then decode the pool for some iterations, in turn on the same devices."""

    strategy: Literal["RRA"] = "RRA"
    encode_batch: int = Field(ge=1)  # B_E, queries
    encode_interval: int = Field(ge=1)  # N_D, decode iterations between encodes


class CraSchedule(StrictModel):
    """Hold the pool full by refilling every iteration; encode in chunks that ride on decode iterations."""

    strategy: Literal["CRA"] = "CRA"
    pool: int = Field(ge=1)  # B_D, queries, those being encoded included
    chunk_tokens: int = Field(ge=1)  # C, encode tokens a step at most


class StaticSchedule(StrictModel):
    """FasterTransformer's batches: encode a batch, decode until all of it is done."""

    strategy: Literal["STATIC"] = "STATIC"
    batch: int = Field(ge=1)
    early_termination: bool  # False: ended queries go on being computed until the batch ends


class OrcaSchedule(StrictModel):
    """ORCA's iteration-level batching: at most one whole prompt joins a decode iteration."""

    strategy: Literal["ORCA"] = "ORCA"
    pool: int = Field(ge=1)


Schedule = Annotated[RraSchedule | CraSchedule, Field(discriminator="strategy")]
AnySchedule = Annotated[
    RraSchedule | CraSchedule | StaticSchedule | OrcaSchedule, Field(discriminator="strategy")
]


class Prediction(StrictModel):
    """What the simulator expects of a schedule under a saturated backlog. s99 is the 99th percentile output length."""

    queries_per_s: float
    tokens_per_s: float  # output tokens
    cycle_s: float  # RRA: one encode and its decode phase; CRA: one iteration
    encode_share: float = Field(ge=0, le=1)  # of the cycle, spent on encoding
    first_token_s: float  # mean, from the start of the encode to the first token
    latency_mean_s: float  # of an answer of length s99, from the start of its encode
    latency_sd_s: float  # the pool's fluctuation
    latency_p99_s: float  # 99th percentile of such answers, fluctuation counted in
    promised_s: float  # latency_p99_s with the table's error margin: what is held against the bound
    pool_mean: float  # queries in decode, mean over decode iterations
    pool_sd: float
    kv_tokens: float  # KV tokens at the pool's fullest, mean
    kv_tokens_reserved: float  # mean plus margin: what must fit
