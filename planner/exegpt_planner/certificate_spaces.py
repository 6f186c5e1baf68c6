"""What a certificate must cover, from its inputs alone: RRA and CRA on each shape, WAA on each pair of sides.

Which of their schedules no bound settles say certificate_rra.py, certificate_cra.py and certificate_waa.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from exegpt_planner.certificate_file import CertificateFile
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.layout import Typical
from exegpt_planner.placing import sides_of
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments, prompt_moments
from exegpt_planner.proof import Corners
from exegpt_planner.schedule import CraSchedule, Prediction, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.shapes import Shape, shapes
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.models import Model, model_for
from exegpt_planner.simulator.pipeline import Costs, Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.waa_pairs import WaaPairs

Point = tuple[int, int]
Site = tuple[str, int]  # a strategy, and the place in their list of a shape, of WAA of a pair

SAME = 1e-9  # relative: sums in another order
CHUNKS = [part << e for e in range(1, 14) for part in (4, 5, 6, 7)][
    :-3
]  # CRA's second axis, tokens


@dataclass(frozen=True, kw_only=True)  # no slots: what is cached needs a dict
class Question:
    """What a certificate answers."""

    file: CertificateFile

    @property
    def table(self) -> ProfileTable:
        return self.file.table

    @cached_property
    def law(self) -> CompletionLaw:
        """The laws of pools."""
        return law_on(self.table, self.file.workload.workload)

    @cached_property
    def prompts(self) -> PromptMoments:
        """Of the workload."""
        return prompt_moments(self.law.workload)

    @cached_property
    def promise(self) -> Promise:
        """What is promised, as the bound asks."""
        return self.file.bound.promise(self.law, self.table)

    def keeps(self, promised_s: float) -> bool:
        """Whether a schedule that promises this keeps the bound."""
        return promised_s <= self.file.bound.reference_s

    @cached_property
    def shapes(self) -> list[Shape]:
        """All that there are on the devices."""
        file, typical = self.file, Typical.of(self.law, self.table)
        return list(shapes(self.table, file.model, file.memory.budget, typical, file.devices))

    @cached_property
    def sites(self) -> list[Site]:
        """Where RRA and CRA must be looked at, as far as they were asked for."""
        names = ["RRA"] if self.table.encoder is not None else ["RRA", "CRA"]
        asked = [name for name in names if name in self.file.strategies]
        return [(name, number) for name in asked for number in range(len(self.shapes))]

    @cached_property
    def pairs(self) -> WaaPairs:
        """Where WAA must be: pairs of sides; none where it was not asked for or cannot be planned."""
        file, table, law = self.file, self.table, self.law
        is_planned = "WAA" in file.strategies and table.hand_over is not None
        if not is_planned or file.devices < 2 or law.decode_mean == 0:
            return WaaPairs(table, law, 0, {"encode": [], "decode": []})
        if table.parallel is None:
            return WaaPairs.alike(table, law, self.shapes)
        return WaaPairs.all(table, law, file.devices, (file.model, file.memory.budget))

    def rra(self, shape: Shape) -> RraModel:
        """RRA on a shape; of encodes no larger than memory could hold."""
        return RraModel(self._pipeline(shape), self.law, self.prompts, self._most(shape))

    def cra(self, shape: Shape) -> CraModel:
        """CRA on a shape."""
        return CraModel(self._pipeline(shape), self.law, self.prompts, self._most(shape))

    def _pipeline(self, shape: Shape) -> Pipeline:
        return Pipeline.of(shape, self.table, self.costs)

    def _most(self, shape: Shape) -> int:
        return int(shape.room.kv_tokens / self.prompts.tokens) + 1

    @cached_property
    def costs(self) -> Costs:
        """Of stages, those that shapes have in common once."""
        return Costs(self.table)

    @cached_property
    def below(self) -> dict[object, object]:
        """What bounds keep of stages that shapes have in common."""
        return {}

    @cached_property
    def prompt_chunks(self) -> tuple[float, float, float, dict[float, float]]:
        """(E[I], E[I**2], E[D], E[chunks of a prompt] by C)."""
        pmf = self.law.workload.input.pmf
        tokens = np.arange(len(pmf))
        chunks = {float(each): float(-(-tokens // each) @ pmf) for each in CHUNKS}
        return float(tokens @ pmf), float(tokens**2 @ pmf), self.law.decode_mean, chunks

    def place(self, schedule: Schedule) -> tuple[Site, Point] | None:
        """Where a schedule lies; None if nowhere."""
        if isinstance(schedule, WaaSchedule):
            number = self.pairs.number_of(*sides_of(schedule, self.table))
            found = schedule.encode_batch, schedule.pool
            return None if number is None else (("WAA", number), found)
        number = next((i for i, each in enumerate(self.shapes) if _is_on(each, schedule)), None)
        if number is None:
            return None
        if isinstance(schedule, RraSchedule):
            return ("RRA", number), (schedule.encode_batch, schedule.encode_interval)
        if schedule.chunk_tokens not in CHUNKS:
            return None
        size = schedule.pool // schedule.micro_batches
        return ("CRA", number), (size, CHUNKS.index(schedule.chunk_tokens) + 1)


def named(site: Site) -> str:
    """In words."""
    return f"{site[0]} on {'pair' if site[0] == 'WAA' else 'shape'} {site[1]}"


def is_in(block: Corners, whole: Corners) -> bool:
    """Whether a block, not empty, is part of a space."""
    (a, b, c, d), (x1, x2, y1, y2) = block, whole
    return x1 <= a <= b <= x2 and y1 <= c <= d <= y2


def predicted(model: Model, schedule: Schedule, promise: Promise) -> Prediction:
    """What the simulator expects of a schedule."""
    match schedule, model:
        case RraSchedule(), RraModel():
            return model.predict(schedule, promise)
        case CraSchedule(), CraModel():
            return model.predict(schedule, promise)
        case WaaSchedule(), WaaModel():
            return model.predict(schedule, promise)
        case _:
            raise AssertionError(schedule)


def edge(question: Question, schedule: Schedule) -> float:
    """How far a schedule reaches into the table, whatever memory holds: 1 is its end."""
    match schedule, model_for(schedule, question.table, question.law):
        case RraSchedule(encode_batch=batch, encode_interval=interval), RraModel() as rra:
            return max(batch / rra.max_batch, rra.edge(batch, interval))
        case CraSchedule(pool=pool, chunk_tokens=chunk), CraModel() as cra:
            return cra.edge(pool, chunk)
        case WaaSchedule(encode_batch=batch, pool=pool), WaaModel() as waa:
            return waa.edge(batch, pool)
        case _:
            raise AssertionError(schedule)


def _is_on(shape: Shape, schedule: RraSchedule | CraSchedule) -> bool:
    layout = shape.layout if shape.layout.devices > 1 else None
    said = schedule.units, schedule.layout, schedule.micro_batches
    return (shape.units, layout, shape.micro_batches) == said
