"""Where WAA may be planned on some devices: pairs of sides, and what no schedule of a pair can beat.

x encoders of one layout and y decoders of one layout and M micro-batches take all devices between them. Each side is
reckoned alone: encoders by blocks of B_E, how many queries they feed and how soon a first token is there; decoders by
lines below a round, what they can do within what is left of the bound, and in their memory. A pair is no better than
the lesser of both, at the best B_E. Nothing but these bounds is computed of a pair that is not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile, InfeasibleBound
from exegpt_planner.layout import Side
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.placing import sides_of
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import Split, WaaSchedule
from exegpt_planner.shapes import Shape, room_of
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.waa_lines import DecodeLines, EncodeLines, SideLines
from exegpt_planner.waa_pairs import Group, WaaPairs
from exegpt_planner.waa_space import Rooms, WaaSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_Lines = tuple[list[EncodeLines], list[DecodeLines]]  # of a group's sides

GROWTH = 1.3  # of B_E from block to block


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


class WaaSites(WaaPairs, Sequence[WaaSite]):
    """Of every pair, with bounds of all of them at once."""

    def __init__(
        self,
        table: ProfileTable,
        law: CompletionLaw,
        devices: int,
        sides: dict[Side, list[Shape]],
    ) -> None:
        super().__init__(table, law, devices, sides)
        self._made: dict[int, WaaSite] = {}
        self._lines_made: dict[int, list[_Lines]] = {}

    @overload
    def __getitem__(self, at: int) -> WaaSite: ...
    @overload
    def __getitem__(self, at: slice) -> list[WaaSite]: ...
    def __getitem__(self, at: int | slice) -> WaaSite | list[WaaSite]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._size))]
        if at in self._made:
            return self._made[at]
        found = WaaSite(self, at, *self.sides(at))
        self._made[at] = found
        return found

    def __iter__(self) -> Iterator[WaaSite]:
        return (self[at] for at in range(self._size))

    def uppers(self, promise: Promise) -> Floats:
        """Queries/s that no schedule of each pair within the bound exceeds."""
        found = [
            _pair_bounds(group, lines, promise, promise.answer_s / (1 + promise.error))
            for group, lines in zip(self.groups, self._lines(promise.length), strict=True)
        ]
        return np.concatenate([np.empty(0), *found])

    def nearest(self, promise: Promise, number: int) -> list[WaaSite]:
        """Pairs that may promise the least latency, as far as encodes of one query and rounds of one say."""
        rounds = max(promise.length - 1, 0)
        found = []
        lines = self._lines(promise.length)
        for group, (encoders, decoders) in zip(self.groups, lines, strict=True):
            encode_s = np.array([each.first_s(1.0) for each in encoders])
            round_s = np.array([each.round_s(1.0) for each in decoders])
            e, d = group.pairs
            found.append(encode_s[e] + rounds * round_s[d])
        least_s = np.concatenate([np.empty(0), *found])
        return [self[int(at)] for at in np.argsort(least_s, kind="stable")[:number]]

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
                for group in self.groups
            ]
        return found


def _pair_bounds(group: Group, lines: _Lines, promise: Promise, mean_s: float) -> Floats:
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
