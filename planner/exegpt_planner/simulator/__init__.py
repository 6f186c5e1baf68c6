"""What a schedule will do, in closed form, from a profile table and a workload.

`simulate` predicts throughput, latency and pool of one schedule; `latency_of` the mean latency of an answer of any
length.
"""

from __future__ import annotations

from exegpt_planner.completion import PoolLaw, law_on
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import (
    CraSchedule,
    Prediction,
    RraSchedule,
    Schedule,
    WaaSchedule,
)
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.models import model_for
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
    laws = law_on(table, workload, law if isinstance(schedule, RraSchedule) else "exact")
    length = laws.workload.output.quantile(percentile_length / 100)
    promise = Promise.full(length=length, error=table.error_p95)
    model = model_for(schedule, table, laws)
    match schedule, model:
        case RraSchedule(), RraModel():
            return model.predict(schedule, promise)
        case CraSchedule(), CraModel():
            return model.predict(schedule, promise)
        case WaaSchedule(), WaaModel():
            return model.predict(schedule, promise)
        case _:
            raise AssertionError(schedule)


def latency_of(schedule: Schedule, table: ProfileTable, workload: Workload, length: int) -> float:
    """Mean latency of an answer of `length` tokens, from the start of its encode, s."""
    laws = law_on(table, workload)
    tokens = length + laws.workload.delay
    match schedule, model_for(schedule, table, laws):
        case RraSchedule(encode_batch=batch, encode_interval=interval), RraModel() as rra:
            return rra.latency_mean_s(batch, interval, tokens)
        case CraSchedule(pool=pool, chunk_tokens=chunk), CraModel() as cra:
            return cra.latency_mean_s(pool, chunk, tokens)
        case WaaSchedule(encode_batch=batch, pool=pool), WaaModel() as waa:
            return waa.latency_mean_s(batch, pool, tokens)
        case _:
            raise AssertionError(schedule)
