"""Two loads: a constant number in flight, and Poisson arrivals; both stop by time or by count.

The measured window ends when the load ceases to be full (nothing new is sent), so the tail, in which the last answers
run in an emptying pool, is never measured. What is in flight then is answered to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from exegpt_cli.bench.client import Answer
from exegpt_cli.bench.queries import Query
from exegpt_planner.errors import Unavailable

Send = Callable[[Query], Coroutine[Any, Any, Answer]]
Now = Callable[[], float]

RETRY_S = 0.2  # a broken server is not hammered
FAILURES_AT_LEAST = 3  # in a row, before a load gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a load stops sending: after `duration_s`, or after `num_queries` if that comes first."""

    duration_s: float
    num_queries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All answers, and when the load began and ceased to be full."""

    answers: list[Answer]
    started_s: float
    stopped_s: float


class Saturation:
    """Holds a constant number of queries in flight: each answer is followed by the next query."""

    def __init__(self, send: Send, queries: Iterator[Query], *, in_flight: int, now: Now) -> None:
        self._send, self._queries, self._now = send, queries, now
        self._in_flight = in_flight
        self._num_sent = 0
        self._answers: list[Answer] = []
        self._failed_in_a_row = 0
        self._stopped_s: float | None = None

    async def run(self, limits: Limits, on_stop: Callable[[], None] = lambda: None) -> Load:
        """The load; `on_stop` is called once, when it ceases to be full.

        Gives up when nothing but errors comes back, one for each query in flight.
        """
        started = self._now()
        await asyncio.gather(
            *(self._follow(started, limits, on_stop) for _ in range(self._in_flight))
        )
        if self._is_failing:
            raise Unavailable(
                f"the server failed {self._failed_in_a_row} queries in a row, the last with: "
                f"{self._answers[-1].error}. See the server's own output."
            )
        assert self._stopped_s is not None, self._num_sent
        return Load(answers=self._answers, started_s=started, stopped_s=self._stopped_s)

    @property
    def _is_failing(self) -> bool:
        return self._failed_in_a_row >= max(self._in_flight, FAILURES_AT_LEAST)

    def _goes_on(self, started: float, limits: Limits) -> bool:
        return (
            (limits.num_queries is None or self._num_sent < limits.num_queries)
            and self._now() < started + limits.duration_s
            and not self._is_failing
        )

    async def _follow(self, started: float, limits: Limits, on_stop: Callable[[], None]) -> None:
        while self._goes_on(started, limits):
            self._num_sent += 1
            answer = await self._send(next(self._queries))
            self._answers.append(answer)
            if answer.error is None:
                self._failed_in_a_row = 0
                continue
            self._failed_in_a_row += answer.retry_after_s is None  # a full server is no failure
            await asyncio.sleep(answer.retry_after_s or RETRY_S)
        if self._stopped_s is None:
            self._stopped_s = self._now()
            on_stop()


class Arrivals:
    """Sends queries at Poisson arrivals, whatever the server does with them."""

    def __init__(
        self,
        send: Send,
        queries: Iterator[Query],
        *,
        rate_per_s: float,
        rng: np.random.Generator,
        now: Now,
    ) -> None:
        self._send, self._queries, self._now = send, queries, now
        self._gap_s, self._rng = 1.0 / rate_per_s, rng

    async def run(self, limits: Limits, on_stop: Callable[[], None] = lambda: None) -> Load:
        """The load; `on_stop` is called once, when no more arrive."""
        started = due = self._now()
        tasks: list[asyncio.Task[Answer]] = []
        async with asyncio.TaskGroup() as group:
            while limits.num_queries is None or len(tasks) < limits.num_queries:
                due += float(self._rng.exponential(self._gap_s))
                if due > started + limits.duration_s:
                    break
                await asyncio.sleep(max(0.0, due - self._now()))
                tasks.append(group.create_task(self._send(next(self._queries))))
            stopped = self._now()
            on_stop()
        answers = [task.result() for task in tasks]
        return Load(answers=answers, started_s=started, stopped_s=stopped)
