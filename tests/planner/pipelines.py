"""Pipelines whose every step takes what a test says, and queries of one length."""

from __future__ import annotations

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
    stages: ConstantStages, *, micro_batches: int, interval: int, cycles: int, warm_up: int = 8
) -> Run:
    """RRA with one query a micro-batch, each of which decodes just as long as a cycle does."""
    schedule = RraSchedule(encode_batch=micro_batches, encode_interval=interval)
    until = Until(queries=cycles * micro_batches, warm_up=warm_up * micro_batches)
    backlog = equal(outputs=interval + 1)
    return run_rra(schedule, stages, backlog, until, micro_batches=micro_batches)


def cycles_s(run: Run) -> Floats:
    return np.diff(run.cycles_s)
