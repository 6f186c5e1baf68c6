"""What a schedule will do, in closed form, from a profile table and a workload.

`simulate` predicts throughput, latency and pool of one schedule; `latency_of` the mean latency of an answer of any
length.
"""

from __future__ import annotations

from exegpt_planner.completion import CompletionLaw, PoolLaw, law_on
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.schedule import (
    CraSchedule,
    Prediction,
    RraSchedule,
    Schedule,
    WaaSchedule,
)
from exegpt_planner.simulator.costs import costs_of, hand_over_of
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.pipeline import pipeline_of
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.workload import Workload


def simulate(
    schedule: Schedule,
    table: ProfileTable,
    workload: Workload,
    *,
    percentile_length: float = 99,
    law: PoolLaw = "exact",
) -> Prediction:
    """What is expected of a schedule under a saturated backlog; raises `IncompleteProfile` beyond the table.

    `law` "paper" is the paper's biased pool law, for comparison (RRA only; the others' pools are not affected).
    """
    length = law_on(table, workload).workload.output.quantile(percentile_length / 100)
    promise = Promise.full(length=length, error=table.error_p95)
    match schedule:
        case RraSchedule():
            return _rra(schedule, table, workload, law).predict(schedule, promise)
        case CraSchedule():
            return _cra(table, workload).predict(schedule, promise)
        case WaaSchedule():
            return _waa(schedule, table, workload).predict(schedule, promise)


def latency_of(schedule: Schedule, table: ProfileTable, workload: Workload, length: int) -> float:
    """Mean latency of an answer of `length` tokens, from the start of its encode, s."""
    match schedule:
        case RraSchedule():
            model = _rra(schedule, table, workload, "exact")
            return model.latency_mean_s(
                schedule.encode_batch,
                schedule.encode_interval,
                length + model.law.workload.delay,
            )
        case CraSchedule():
            return _cra(table, workload).latency_mean_s(
                schedule.pool, schedule.chunk_tokens, length
            )
        case WaaSchedule():
            return _waa(schedule, table, workload).latency_mean_s(
                schedule.encode_batch, schedule.pool, length
            )


def _rra(schedule: RraSchedule, table: ProfileTable, workload: Workload, law: PoolLaw) -> RraModel:
    pipeline = pipeline_of(schedule, table)
    return RraModel(pipeline, law_on(table, workload, law), prompt_moments(workload))


def _cra(table: ProfileTable, workload: Workload) -> CraModel:
    return CraModel(costs_of(table), CompletionLaw(workload), prompt_moments(workload))


def _waa(schedule: WaaSchedule, table: ProfileTable, workload: Workload) -> WaaModel:
    split = schedule.encoders, schedule.decoders
    return WaaModel(
        costs_of(table),
        hand_over_of(table),
        CompletionLaw(workload),
        prompt_moments(workload),
        split,
    )
