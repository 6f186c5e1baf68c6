"""The share of answers that a schedule keeps waiting beyond the bound, when lengths are other than planned.

An answer of k tokens takes a time that is near to normal, mean and deviation by the simulator, so the bound b is
broken with chance 1 - Phi((b - mean(k)) / sd(k)); the table's error counts only where it is asked for, as an expected
share is not a promise. Over all answers the chance is averaged by the law of lengths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import ndtr

from exegpt_planner.completion import law_on
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.simulator import simulate
from exegpt_planner.simulator.models import model_for
from exegpt_planner.strict import StrictModel
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]


class BrokenShare(StrictModel):
    """Answers later than the bound, a share of them; 0.01 of the percentile's is what a promise allows."""

    length_tokens: int  # of the observed law's percentile
    of_percentile: float = Field(ge=0, le=1)  # of answers of that length
    of_all: float = Field(ge=0, le=1)


def broken_share(
    schedule: Schedule,
    table: ProfileTable,
    workload: Workload,
    bound_s: float,
    *,
    percentile: float = 99,
    error: float = 0.0,
) -> BrokenShare:
    """What is expected of a schedule under the observed lengths; raises `IncompleteProfile` beyond the table.

    `error`, relative, is what latencies are lengthened by: 0 expects the table to be right.
    """
    simulate(schedule, table, workload, percentile_length=percentile)  # refuses what is not covered
    laws = law_on(table, workload)
    output, model, knobs = laws.workload.output, model_for(schedule, table, laws), _knobs(schedule)
    lengths = np.flatnonzero(output.pmf)
    latencies = [model.latency(*knobs, int(each)) for each in lengths]
    mean_s = (1 + error) * np.array([each.mean_s for each in latencies])
    sd_s = (1 + error) * np.array([each.sd_s for each in latencies])
    late = _late(mean_s, sd_s, bound_s)
    length = output.quantile(percentile / 100)
    return BrokenShare(
        length_tokens=length - laws.workload.delay,
        of_percentile=float(late[np.searchsorted(lengths, length)]),
        of_all=min(float(late @ output.pmf[lengths]), 1.0),
    )


def _late(mean_s: Floats, sd_s: Floats, bound_s: float) -> Floats:
    """P(latency > bound); of what never strays, whether its mean is."""
    strays = sd_s > 0
    away = np.divide(mean_s - bound_s, sd_s, out=np.zeros_like(mean_s), where=strays)
    return np.where(strays, ndtr(away), mean_s > bound_s)


def _knobs(schedule: Schedule) -> tuple[int, int]:
    """What a schedule's simulator is asked by."""
    match schedule:
        case RraSchedule():
            return schedule.encode_batch, schedule.encode_interval
        case CraSchedule():
            return schedule.pool, schedule.chunk_tokens
        case WaaSchedule():
            return schedule.encode_batch, schedule.pool
