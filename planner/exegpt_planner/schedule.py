"""Schedules, what is predicted of them, and the plan that holds both (docs/formats.md).

RRA, WAA and CRA are what the planner chooses from; Static and ORCA are the comparison policies of the paper
(FasterTransformer, ORCA), which the same conductor and engine can run.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from exegpt_planner.layout import Layout
from exegpt_planner.strict import StrictModel

Split = tuple[int, int]  # (x, y): workers that encode, workers that decode


class PoolBand(StrictModel):
    """Where the pool is led back to, as an encode finds it."""

    mean: float = Field(ge=0)  # queries in decode, as planned
    band: float = Field(ge=0)  # queries off the mean that change nothing
    gain: float = Field(
        gt=0, le=1
    )  # queries an encode takes fewer for each one beyond the band, or more below


class Adjustment(StrictModel):
    """How an encode strays from B_E queries so that its time, and the pool, stray less (adjustment.py)."""

    encode_tokens: float = Field(gt=0)  # T: the first waiting queries whose sum is nearest
    most_tokens: float = Field(gt=0)  # of T, however small the pool
    most_queries: int = Field(ge=1)
    pool: PoolBand | None = Field(default=None, exclude_if=lambda value: value is None)


class RraSchedule(StrictModel):
    """Encode a batch, then decode the pool for some iterations, in turn on the same devices."""

    strategy: Literal["RRA"] = "RRA"
    encode_batch: int = Field(ge=1)  # B_E, queries
    encode_interval: int = Field(ge=1)  # N_D, decode iterations between encodes
    units: int = Field(default=1, ge=1)  # R, equal parts that each run this
    micro_batches: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)  # M, of a unit
    layout: Layout | None = Field(  # of a unit; None: a device holds the whole model
        default=None, exclude_if=lambda value: value is None
    )
    adjustment: Adjustment | None = Field(default=None, exclude_if=lambda value: value is None)


class CraSchedule(StrictModel):
    """Hold the pool full by refilling every iteration; encode in chunks that ride on decode iterations."""

    strategy: Literal["CRA"] = "CRA"
    pool: int = Field(ge=1)  # B_D, queries, those being encoded included
    chunk_tokens: int = Field(ge=1)  # C, encode tokens a step of a micro-batch at most
    units: int = Field(default=1, ge=1)  # R, equal parts that each run this
    micro_batches: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)  # M, of a unit
    layout: Layout | None = Field(  # of a unit; None: a device holds the whole model
        default=None, exclude_if=lambda value: value is None
    )

    @model_validator(mode="after")
    def _shares_alike(self) -> Self:
        if self.pool % self.micro_batches:
            raise ValueError(
                f"a pool of {self.pool} queries is not shared alike by {self.micro_batches} micro-batches: "
                "make it a multiple of them"
            )
        return self


class WaaSchedule(StrictModel):
    """Encode and decode on workers of their own, asynchronously; the KV cache is handed over."""

    strategy: Literal["WAA"] = "WAA"
    encoders: int = Field(ge=1)  # x, workers that only encode
    decoders: int = Field(ge=1)  # y, workers that only decode
    encode_batch: int = Field(ge=1)  # B_E, queries an encode
    pool: int = Field(
        ge=1
    )  # B_D of a decoder, queries being encoded for it and handed over included
    micro_batches: int = Field(  # M, of a decoder
        default=1, ge=1, exclude_if=lambda value: value == 1
    )
    layout: Layout | None = Field(  # of every instance, where they are alike; None: a device each
        default=None, exclude_if=lambda value: value is None
    )
    encoder_layout: Layout | None = Field(  # where they are not: of every encoder
        default=None, exclude_if=lambda value: value is None
    )
    decoder_layout: Layout | None = Field(  # and of every decoder
        default=None, exclude_if=lambda value: value is None
    )
    adjustment: Adjustment | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.encoder_layout is None) != (self.decoder_layout is None):
            raise ValueError("encoder_layout and decoder_layout go together")
        if self.layout is not None and self.encoder_layout is not None:
            raise ValueError("layout is of all instances: leave it out beside encoder_layout")
        return self

    @property
    def units(self) -> int:
        """Encoders and decoders: instances."""
        return self.encoders + self.decoders

    @property
    def layouts(self) -> tuple[Layout | None, Layout | None]:
        """(of an encoder, of a decoder); None: a device holds the whole model."""
        if self.encoder_layout is not None:
            return self.encoder_layout, self.decoder_layout
        return self.layout, self.layout


class StaticSchedule(StrictModel):
    """FasterTransformer's batches: encode a batch, decode until all of it is done."""

    strategy: Literal["STATIC"] = "STATIC"
    batch: int = Field(ge=1)
    early_termination: bool  # False: ended queries go on being computed until the batch ends


class OrcaSchedule(StrictModel):
    """ORCA's iteration-level batching: at most one whole prompt joins a decode iteration."""

    strategy: Literal["ORCA"] = "ORCA"
    pool: int = Field(ge=1)


Schedule = Annotated[RraSchedule | WaaSchedule | CraSchedule, Field(discriminator="strategy")]
AnySchedule = Annotated[
    RraSchedule | WaaSchedule | CraSchedule | StaticSchedule | OrcaSchedule,
    Field(discriminator="strategy"),
]


def beyond_workers(schedule: Schedule) -> str | None:
    """What of a schedule workers do not run yet: each holds the whole model on a device of its own; None if nothing."""
    layouts = schedule.layouts if isinstance(schedule, WaaSchedule) else (schedule.layout,)
    if any(layout is not None for layout in layouts):
        return "a model shared by several devices"
    return "micro-batches" if schedule.micro_batches > 1 else None


class Prediction(StrictModel):
    """What the simulator expects of a schedule under a saturated backlog. s99 is the 99th percentile output length."""

    queries_per_s: float  # of all units or decoders together; what follows is of one of them
    tokens_per_s: float  # output tokens, likewise
    cycle_s: (
        float  # RRA: one encode and its decode phase; CRA: one iteration; WAA: one decode iteration
    )
    encode_share: float = Field(
        ge=0, le=1
    )  # of the cycle, spent on encoding; WAA: of the encoders' time
    first_token_s: float  # mean, from the start of the encode to the first token
    latency_mean_s: float  # of an answer of length s99, from the start of its encode
    latency_sd_s: float  # the pool's fluctuation
    latency_p99_s: float  # 99th percentile of such answers, fluctuation counted in
    promised_s: float  # latency_p99_s with the table's error margin: what is held against the bound
    pool_mean: float  # queries in decode, mean over decode iterations
    pool_sd: float
    kv_tokens: float  # KV tokens at the pool's fullest, mean
    kv_tokens_reserved: float  # mean plus margin: what must fit on one worker


class Reached(StrictModel):
    """The least that a schedule promises, and what that is made of."""

    schedule: Schedule
    prediction: Prediction
    length_tokens: int  # of the answer promised
    mean_s: float
    fluctuation_s: float  # that the pool's fluctuation adds
    margin_s: float  # that the profile's error margin adds
    fits_tokens: int  # the longest answer that the smallest schedule promises within the bound
