"""Measured step times of one model on one device, and the work of a step they are a function of.

Every step, whatever its mix, is described by six sums (`StepShape`); its time is a sum of piecewise linear curves, one
a sum. So mixed lengths cost the sum of tokens and of contexts, never batch x maximum, and the simulator needs no other
knowledge of the engine:

    step_s = num_layers * (layer.tokens + layer.decode_queries + layer.decode_context
                           + layer.encode_chunks + layer.encode_pairs)
             + outside.tokens + outside.sampled + step_overhead_s

A curve need not be monotone (tables have tile steps). Beyond its last knot it is not defined: the planner stays inside
`ProfileTable.covers`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from exegpt_planner.strict import StrictModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The work in one step, as sums over its decode queries and encode chunks."""

    tokens: float  # packed through the layers: decode queries + encode tokens
    decode_queries: float  # n
    decode_context: float  # KV tokens the decode queries attend to, the new token included
    encode_chunks: float
    encode_pairs: float  # sum over chunks of t * (start + (t + 1) / 2): query-key pairs attended
    sampled: float  # rows through the head and the sampler


ONE_QUERY = StepShape(
    tokens=1, decode_queries=1, decode_context=1, encode_chunks=0, encode_pairs=0, sampled=1
)
ONE_TOKEN = StepShape(
    tokens=1, decode_queries=0, decode_context=0, encode_chunks=1, encode_pairs=1, sampled=1
)


class Curve(StrictModel):
    """Seconds as a piecewise linear function through (x, seconds); x starts at 0 and increases."""

    x: tuple[float, ...] = Field(min_length=2)
    seconds: tuple[float, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.x) != len(self.seconds):
            raise ValueError(f"{len(self.x)} knots but {len(self.seconds)} values")
        if self.x[0] != 0 or any(a >= b for a, b in zip(self.x, self.x[1:], strict=False)):
            raise ValueError("knots must start at 0 and increase strictly")
        if any(value < 0 for value in self.seconds):
            raise ValueError("seconds must not be negative")
        return self

    def __call__(self, x: float) -> float:
        """Seconds at `x`, which must lie within the knots."""
        return float(np.interp(x, self.x, self.seconds))


class LayerCurves(StrictModel):
    """Seconds of one layer, by the sums of `StepShape`."""

    tokens: Curve
    decode_queries: Curve
    decode_context: Curve
    encode_chunks: Curve
    encode_pairs: Curve

    def sum_s(self, shape: StepShape) -> float:
        """Seconds of one layer in a step of this shape."""
        return (
            self.tokens(shape.tokens)
            + self.decode_queries(shape.decode_queries)
            + self.decode_context(shape.decode_context)
            + self.encode_chunks(shape.encode_chunks)
            + self.encode_pairs(shape.encode_pairs)
        )


class OutsideCurves(StrictModel):
    """Seconds of what lies outside the layers: embedding by tokens, head and sampling by sampled rows."""

    tokens: Curve
    sampled: Curve

    def sum_s(self, shape: StepShape) -> float:
        """Seconds outside the layers in a step of this shape."""
        return self.tokens(shape.tokens) + self.sampled(shape.sampled)


class HandOverCurves(StrictModel):
    """Seconds of handing the KV of one encode's queries to another worker, by its KV tokens."""

    sent: (
        Curve  # of the encoder's step, more than without: KV copied out and sent beside the layers
    )
    joined: Curve  # of the decoder's steps, more than without: KV landed beside them and copied in
    exposed: Curve  # from the end of the encode to the arrival of the last byte

    def between(self, sender: float, receiver: float) -> Self:
        """The same between groups of so many devices, each of which sends, or joins, its share of the KV.

        On the way there are as many hops side by side as the smaller group has devices.
        """

        def of_shares(curve: Curve, devices: float) -> Curve:
            return Curve(x=tuple(devices * x for x in curve.x), seconds=curve.seconds)

        return type(self)(
            sent=of_shares(self.sent, sender),
            joined=of_shares(self.joined, receiver),
            exposed=of_shares(self.exposed, min(sender, receiver)),
        )


class DegreeCurves(StrictModel):
    """Seconds on a tensor-parallel group of `degree` devices, its all-reduces apart."""

    degree: int = Field(ge=2)
    layer: LayerCurves
    outside: OutsideCurves
    sync: Curve  # one layer's all-reduces, by the step's packed tokens
    encoder_layer: LayerCurves | None = Field(default=None, exclude_if=lambda value: value is None)


