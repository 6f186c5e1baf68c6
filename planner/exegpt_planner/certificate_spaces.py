"""What a certificate must cover, from its inputs alone: each strategy on each shape, and the schedules there.

Where CRA and WAA are planned they are simulated at every point that fits, so of their spaces nothing is left to bound.
RRA's are for certificate_check.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.certificate_file import CertificateFile
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.layout import Typical
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments, prompt_moments
from exegpt_planner.proof import Corners
from exegpt_planner.schedule import (
    CraSchedule,
    Prediction,
    RraSchedule,
    Schedule,
    Split,
    WaaSchedule,
)
from exegpt_planner.shapes import Shape, shapes
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.limits import held_s
from exegpt_planner.simulator.models import Model, model_for
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import ROOM, WaaModel

Floats = NDArray[np.float64]
Point = tuple[int, int]
Site = tuple[str, int, Split | None]  # a strategy, a shape's place in their list, WAA's split

CHUNKS = [32 << each for each in range(11)]  # CRA's second axis, tokens
WAA_QUERIES = 2000  # WAA is planned where no more can fit


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
        """Where each strategy that was asked for must be looked at."""
        found: list[Site] = []
        decoder_only = self.table.encoder is None
        for number, shape in enumerate(self.shapes):
            one_stage = len(shape.layout.stages) == 1 and decoder_only
            if "RRA" in self.file.strategies:
                found.append(("RRA", number, None))
            if "CRA" in self.file.strategies and one_stage:
                found.append(("CRA", number, None))
        return found

    def most_queries(self, shape: Shape) -> int:
        """More than fit at once, or than the table covers."""
        fitting = shape.room.kv_tokens / self.law.workload.input.mean
        return int(min(fitting, self.table.layer.decode_queries.x[-1])) + 1

    def rra(self, shape: Shape) -> RraModel:
        """RRA on a shape; of encodes no larger than memory could hold."""
        most = int(shape.room.kv_tokens / self.prompts.tokens) + 1
        return RraModel(Pipeline.of(shape, self.table), self.law, self.prompts, most)

    def simulated(self, shape: Shape, split: Split | None) -> Simulated:
        """CRA's or WAA's schedules on a shape."""
        raise NotImplementedError

    def place(self, schedule: Schedule) -> tuple[Site, Point] | None:
        """Where a schedule lies; None if nowhere."""
        number = next((i for i, each in enumerate(self.shapes) if _is_on(each, schedule)), None)
        if number is None:
            return None
        if isinstance(schedule, RraSchedule):
            return ("RRA", number, None), (schedule.encode_batch, schedule.encode_interval)
        if isinstance(schedule, CraSchedule):
            if schedule.chunk_tokens not in CHUNKS:
                return None
            return ("CRA", number, None), (
                schedule.pool,
                CHUNKS.index(schedule.chunk_tokens) + 1,
            )
        split = schedule.encoders, schedule.decoders
        return ("WAA", number, split), (schedule.encode_batch, schedule.pool)


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


def _is_on(shape: Shape, schedule: Schedule) -> bool:
    layout = shape.layout if shape.layout.devices > 1 else None
    number = schedule.micro_batches if isinstance(schedule, RraSchedule) else 1
    return (shape.units, layout, shape.micro_batches) == (schedule.units, schedule.layout, number)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """All schedules of a space; arrays (x, y)."""

    model: CraModel | WaaModel
    promise: Promise
    units: int
    chunks: list[int]  # CRA's second axis
    rates: Floats  # queries/s; 0 where it does not fit
    promises_s: Floats  # inf where it does not fit

    @classmethod
    def of_cra(cls, model: CraModel, promise: Promise, room: float, units: int) -> Self:
        """B_D by C: what fits is small pools, as need, reach and memory all rise with the pool."""
        chunks = [chunk for chunk in CHUNKS if model.edge(1, chunk) <= 1]

        def is_beyond(chunk: int, pool: int) -> bool:
            kept_up = model.fits(pool, chunk) and model.edge(pool, chunk) <= 1
            return not kept_up or model.kv_need(pool, chunk) > room

        need = model.prompts.tokens / (model.law.decode_mean + 1)
        most = int(min(max(chunks, default=0) / need, model.costs.queries_only.limit))
        rates, promises_s = (np.full((most, len(chunks)), value) for value in (0.0, np.inf))
        for y, chunk in enumerate(chunks):
            fitting = bisect_left(range(1, most + 1), True, key=partial(is_beyond, chunk))
            x = 0  # pools below, done
            while x < fitting:
                run = model.run(x + 1, chunk)
                end = min(run.last, fitting)
                part, own = slice(x, end), slice(run.at(x + 1), run.at(end) + 1)
                seen = run.latencies(promise.length)
                rates[part, y] = units * run.throughput[own]
                promises_s[part, y] = _promised_s(promise, seen.mean_s[own], seen.sd_s[own])
                x = end
        return cls(
            model=model,
            promise=promise,
            units=units,
            chunks=chunks,
            rates=rates,
            promises_s=promises_s,
        )

    @classmethod
    def of_waa(cls, model: WaaModel, promise: Promise, room: float) -> Self:
        """B_E by B_D: a pool has places for two encodes at least, and no more than are ever taken."""
        most = [model.row(batch).most for batch in range(1, model.max_batch + 1)]
        shape = len(most), max(most, default=0)
        rates, promises_s = (np.full(shape, value) for value in (0.0, np.inf))
        for batch, last in enumerate(most, start=1):
            pools = np.arange(ROOM * batch, last + 1, dtype=np.float64)
            if not pools.size:
                continue
            state = model.at(batch, pools)
            fits = (model.edges(batch, state) <= 1) & (model.kv_needs(batch, state) <= room)
            mean_s = model.latency_means_s(batch, pools, state, promise.length)
            promised_s = _promised_s(
                promise, mean_s, model.latency_sds_s(batch, state, promise.length)
            )
            part = slice(ROOM * batch - 1, last)
            rates[batch - 1, part] = np.where(fits, state.queries_per_s, 0.0)
            promises_s[batch - 1, part] = np.where(fits, promised_s, np.inf)
        return cls(
            model=model,
            promise=promise,
            units=1,
            chunks=[],
            rates=rates,
            promises_s=promises_s,
        )

    @property
    def whole(self) -> Corners:
        """The space."""
        return 1, self.rates.shape[0], 1, self.rates.shape[1]

    def fits(self, x: int, y: int) -> bool:
        """Whether the schedule fits: memory, the table's reach, its strategy's own rules."""
        return self.rate(x, y) > 0

    def rate(self, x: int, y: int) -> float:
        """Queries/s."""
        return float(self.rates[x - 1, y - 1])

    def promised_s(self, x: int, y: int) -> float:
        """What is held against the bound."""
        if self.promise.limits is None or not self.fits(x, y):
            return float(self.promises_s[x - 1, y - 1])
        knobs = (x, self.chunks[y - 1] if self.chunks else y)
        return held_s(self.model, knobs, self.promise, self.rate(x, y), self.units)

    def unsettled(self, block: Corners, best: float, bound_s: float) -> Iterator[Point]:
        """Schedules of the block with more throughput than `best`, whatever they promise."""
        x1, x2, y1, y2 = block
        del bound_s
        for x, y in np.argwhere(self.rates[x1 - 1 : x2, y1 - 1 : y2] > best).tolist():
            yield x1 + x, y1 + y


def _promised_s(promise: Promise, mean_s: Floats, sd_s: Floats) -> Floats:
    return np.array([promise.promised_s(*each) for each in zip(mean_s, sd_s, strict=True)])
