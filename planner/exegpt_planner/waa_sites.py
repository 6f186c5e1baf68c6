"""Where WAA may be planned on some devices: pairs of sides, and what no schedule of a pair can beat.

x encoders of one layout and y decoders of one layout and M micro-batches take all devices between them. Each side is
reckoned alone: encoders by blocks of B_E, how many queries they feed and how soon a first token is there; decoders by
lines below a round, what they can do within what is left of the bound, and in their memory. A pair is no better than
the lesser of both, at the best B_E. Nothing but these bounds is computed of a pair that is not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InfeasibleBound
from exegpt_planner.layout import Side, Typical, lie_in_nodes, one_sided
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.placing import sides_of
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments, prompt_moments
from exegpt_planner.schedule import Split, WaaSchedule
from exegpt_planner.shapes import Shape, micro_batches, room_of
from exegpt_planner.simulator.instances import joined, side_on
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.waa import Most, WaaModel
from exegpt_planner.waa_lines import DecodeLines, EncodeLines, SideLines
from exegpt_planner.waa_space import Rooms, WaaSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_Lines = tuple[list[EncodeLines], list[DecodeLines]]  # of a group's sides

GROWTH = 1.3  # of B_E from block to block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Half:
    """One side on all it may take of the devices."""

    sides: list[Shape]
    first: Bools  # whether it may lie before the other side
    last: Bools  # and behind it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Group:
    """The pairs whose encoders take so many devices."""

    encoders: _Half
    decoders: _Half
    pairs: tuple[Ints, Ints]  # indices of both sides
    number: int  # of the first pair


class WaaSite:
    """One pair; its simulator is made when it is searched."""

    strategy = "WAA"

    def __init__(self, sites: WaaSites, number: int, encoders: Shape, decoders: Shape) -> None:
        self._sites, self.number = sites, number
        self.encoders, self.shape = encoders, decoders

    @property
    def table(self) -> ProfileTable:
        return self._sites.table

    @property
    def law(self) -> CompletionLaw:
        return self._sites.law

    @property
    def split(self) -> Split:
        return self.encoders.units, self.shape.units

    @cached_property
    def model(self) -> WaaModel:
        """Its simulator, which remembers what it has been asked."""
        return self._sites.model(self.encoders, self.shape)

    def space(self, promise: Promise) -> WaaSpace:
        """Its space; raises `IncompleteProfile` if the table covers no point of it."""
        rooms = Rooms(
            encoder=self.encoders.room.kv_tokens,
            decoder=self.shape.room.kv_tokens,
        )
        space = WaaSpace(self.model, promise, rooms)
        if space.whole.num_points < 1:
            raise IncompleteProfile(_uncovered(self.model))
        return space


def site_of(
    schedule: WaaSchedule,
    table: ProfileTable,
    law: CompletionLaw,
    fits: tuple[ModelSpec, MemoryBudget],
) -> WaaSite:
    """Where a schedule runs; raises `InfeasibleBound` if its weights leave no room."""
    model, budget = fits
    sides = []
    for side in sides_of(schedule, table):
        room = room_of(side.layout, model, table.key.dtype, budget)
        if room is None:
            raise InfeasibleBound("the schedule's weights leave no room for KV on these devices")
        sides.append(replace(side, room=room))
    encoders, decoders = sides
    devices = sum(side.units * side.layout.devices for side in sides)
    return WaaSite(
        WaaSites(table, law, devices, {"encode": [], "decode": []}), 0, encoders, decoders
    )


class WaaSites(Sequence[WaaSite]):
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
        self._pipelines: dict[tuple[Shape, int], Pipeline] = {}
        self._made: dict[int, WaaSite] = {}
        self._lines_made: dict[int, list[_Lines]] = {}
        self._groups: list[_Group] = []
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
    ) -> WaaSites:
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
    def alike(cls, table: ProfileTable, law: CompletionLaw, shapes: Sequence[Shape]) -> WaaSites:
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

    @overload
    def __getitem__(self, at: int) -> WaaSite: ...
    @overload
    def __getitem__(self, at: slice) -> list[WaaSite]: ...
    def __getitem__(self, at: int | slice) -> WaaSite | list[WaaSite]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._size))]
        if not 0 <= at < self._size:
            raise IndexError(at)
        if at in self._made:
            return self._made[at]
        group = next(each for each in reversed(self._groups) if each.number <= at)
        e, d = (indices[at - group.number] for indices in group.pairs)
        found = WaaSite(self, at, group.encoders.sides[e], group.decoders.sides[d])
        self._made[at] = found
        return found

    def __iter__(self) -> Iterator[WaaSite]:
        return (self[at] for at in range(self._size))

    def uppers(self, promise: Promise) -> Floats:
        """Queries/s that no schedule of each pair within the bound exceeds."""
        found = [
            _pair_bounds(group, lines, promise, promise.answer_s / (1 + promise.error))
            for group, lines in zip(self._groups, self._lines(promise.length), strict=True)
        ]
        return np.concatenate([np.empty(0), *found])

    def nearest(self, promise: Promise, number: int) -> list[WaaSite]:
        """Pairs that may promise the least latency, as far as encodes of one query and rounds of one say."""
        rounds = max(promise.length - 1, 0)
        found = []
        lines = self._lines(promise.length)
        for group, (encoders, decoders) in zip(self._groups, lines, strict=True):
            encode_s = np.array([each.first_s(1.0) for each in encoders])
            round_s = np.array([each.round_s(1.0) for each in decoders])
            e, d = group.pairs
            found.append(encode_s[e] + rounds * round_s[d])
        least_s = np.concatenate([np.empty(0), *found])
        return [self[int(at)] for at in np.argsort(least_s, kind="stable")[:number]]

    def spans(self) -> list[tuple[int, int]]:
        """(first, last + 1) of the pairs whose encoders take as many devices."""
        firsts = [group.number for group in self._groups]
        return list(zip(firsts, [*firsts, self._size][1:], strict=True))

    def model(self, encoders: Shape, decoders: Shape) -> WaaModel:
        """The simulator of a pair; pipelines are made once."""
        starts = self.starts(encoders, decoders)
        encoder, decoder = (
            self._pipeline(side, start)
            for side, start in zip((encoders, decoders), starts, strict=True)
        )
        inputs = self.law.workload.input.mean
        most = Most(
            encode_batch=int(encoders.room.kv_tokens / inputs) + 1,
            pool=int(decoders.room.kv_tokens / inputs) + 1,
        )
        instances = joined(self.table, encoder, decoder, (encoders, decoders))
        return WaaModel(instances, self.law, self.prompts, (encoders.units, decoders.units), most)

    def _pipeline(self, side: Shape, start: int) -> Pipeline:
        key = side, start
        found = self._pipelines.get(key)
        if found is None:
            found = self._pipelines[key] = side_on(self.table, side, start)
        return found

    def starts(self, encoders: Shape, decoders: Shape) -> tuple[int, int]:
        behind = encoders.units * encoders.layout.devices
        sides = (encoders, 0), (decoders, behind)
        if all(lie_in_nodes(side.layout, self.table, side.units, at) for side, at in sides):
            return 0, behind
        return self.devices - behind, 0

    def _halves(self, instances: Sequence[Shape]) -> dict[int, _Half]:
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
            taken: _Half(sides=sides, first=lie(sides, 0), last=lie(sides, self.devices - taken))
            for taken, sides in found.items()
        }

    def _add(self, encoders: _Half, decoders: _Half) -> None:
        lies = encoders.first[:, None] & decoders.last | encoders.last[:, None] & decoders.first
        e, d = np.nonzero(lies)
        if len(e) == 0:
            return
        group = _Group(encoders=encoders, decoders=decoders, pairs=(e, d), number=self._size)
        self._groups.append(group)
        self._size += len(e)

    def _lines(self, length: int) -> list[_Lines]:
        """Of every group's sides; computed once for answers of a length."""
        found = self._lines_made.get(length)
        if found is None:
            lines = SideLines(self.table, self.law, self.prompts, length)
            found = self._lines_made[length] = [
                (
                    [lines.encode(each) for each in group.encoders.sides],
                    [lines.decode(each) for each in group.decoders.sides],
                )
                for group in self._groups
            ]
        return found


