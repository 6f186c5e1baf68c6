"""RRA, simulated: encode B_E queries in M micro-batches, run N_D decode iterations of each, and again (open form).

A query stays in the micro-batch it joined, and leaves when it ends. A micro-batch's next iteration begins on the first
stage when its last one has left the last stage; the next cycle's encode as soon as the first stage has served this
cycle's last iteration and the conductor's message is there. A micro-batch in which nobody decodes is passed over.
"""

from __future__ import annotations

from exegpt_planner.adjustment import encode_target, nearest_prefix
from exegpt_planner.events.micro_batch import MicroBatch, iterate
from exegpt_planner.events.pipeline import Pipeline
from exegpt_planner.events.queries import Backlog, deal
from exegpt_planner.events.records import Recorder, Run, Until
from exegpt_planner.events.stages import Stages
from exegpt_planner.schedule import RraSchedule, WaaSchedule


def run_rra(
    schedule: RraSchedule,
    stages: Stages,
    backlog: Backlog,
    until: Until,
    *,
    micro_batches: int = 1,
) -> Run:
    """One of the schedule's units under a saturated backlog."""
    recorder = Recorder(until)
    line = Pipeline(stages, recorder)
    parts = [MicroBatch(index, line, recorder.end) for index in range(micro_batches)]
    while recorder.begin_round(line.free_s + stages.dispatch_s):
        start_s = line.free_s + stages.dispatch_s
        found = sum(part.pool.num for part in parts)
        batch = backlog.take(encode_size(schedule, backlog, found))
        for part, queries in zip(parts, deal(batch, micro_batches), strict=True):
            part.encode(queries, start_s)
        for _ in range(schedule.encode_interval):
            iterate(parts, recorder)
    return recorder.run()


def encode_size(schedule: RraSchedule | WaaSchedule, backlog: Backlog, pool: int) -> int:
    """Queries of the next encode: B_E, or what its run-time adjustment makes of it where `pool` are in decode."""
    adjustment = schedule.adjustment
    if adjustment is None:
        return schedule.encode_batch
    waiting = backlog.first(adjustment.most_queries)
    target = encode_target(adjustment, schedule.encode_batch, pool)
    return nearest_prefix((each.input for each in waiting), target)
