"""How a model lies on the devices of one unit: a pipeline of stages, single devices or tensor-parallel groups.

Partial tensor parallelism (paper, section 4.2) is one degree on some of a pipeline's devices: k groups of `degree`
first, where they align with nodes, then a stage for every other device. Layers are allotted so that the slowest stage
is as fast as can be; as a group's advantage depends on the step, the allotment that is best for encodes and the one
that is best for decodes are layouts of their own.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

from pydantic import Field

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.profile_table import GroupCurves, LayerCurves, ProfileTable, StepShape
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.strict import StrictModel

ENCODE_TOKENS, DECODE_QUERIES = 4096, 64  # of the steps at which stages are balanced

# What passing a step through a stage is made of, and on how many devices: ("layer", 8) is one layer on a group of 8.
Item = tuple[str, int]
Bill = Counter[Item]

Side = Literal["encode", "decode"]


class StageLayout(StrictModel):
    """One stage of a pipeline."""

    degree: int = Field(ge=1)  # devices, one tensor-parallel group
    layers: int = Field(ge=0)  # decoder layers
    encoder_layers: int = Field(default=0, ge=0)


class Layout(StrictModel):
    """A pipeline."""

    stages: tuple[StageLayout, ...] = Field(min_length=1)

    @property
    def devices(self) -> int:
        """All of them."""
        return sum(stage.degree for stage in self.stages)

    @property
    def degree(self) -> int:
        """The largest degree of tensor parallelism."""
        return max(stage.degree for stage in self.stages)

    @property
    def has_head(self) -> bool:
        """Whether tokens are sampled behind the last stage: not by one that holds encoder layers alone."""
        return any(stage.layers for stage in self.stages)

    @property
    def mean_degree(self) -> float:
        """Devices that hold a layer's KV, harmonic mean over the layers of what makes it."""
        layers = [
            stage.encoder_layers if not self.has_head else stage.layers for stage in self.stages
        ]
        shares = (number / stage.degree for number, stage in zip(layers, self.stages, strict=True))
        return sum(layers) / sum(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """A step of each kind, at which stages are balanced."""

    encode: StepShape
    decode: StepShape

    @classmethod
    def of(cls, law: CompletionLaw, table: ProfileTable) -> Self:
        """Of a workload: some 4,096 tokens of its prompts, 64 of its queries half way; less where the table ends."""
        prompts = prompt_moments(law.workload)
        number = ENCODE_TOKENS / prompts.tokens
        context = law.context_mean / law.decode_mean if law.decode_mean else prompts.tokens
        encode = (number * prompts.tokens, 0.0, 0.0, number, number * prompts.pairs, number)
        decode = (
            DECODE_QUERIES,
            DECODE_QUERIES,
            DECODE_QUERIES * context,
            0.0,
            0.0,
            DECODE_QUERIES,
        )
        return cls(encode=_covered(table, encode), decode=_covered(table, decode))


def _covered(table: ProfileTable, sums: Sequence[float]) -> StepShape:
    """A step of these sums (in `StepShape`'s order), or the largest part of it that the table covers."""
    layers = (table.layer if table.encoder is None else table.encoder.layer, table.layer)
    ends = (
        min(table.outside.tokens.x[-1], *(layer.tokens.x[-1] for layer in layers)),
        table.layer.decode_queries.x[-1],
        table.layer.decode_context.x[-1],
        layers[0].encode_chunks.x[-1],
        layers[0].encode_pairs.x[-1],
        table.outside.sampled.x[-1],
    )
    part = min(1.0, *(end / each for end, each in zip(ends, sums, strict=True) if each > 0))
    names = (each.name for each in fields(StepShape))
    return StepShape(**dict(zip(names, (part * each for each in sums), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bills:
    """What a step passes through in a pipeline."""

    stages: tuple[Bill, ...]

    @property
    def whole(self) -> Bill:
        """Of all stages one after the other."""
        return sum(self.stages, Counter())


def layouts(table: ProfileTable, typical: Typical, devices: int, units: int = 1) -> list[Layout]:
    """Every layout of one of `units` equal units of `devices` that has a layer for each stage, and times for it."""
    if devices > 1 and table.parallel is None:
        return []
    found: dict[Layout, None] = {}
    for degree in _degrees(table, devices, units):
        groups = range(1, devices // degree + 1) if degree > 1 else (0,)
        for number in groups:
            degrees = [degree] * number + [1] * (devices - degree * number)
            for by in ("encode", "decode"):
                layout = _layout(table, typical, degrees, by)
                if layout is not None:
                    found[layout] = None
    return list(found)


def one_sided(table: ProfileTable, typical: Typical, devices: int, side: Side) -> list[Layout]:
    """Every layout on so many devices of an instance that only encodes or only decodes.

    Where the encoder has layers of its own, an instance holds those of its side alone.
    """
    if devices > 1 and table.parallel is None:
        return []
    found: dict[Layout, None] = {}
    for degree in _degrees(table, devices, 1):
        for number in range(1, devices // degree + 1) if degree > 1 else (0,):
            degrees = [degree] * number + [1] * (devices - degree * number)
            layout = _one_sided(table, typical, degrees, side)
            if layout is not None:
                found[layout] = None
    return list(found)


def lie_in_nodes(layout: Layout, table: ProfileTable, units: int, start: int) -> bool:
    """Whether no tensor-parallel group of `units` such, from device `start` on, spans nodes."""
    if table.parallel is None:
        return layout.degree == 1
    node, begin = table.parallel.node_devices, start
    for stage in layout.stages * units:
        if begin % node + stage.degree > node:
            return False
        begin += stage.degree
    return True


def bills(layout: Layout, table: ProfileTable, units: int = 1, start: int = 0) -> Bills:
    """What a step passes through on each stage of a layout of which there are `units`, from device `start` on."""
    stages = []
    last = len(layout.stages) - 1
    offset = 0
    for index, stage in enumerate(layout.stages):
        offset += stage.degree
        bill: Bill = Counter({("pass", 1): 1})
        bill["layer", stage.degree] = stage.layers
        if table.encoder is not None:
            bill["encoder_layer", stage.degree] = stage.encoder_layers
        if index == 0:
            bill["embedding", stage.degree] = 1
        if index == last and layout.has_head:
            bill["head", stage.degree] = 1
        if index < last:
            crosses = _crosses(table, layout.devices, units, start + offset)
            bill["send_between" if crosses else "send_inside", 1] = 1
        stages.append(bill)
    return Bills(stages=tuple(stages))


def slowest_kinds(found: Bills) -> list[Bill]:
    """The stages that may be the slowest: those that no other exceeds in everything."""
    distinct: list[Bill] = []
    for bill in found.stages:
        if any(_within(bill, other) for other in distinct):
            continue
        distinct = [other for other in distinct if not _within(other, bill)]
        distinct.append(bill)
    return distinct


def _within(bill: Bill, other: Bill) -> bool:
    """Whether `other` costs as much at least, whatever the step."""
    between = max(bill["send_inside", 1] - other["send_inside", 1], 0) + bill["send_between", 1]
    rest = (item for item in bill if not item[0].startswith("send"))
    return between <= other["send_between", 1] and all(bill[item] <= other[item] for item in rest)


def _degrees(table: ProfileTable, devices: int, units: int) -> list[int]:
    """1 and those of which a unit holds a group that lies in one node, wherever the unit begins."""
    degrees = [1]
    if table.parallel is not None:
        node = table.parallel.node_devices
        degrees += [
            each.degree
            for each in table.parallel.degrees
            if each.degree <= devices
            and (units == 1 or node % devices == 0 or devices % each.degree == 0)
        ]
    return degrees


def _crosses(table: ProfileTable, devices: int, units: int, offset: int) -> bool:
    """Whether a stage that ends at device `offset` of its unit sends to another node, in any unit."""
    if table.parallel is None:
        return False
    node = table.parallel.node_devices
    return any((unit * devices + offset) % node == 0 for unit in range(units))


def _layout(
    table: ProfileTable, typical: Typical, degrees: Sequence[int], by: str
) -> Layout | None:
    num_encoders = 0 if table.encoder is None else table.encoder.num_layers
    if len(degrees) > table.num_layers or (num_encoders and len(degrees) > num_encoders):
        return None
    shape = typical.encode if by == "encode" else typical.decode
    ends = [0.0] * len(degrees)
    ends[0] += table.on(degrees[0]).outside.tokens(shape.tokens)
    ends[-1] += table.on(degrees[-1]).outside.sampled(shape.sampled)
    encoders = [0] * len(degrees)
    if num_encoders:  # each part is balanced for its own phase
        shape = typical.decode
        each_s = _layers_s(table, degrees, typical.encode, encodes=True)
        encoders = _allot(num_encoders, each_s, [0.0] * len(degrees))
    layers = _allot(table.num_layers, _layers_s(table, degrees, shape), ends)
    return Layout(
        stages=tuple(
            StageLayout(degree=degree, layers=number, encoder_layers=encoder)
            for degree, number, encoder in zip(degrees, layers, encoders, strict=True)
        )
    )


def _one_sided(
    table: ProfileTable, typical: Typical, degrees: Sequence[int], side: Side
) -> Layout | None:
    if table.encoder is None:
        return _layout(table, typical, degrees, side)
    encodes = side == "encode"
    num_layers = table.encoder.num_layers if encodes else table.num_layers
    if len(degrees) > num_layers:
        return None
    shape = typical.encode if encodes else typical.decode
    each_s = _layers_s(table, degrees, shape, encodes=encodes)
    ends = [0.0] * len(degrees)
    ends[0] += table.on(degrees[0]).outside.tokens(shape.tokens)
    if not encodes:
        ends[-1] += table.on(degrees[-1]).outside.sampled(shape.sampled)
    stages = zip(degrees, _allot(num_layers, each_s, ends), strict=True)
    return Layout(
        stages=tuple(
            StageLayout(
                degree=degree,
                layers=0 if encodes else number,
                encoder_layers=number if encodes else 0,
            )
            for degree, number in stages
        )
    )


def _allot(num_layers: int, each_s: Sequence[float], ends_s: Sequence[float]) -> list[int]:
    """Layers of each stage, at least one, such that the slowest is as fast as can be."""
    layers = [1] * len(each_s)
    loads = [(end + 2 * each, i) for i, (each, end) in enumerate(zip(each_s, ends_s, strict=True))]
    heapq.heapify(loads)
    for _ in range(num_layers - len(layers)):
        load, i = heapq.heappop(loads)
        layers[i] += 1
        heapq.heappush(loads, (load + each_s[i], i))
    return layers


def _layers_s(
    table: ProfileTable, degrees: Sequence[int], shape: StepShape, *, encodes: bool = False
) -> list[float]:
    """Seconds of one layer on each of these groups."""
    groups = {degree: table.on(degree) for degree in set(degrees)}
    each_s = {
        degree: _layer_s(on.encode_layer if encodes else on.layer, on, shape)
        for degree, on in groups.items()
    }
    return [each_s[degree] for degree in degrees]


def _layer_s(layer: LayerCurves, on: GroupCurves, shape: StepShape) -> float:
    """Seconds of one layer in a step of this shape, its all-reduces included."""
    return layer.sum_s(shape) + sum(sync(shape.tokens) for sync in on.sync)
