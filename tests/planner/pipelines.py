"""Pipelines whose every step takes what a test says, and queries of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exegpt_planner.events.queries import Backlog, Ints
from exegpt_planner.events.records import Run, Until
from exegpt_planner.events.rra import run_rra
from exegpt_planner.events.stages import ConstantStages
from exegpt_planner.schedule import RraSchedule
from planner.builders import Floats


def even(num_stages: int, encode_s: float, decode_s: float) -> ConstantStages:
    return ConstantStages(encode_s=[encode_s] * num_stages, decode_s=[decode_s] * num_stages)


def equal(outputs: int, inputs: int = 5) -> Backlog:
    """Queries that are all alike."""

    def draw(n: int) -> tuple[Ints, Ints]:
        return np.full(n, inputs), np.full(n, outputs)

    return Backlog(draw)


def played(
    stages: ConstantStages,
    *,
    micro_batches: int,
    interval: int,
    cycles: int,
    warm_up: int = 8,
    iterations: int | None = None,
) -> Run:
    """RRA that encodes one query a micro-batch, of so many decode iterations; by default of just a cycle's."""
    schedule = RraSchedule(encode_batch=micro_batches, encode_interval=interval)
    until = Until(queries=cycles * micro_batches, warm_up=warm_up * micro_batches)
    backlog = equal(outputs=1 + (interval if iterations is None else iterations))
    return run_rra(schedule, stages, backlog, until, micro_batches=micro_batches)


def cycles_s(run: Run) -> Floats:
    return np.diff(run.rounds_s)


@dataclass(frozen=True)
class Uneven:
    """RRA on stages of unequal times, in closed form (docs/theory.md): e and d by stage, M and N."""

    e: Floats
    d: Floats
    micro_batches: int
    interval: int

    @property
    def all_s(self) -> float:
        """One iteration of all micro-batches."""
        return max(float(self.d.sum()), self.micro_batches * float(self.d.max()))

    @property
    def cycle_s(self) -> float:
        e, d, m, n = self.e, self.d, self.micro_batches, self.interval
        busiest_s = float((m * (e + n * d)).max())
        turn_s = float((np.cumsum(d) + _from_here(e)).max())
        spread_s = (m - 1) * max(float(e.max()), float(d.max()))
        return max(busiest_s, turn_s + spread_s + (n - 1) * self.all_s)

    def latency_s(self, iterations: int) -> float:
        """Mean over the micro-batches."""
        e, d, m = self.e, self.d, self.micro_batches
        cycles = -(-iterations // self.interval)
        left = iterations - (cycles - 1) * self.interval
        behind = np.cumsum(d) - d[0]  # of the last decodes, when an encode begins
        slowest = int(d.argmax())
        is_bound = m * d.max() > d.sum()
        if is_bound and slowest > 0:
            kept_s = m * d.max() - d[slowest + 1 :].sum() - d[0]
            behind[slowest] = max(behind[slowest], kept_s)
        way_s = float((behind + _from_here(e)).max()) + (m - 1) * float(e.max()) + self.all_s
        busiest_s = m * float((e + d).max()) - float(d.max()) + float(d.sum())
        last_s = max(busiest_s, way_s) + (left - 1) * self.all_s  # of the last micro-batch
        apart_s = float(d.max()) if is_bound else min(max(e.max(), d.max()), d.sum() / m)
        spread_s = (m - 1) * (float(e[0]) + apart_s) / 2
        return (cycles - 1) * self.cycle_s + last_s - spread_s


def _from_here(times_s: Floats) -> Floats:
    return np.asarray(np.cumsum(times_s[::-1])[::-1])