def _pair_bounds(group: _Group, lines: _Lines, promise: Promise, mean_s: float) -> Floats:
    """`mean_s` bounds the mean latency."""
    encoders, decoders = lines
    most = np.array([each.most_batch for each in encoders])[:, None]
    starts, ends = _blocks(float(most.max()))
    fed = np.array([each.fed_per_s(ends) for each in encoders])  # (encoders, blocks)
    fed = np.where(starts <= most, fed, 0.0)
    left_s = mean_s - np.array([each.first_s(starts) for each in encoders])
    able = _able(decoders, left_s, promise.length - 1)
    best = np.minimum(fed[:, None, :], able).max(axis=2)
    e, d = group.pairs
    return np.asarray(best[e, d])


def _weight_bytes(model: ModelSpec, dtype: str, side: Side) -> int:
    """Of all layers that an instance of a side holds at least."""
    if model.num_encoder_layers and side == "encode":
        return model.num_encoder_layers * model.encoder_layer_weight_bytes(dtype)
    layer = model.layer_weight_bytes(dtype) - model.cross_kv_weight_bytes(dtype)
    return model.num_layers * layer


def _able(decoders: Sequence[DecodeLines], left_s: Floats, rounds: int) -> Floats:
    """Queries/s of all decoders whose rounds take at most what is left: (encoders, decoders, blocks)."""
    found = np.empty((left_s.shape[0], len(decoders), left_s.shape[1]))
    for i, each in enumerate(decoders):
        some = rounds - each.lacking
        room_s = (left_s + each.lacking_s) / some if some > 0 else np.full(left_s.shape, np.inf)
        found[:, i] = np.where(left_s + each.lacking_s < 0, 0.0, each.most_per_s(room_s))
    return found


def _blocks(most: float) -> tuple[Floats, Floats]:
    """(first, last) of blocks that cover B_E from 1 to `most`."""
    first = [1.0]
    while first[-1] * GROWTH < most:
        first.append(max(first[-1] + 1, float(int(first[-1] * GROWTH))))
    starts = np.array(first)
    return starts, np.append(starts[1:] - 1, max(most, starts[-1]))


def _uncovered(model: WaaModel) -> str:
    costs, inputs = model.instances.encoder.whole, model.law.workload.input
    if model.encoders.covers_an_encode:
        return (
            f"the profile does not cover the hand-over of a single prompt of this workload (mean {inputs.mean:.0f} "
            f"tokens, up to {inputs.max}): it reaches {model.encoders.hand_over_limit:.0f} tokens. "
            "Profile larger hand-overs."
        )
    return (
        f"the profile does not cover the encode of a single prompt of this workload (mean {inputs.mean:.0f} "
        f"tokens, up to {inputs.max}): it reaches {costs.per_token.limit:.0f} tokens and "
        f"{costs.per_pair.limit:.0f} query-key pairs a step. Profile larger encodes."
    )