class ParallelCurves(StrictModel):
    """What several devices that share a model cost; a group never spans nodes, a pipeline may."""

    node_devices: int = Field(ge=1)
    degrees: tuple[DegreeCurves, ...]  # by degree, rising; degree 1 is the table's own
    send_inside: Curve  # a step's activations to the next stage in a node, by packed tokens
    send_between: Curve  # and to one in another node

    @model_validator(mode="after")
    def _check(self) -> Self:
        degrees = [each.degree for each in self.degrees]
        if any(a >= b for a, b in itertools.pairwise(degrees)):
            raise ValueError(f"degrees {degrees} must rise")
        if beyond := [degree for degree in degrees if degree > self.node_devices]:
            raise ValueError(f"degrees {beyond} exceed a node's {self.node_devices} devices")
        return self


class EncoderCurves(StrictModel):
    """The encoder's layers of an encoder-decoder model, which alone an encode passes through.

    Projecting its output to the decoder layers' cross-attention KV is counted in `layer.tokens`.
    """

    num_layers: int = Field(ge=1)
    layer: LayerCurves  # `decode_queries` and `decode_context` are zero


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurves:
    """A table's curves on a group of devices; of one device without a sync."""

    layer: LayerCurves
    outside: OutsideCurves
    sync: tuple[Curve, ...]  # none or one
    encoder_layer: LayerCurves | None

    @property
    def encode_layer(self) -> LayerCurves:
        """What an encode passes through: the encoder's layers where there are some."""
        return self.layer if self.encoder_layer is None else self.encoder_layer


class ProfileKey(StrictModel):
    """What a profile is valid for; equal keys may share a table."""

    model_fingerprint: (
        str  # ModelSpec.fingerprint: the architecture's shape, not the weights' values
    )
    device: str  # e.g. "cpu: Intel(R) Xeon(R) Processor" or "cuda: NVIDIA H200"
    dtype: str
    threads: int = Field(ge=1)
    versions: dict[str, str]  # torch, exegpt's engine
    workers: int = Field(default=1, ge=1)  # that computed side by side, as they will in serving


class ProfileTable(StrictModel):
    """Step times of one model on one device (docs/formats.md)."""

    version: Literal["exegpt.profile/v1"] = "exegpt.profile/v1"
    source: Literal["measured", "analytic"]
    key: ProfileKey
    num_layers: int = Field(ge=1)
    layer: LayerCurves
    outside: OutsideCurves
    step_overhead_s: float = Field(ge=0)  # bookkeeping of one step in the worker
    dispatch_s: float = Field(ge=0)  # the worker waits this long for the conductor's next message
    error_p95: float = Field(ge=0)  # of the curves' |relative error| on held-out shapes
    kernel_s: float = Field(gt=0)  # the calibration kernel's time while profiling
    num_samples: int = Field(ge=0)
    spread: float = Field(ge=0)  # median relative spread of repeated measurements
    hand_over: HandOverCurves | None = (
        None  # between two workers; None: one worker, or never measured
    )
    parallel: ParallelCurves | None = Field(default=None, exclude_if=lambda value: value is None)
    encoder: EncoderCurves | None = Field(  # then `layer` is of the decoder's layers
        default=None, exclude_if=lambda value: value is None
    )

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        degrees = [1] + [each.degree for each in (self.parallel.degrees if self.parallel else ())]
        for degree in degrees:
            on = self.on(degree)
            for what, layer, shape in (
                ("decodes one query", on.layer, ONE_QUERY),
                ("encodes one token", on.encode_layer, ONE_TOKEN),
            ):
                if layer.sum_s(shape) + self.step_overhead_s <= 0:
                    where = "" if degree == 1 else f" on {degree} devices"
                    raise ValueError(
                        f"a step that {what}{where} takes no time; times must be above 0. Profile again"
                    )
        return self

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step of this shape, in the worker."""
        return (
            self.num_layers * self.layer.sum_s(shape)
            + self.outside.sum_s(shape)
            + self.step_overhead_s
        )

    def on(self, degree: int) -> GroupCurves:
        """The curves on a tensor-parallel group of `degree` devices, one of those that the table holds."""
        if degree == 1:
            encoder = None if self.encoder is None else self.encoder.layer
            return GroupCurves(
                layer=self.layer, outside=self.outside, sync=(), encoder_layer=encoder
            )
        assert self.parallel is not None, "degrees beyond 1 come from the table"
        each = next(each for each in self.parallel.degrees if each.degree == degree)
        return GroupCurves(
            layer=each.layer,
            outside=each.outside,
            sync=(each.sync,),
            encoder_layer=each.encoder_layer,
        )

    def covers(self, shape: StepShape) -> bool:
        """Whether every sum of `shape` lies within the measured knots."""
        layer, outside = self.layer, self.outside
        return (
            shape.tokens <= min(layer.tokens.x[-1], outside.tokens.x[-1])
            and shape.decode_queries <= layer.decode_queries.x[-1]
            and shape.decode_context <= layer.decode_context.x[-1]
            and shape.encode_chunks <= layer.encode_chunks.x[-1]
            and shape.encode_pairs <= layer.encode_pairs.x[-1]
            and shape.sampled <= outside.sampled.x[-1]
        )
