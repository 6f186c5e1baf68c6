"""Static batching, simulated: the comparison policy of the ExeGPT paper (FasterTransformer).

A batch of B queries is encoded in M micro-batches and decoded until its longest answer ends; only then comes the next.
Without early termination an ended query goes on being computed, and all answers are returned when the batch ends; with
it an ended query is returned at once and costs no more. ORCA and chunked refill are in `cra`.
"""

from __future__ import annotations

from exegpt_planner.events.micro_batch import MicroBatch, iterate
from exegpt_planner.events.pipeline import Pipeline
from exegpt_planner.events.queries import Backlog, Query, deal
from exegpt_planner.events.records import Recorder, Run, Until
from exegpt_planner.events.stages import Stages
from exegpt_planner.schedule import StaticSchedule


def run_static(
    schedule: StaticSchedule,
    stages: Stages,
    backlog: Backlog,
    until: Until,
    *,
    micro_batches: int = 1,
) -> Run:
    """Static batches under a saturated backlog."""
    recorder, held = Recorder(until), list[Query]()

    def hold(query: Query, _: float) -> None:
        held.append(query)

    leaves = schedule.early_termination
    line = Pipeline(stages, recorder)
    parts = [
        MicroBatch(index, line, recorder.end if leaves else hold) for index in range(micro_batches)
    ]
    start_s = stages.dispatch_s
    while recorder.begin_round(start_s):
        batch = backlog.take(schedule.batch)
        longest = None if leaves else max(query.iterations for query in batch)
        for part, queries in zip(parts, deal(batch, micro_batches), strict=True):
            part.encode(queries, start_s, iterations=longest)
        while iterate(parts, recorder):
            pass
        end_s = max(part.ready_s for part in parts)
        for query in held:
            recorder.end(query, end_s)
        held.clear()
        start_s = end_s + stages.dispatch_s
    return recorder.run()
