"""What a simulated run leaves behind: its queries, its steps, and what was seen between warm-up and end.

A round is what a policy repeats: in RRA a cycle, in CRA and ORCA one step of every micro-batch, in WAA an encode, in
static batching a batch. Runs begin empty; the warm-up ends, and the run itself, where a round begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.events.queries import Query
from exegpt_planner.profile_table import ProfileTable, StepShape

Floats = NDArray[np.float64]
Kind = Literal["encode", "decode", "mixed"]
Span = tuple[float, float]  # start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """How long to simulate."""

    queries: int  # that end after the warm-up
    warm_up: int  # queries that end before
    steps: int = 50_000  # kept, the first after the warm-up


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One micro-batch's step, and when it was on which stage."""

    instance: int
    micro_batch: int
    shape: StepShape
    spans: tuple[Span, ...]  # by stage

    @property
    def kind(self) -> Kind:
        """Whether the step encodes, decodes, or does both."""
        if not self.shape.encode_chunks:
            return "decode"
        return "mixed" if self.shape.decode_queries else "encode"

    @property
    def start_s(self) -> float:
        """When it began on the first stage."""
        return self.spans[0][0]

    @property
    def end_s(self) -> float:
        """When it left the last stage."""
        return self.spans[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A simulated run. Times count from its beginning, s."""

    instances: tuple[str, ...]  # names
    ended: tuple[Query, ...]  # all that ended, the warm-up's included
    steps: tuple[Step, ...]  # from the end of the warm-up on, as many as were to be kept
    rounds_s: Floats  # when rounds began on the first stage, from the end of the warm-up on
    pool_mean: float  # queries in decode on one instance, over its iterations after the warm-up
    pool_sd: float

    @property
    def start_s(self) -> float:
        """The end of the warm-up."""
        return float(self.rounds_s[0])

    @property
    def end_s(self) -> float:
        """The end of the run."""
        return float(self.rounds_s[-1])

    @property
    def round_s(self) -> float:
        """Mean time of a round."""
        return (self.end_s - self.start_s) / (len(self.rounds_s) - 1)

    @property
    def queries(self) -> list[Query]:
        """Those that ended between warm-up and end."""
        return [each for each in self.ended if self.start_s < each.finish_s <= self.end_s]

    @property
    def queries_per_s(self) -> float:
        """Throughput after the warm-up."""
        return len(self.queries) / (self.end_s - self.start_s)

    def latencies_s(self, length: int) -> Floats:
        """Latencies of the answers of `length` tokens."""
        return np.array([each.latency_s for each in self.queries if each.output == length])

    def steps_beyond(self, table: ProfileTable) -> float:
        """Share of the kept steps that lie beyond the table's knots."""
        return float(np.mean([not table.covers(each.shape) for each in self.steps]))


class Recorder:
    """Takes down a run."""

    def __init__(self, until: Until, instances: Sequence[str] = ("worker",)) -> None:
        self._until, self._instances = until, tuple(instances)
        self._ended: list[Query] = []
        self._is_warm = False
        self._steps: deque[Step] = deque(maxlen=until.steps)  # in the warm-up the newest
        self._rounds_s: list[float] = []
        self._iterations = self._pool_sum = self._pool_squares = 0

    def _forget(self, now_s: float) -> None:
        """All but the steps that are still under way."""
        self._steps = deque(each for each in self._steps if each.end_s > now_s)
        self._rounds_s = []
        self._iterations = self._pool_sum = self._pool_squares = 0

    def begin_round(self, now_s: float) -> bool:
        """Whether another round is to be simulated, which would begin now."""
        if not self._is_warm and len(self._ended) >= self._until.warm_up:
            self._forget(now_s)
            self._is_warm = True
        self._rounds_s.append(now_s)
        return len(self._rounds_s) < 2 or not self._has_all

    @property
    def _has_all(self) -> bool:
        return self._is_warm and len(self._ended) >= self._until.warm_up + self._until.queries

    def step(self, step: Step) -> None:
        """A step was begun."""
        if not self._is_warm or len(self._steps) < self._until.steps:
            self._steps.append(step)

    def iteration(self, pool: int) -> None:
        """An iteration found so many queries in decode on its instance."""
        self._iterations += 1
        self._pool_sum += pool
        self._pool_squares += pool * pool

    def end(self, query: Query, finish_s: float) -> None:
        """A query has its last token."""
        query.finish_s = finish_s
        self._ended.append(query)

    def run(self) -> Run:
        """All that was taken down."""
        iterations = max(1, self._iterations)  # none: every answer was of one token
        mean = self._pool_sum / iterations
        return Run(
            instances=self._instances,
            ended=tuple(self._ended),
            steps=tuple(self._steps),
            rounds_s=np.array(self._rounds_s),
            pool_mean=mean,
            pool_sd=max(0.0, self._pool_squares / iterations - mean**2) ** 0.5,
        )
