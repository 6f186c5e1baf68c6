"""The pairs of sides on which WAA may run on some devices: which there are, their numbers, where they lie.

x encoders of one layout and y decoders of one layout and M micro-batches take all devices between them. Nothing is
bounded here: waa_sites.py does that for the search, certificate_waa.py for what checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.layout import Side, Typical, lie_in_nodes, one_sided
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments, prompt_moments
from exegpt_planner.shapes import Shape, micro_batches, room_of
from exegpt_planner.simulator.instances import joined, side_on
from exegpt_planner.simulator.pipeline import Costs, Pipeline
from exegpt_planner.simulator.waa import Most, WaaModel

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Half:
    """One side on all it may take of the devices."""

    sides: list[Shape]
    first: Bools  # whether it may lie before the other side
    last: Bools  # and behind it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The pairs whose encoders take so many devices."""

    encoders: Half
    decoders: Half
    pairs: tuple[Ints, Ints]  # indices of both sides
    number: int  # of the first pair


class WaaPairs:
    """All pairs on some devices, numbered by the devices that encode, then by encoders, then by decoders."""

    def __init__(
        self,
        table: ProfileTable,
        law: CompletionLaw,
        devices: int,
        sides: dict[Side, list[Shape]],
    ) -> None:
        """`sides` are single instances, which are repeated here."""
        self.table, self.law, self.devices = table, law, devices
        self.prompts: PromptMoments = prompt_moments(law.workload)
        self._costs = Costs(table)
        self._pipelines: dict[tuple[Shape, int], Pipeline] = {}
        self.groups: list[Group] = []
        self._size = 0
        halves = {side: self._halves(found) for side, found in sides.items()}
        for taken in range(1, devices):
            encoders, decoders = halves["encode"].get(taken), halves["decode"].get(devices - taken)
            if encoders is not None and decoders is not None:
                self._add(encoders, decoders)

    @classmethod
    def all(
        cls,
        table: ProfileTable,
        law: CompletionLaw,
        devices: int,
        fits: tuple[ModelSpec, MemoryBudget],
    ) -> Self:
        """Every pair whose weights fit."""
        model, budget = fits
        typical = Typical.of(law, table)
        sides: dict[Side, list[Shape]] = {"encode": [], "decode": []}
        each_bytes = budget.device_bytes - budget.reserve_bytes
        least = {side: _weight_bytes(model, table.key.dtype, side) / each_bytes for side in sides}
        others: dict[Side, Side] = {"encode": "decode", "decode": "encode"}
        for side, found in sides.items():
            first, last = int(least[side]), devices - int(least[others[side]])
            for size in range(max(1, first), min(devices - 1, last) + 1):
                for layout in one_sided(table, typical, size, side):
                    room = room_of(layout, model, table.key.dtype, budget)
                    if room is None:
                        continue
                    numbers = micro_batches(len(layout.stages)) if side == "decode" else [1]
                    found += [
                        Shape(units=1, layout=layout, micro_batches=number, room=room)
                        for number in numbers
                    ]
        return cls(table, law, devices, sides)

    @classmethod
    def alike(cls, table: ProfileTable, law: CompletionLaw, shapes: Sequence[Shape]) -> Self:
        """Every split of units that are one device each and hold the whole model."""
        single = [shape for shape in shapes if shape.layout.devices == 1]
        devices = single[0].units if single else 0
        sides: dict[Side, list[Shape]] = {
            "encode": [replace(shape, units=1) for shape in single],
            "decode": [replace(shape, units=1) for shape in single],
        }
        return cls(table, law, devices, sides)

    def __len__(self) -> int:
        return self._size

    def sides(self, at: int) -> tuple[Shape, Shape]:
        """(encoders, decoders) of a pair."""
        if not 0 <= at < self._size:
            raise IndexError(at)
        group = next(each for each in reversed(self.groups) if each.number <= at)
        e, d = (indices[at - group.number] for indices in group.pairs)
        return group.encoders.sides[e], group.decoders.sides[d]

    def number_of(self, encoders: Shape, decoders: Shape) -> int | None:
        """The number of the pair of such sides, whatever their room; None if there is none."""
        for group in self.groups:
            e, d = group.pairs
            both = [
                np.array([_is_like(each, side) for each in half.sides])
                for half, side in ((group.encoders, encoders), (group.decoders, decoders))
            ]
            found = np.flatnonzero(both[0][e] & both[1][d])
            if found.size:
                return group.number + int(found[0])
        return None

    def spans(self) -> list[tuple[int, int]]:
        """(first, last + 1) of the pairs whose encoders take as many devices."""
        firsts = [group.number for group in self.groups]
        return list(zip(firsts, [*firsts[1:], self._size][: len(firsts)], strict=True))

    def model(self, encoders: Shape, decoders: Shape) -> WaaModel:
        """The simulator of a pair; pipelines are made once."""
        starts = self.starts(encoders, decoders)
        encoder, decoder = (
            self.pipeline(side, start)
            for side, start in zip((encoders, decoders), starts, strict=True)
        )
        inputs = self.law.workload.input.mean
        most = Most(
            encode_batch=int(encoders.room.kv_tokens / inputs) + 1,
            pool=int(decoders.room.kv_tokens / inputs) + 1,
        )
        instances = joined(self.table, encoder, decoder, (encoders, decoders))
        return WaaModel(instances, self.law, self.prompts, (encoders.units, decoders.units), most)

    def pipeline(self, side: Shape, start: int) -> Pipeline:
        """An instance of a side that begins at a device."""
        key = side, start
        found = self._pipelines.get(key)
        if found is None:
            found = self._pipelines[key] = side_on(self.table, side, start, self._costs)
        return found

    def starts(self, encoders: Shape, decoders: Shape) -> tuple[int, int]:
        behind = encoders.units * encoders.layout.devices
        sides = (encoders, 0), (decoders, behind)
        if all(lie_in_nodes(side.layout, self.table, side.units, at) for side, at in sides):
            return 0, behind
        return self.devices - behind, 0

    def _halves(self, instances: Sequence[Shape]) -> dict[int, Half]:
        """By the devices that a side takes."""
        found: dict[int, list[Shape]] = {}
        for each in instances:
            size = each.layout.devices
            for number in range(1, (self.devices - 1) // size + 1):
                found.setdefault(number * size, []).append(replace(each, units=number))

        def lie(sides: list[Shape], start: int) -> Bools:
            kept: dict[
                int, bool
            ] = {}  # by layout; of those that are one object, micro-batches differ
            for side in sides:
                key = id(side.layout)
                if key not in kept:
                    kept[key] = lie_in_nodes(side.layout, self.table, side.units, start)
            return np.array([kept[id(side.layout)] for side in sides])

        return {
            taken: Half(sides=sides, first=lie(sides, 0), last=lie(sides, self.devices - taken))
            for taken, sides in found.items()
        }

    def _add(self, encoders: Half, decoders: Half) -> None:
        lies = encoders.first[:, None] & decoders.last | encoders.last[:, None] & decoders.first
        e, d = np.nonzero(lies)
        if len(e) == 0:
            return
        group = Group(encoders=encoders, decoders=decoders, pairs=(e, d), number=self._size)
        self.groups.append(group)
        self._size += len(e)


def _is_like(side: Shape, other: Shape) -> bool:
    said = other.units, other.micro_batches, other.layout
    return (side.units, side.micro_batches, side.layout) == said


def _weight_bytes(model: ModelSpec, dtype: str, side: Side) -> int:
    """Of all layers that an instance of a side holds at least."""
    if model.num_encoder_layers and side == "encode":
        return model.num_encoder_layers * model.encoder_layer_weight_bytes(dtype)
    layer = model.layer_weight_bytes(dtype) - model.cross_kv_weight_bytes(dtype)
    return model.num_layers * layer
