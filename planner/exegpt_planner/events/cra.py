"""CRA and ORCA, simulated: pools held full, encodes that ride on decode steps.

Before each of its steps a micro-batch takes in as many queries as it has places, those being encoded counted. CRA
encodes C tokens of them a step at most, in the order they came; ORCA takes in one at most and encodes it whole. A
micro-batch's next step begins when its last has left the last stage and the conductor's message is there; micro-batches
take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.events.pipeline import Pipeline
from exegpt_planner.events.queries import Backlog, Pool, Query
from exegpt_planner.events.records import Recorder, Run, Until
from exegpt_planner.events.stages import Stages
from exegpt_planner.profile_table import StepShape
from exegpt_planner.schedule import CraSchedule, OrcaSchedule


def run_cra(
    schedule: CraSchedule,
    stages: Stages,
    backlog: Backlog,
    until: Until,
    *,
    micro_batches: int = 1,
) -> Run:
    """One of the schedule's units under a saturated backlog; C is of each micro-batch's step."""
    rule = Rule(pool=schedule.pool, step_tokens=schedule.chunk_tokens, step_queries=schedule.pool)
    return _run(rule, stages, backlog, until, micro_batches)


def run_orca(
    schedule: OrcaSchedule,
    stages: Stages,
    backlog: Backlog,
    until: Until,
    *,
    micro_batches: int = 1,
) -> Run:
    """ORCA under a saturated backlog; one prompt at most joins a micro-batch's step."""
    rule = Rule(pool=schedule.pool, step_tokens=inf, step_queries=1)
    return _run(rule, stages, backlog, until, micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a step may take in."""

    pool: int  # B_D, of all micro-batches together
    step_tokens: float  # encoded a step at most
    step_queries: int  # taken in a step at most


def _run(rule: Rule, stages: Stages, backlog: Backlog, until: Until, micro_batches: int) -> Run:
    if micro_batches > rule.pool:
        problem = f"{micro_batches} micro-batches cannot share a pool of {rule.pool} queries"
        raise InvalidSpec("schedule", [problem])
    recorder = Recorder(until)
    line = Pipeline(stages, recorder)
    edges = [rule.pool * index // micro_batches for index in range(micro_batches + 1)]
    parts = [
        _Part(index, rule, b - a, line, recorder) for index, (a, b) in enumerate(pairwise(edges))
    ]
    while recorder.begin_round(max(line.free_s, parts[0].ready_s)):
        for part in parts:
            recorder.iteration(sum(each.pool.num for each in parts))
            part.step(backlog.take)
    return recorder.run()


@dataclass(slots=True)
class _Encoding:
    query: Query
    done: int = 0  # tokens

    @property
    def left(self) -> int:
        return self.query.input - self.done


class _Part:
    """One micro-batch: its pool, what is being encoded for it, and when its next step may begin."""

    def __init__(
        self, index: int, rule: Rule, places: int, line: Pipeline, recorder: Recorder
    ) -> None:
        self.pool = Pool()
        self.ready_s = line.stages.dispatch_s
        self._index, self._rule, self._places = index, rule, places
        self._line, self._recorder = line, recorder
        self._encoding: deque[_Encoding] = deque()

    def step(self, take: Callable[[int], list[Query]]) -> None:
        """Takes in what there are places for, and runs a step."""
        free = self._places - self.pool.num - len(self._encoding)
        self._encoding.extend(
            _Encoding(query) for query in take(min(free, self._rule.step_queries))
        )
        begun, shape = self._chunks()
        step = self._line.serve(self.ready_s, shape, micro_batch=self._index)
        self.ready_s = step.end_s + self._line.stages.dispatch_s
        for query in self.pool.advance():
            self._recorder.end(query, step.end_s)
        for each in begun:
            each.encode_start_s = step.start_s
        while self._encoding and not self._encoding[0].left:
            self._join(self._encoding.popleft().query, step.end_s)

    def _join(self, query: Query, now_s: float) -> None:
        query.first_token_s = now_s
        if query.iterations:
            self.pool.join(query, query.iterations)
        else:
            self._recorder.end(query, now_s)

    def _chunks(self) -> tuple[list[Query], StepShape]:
        """The queries whose encode begins with this step, and the step's work."""
        begun: list[Query] = []
        room, tokens, chunks, pairs, ended = self._rule.step_tokens, 0, 0, 0.0, 0
        for each in self._encoding:
            if not room:
                break
            if not each.done:
                begun.append(each.query)
            taken = int(min(room, each.left))
            pairs += taken * (each.done + (taken + 1) / 2)
            each.done += taken
            room, tokens, chunks = room - taken, tokens + taken, chunks + 1
            ended += not each.left
        num = self.pool.num
        return begun, StepShape(
            tokens=num + tokens,
            decode_queries=num,
            decode_context=self.pool.context,
            encode_chunks=chunks,
            encode_pairs=pairs,
            sampled=num + ended,
        )
