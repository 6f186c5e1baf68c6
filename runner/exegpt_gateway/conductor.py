"""Turns queries into steps and results into streams, one worker, one step under way at a time.

The loop: apply a result, ask the policy, send the next step, and only then hand out tokens, so that the worker waits
for nothing but the policy. A lost worker costs time, never a query: what it held goes back to the front of the queue
and is encoded again from prompt + output so far. Never detokenises, never knows text.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from exegpt_gateway.ledger import Ledger
from exegpt_gateway.messages import FINISH, step_command
from exegpt_gateway.metrics import Metrics, Promise
from exegpt_gateway.policies import EXTENT_TOKENS, StepPlan, lookahead, next_step
from exegpt_gateway.pool import Pool, Query
from exegpt_gateway.query import (
    Draining,
    PromptTooLong,
    QueryStream,
    QueryTimes,
    QueueFull,
    SamplingParams,
)
from exegpt_gateway.step_log import StepLog
from exegpt_gateway.worker_link import WorkerLink, WorkerLost
from exegpt_planner.errors import ExeGPTError, Unavailable
from exegpt_planner.schedule import AnySchedule, RraSchedule
from exegpt_wire import worker_pb2

log = logging.getLogger(__name__)

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between attempts to connect; the last repeats
MAX_LOSSES = 5  # a query that has lost so many workers is taken to be what kills them


class Conductor:
    """Owns the queries of one worker; all methods belong to the event loop that runs it."""

    def __init__(  # noqa: PLR0913 - what a conductor is made of, given once by the CLI
        self,
        link: WorkerLink,
        *,
        schedule: AnySchedule,
        kv_tokens: int,
        context: int,
        max_waiting: int,
        metrics: Metrics,
        step_log: StepLog | None = None,
    ) -> None:
        self.schedule = schedule
        self.ready = False
        self._link = link
        self._pool = Pool(kv_capacity=kv_tokens // EXTENT_TOKENS * EXTENT_TOKENS)
        self.context = min(context, self._pool.kv_capacity)  # tokens of one query, output included
        self._max_waiting = max_waiting
        self._ledger = Ledger(metrics, step_log)
        self._ids = itertools.count(1)
        self._sequences = itertools.count(1)
        self._drops: list[int] = []
        self._drop_asked = asyncio.Event()
        self._work_came = asyncio.Event()
        self.is_draining = False
        metrics.in_force(schedule)
        metrics.kv_capacity.set(self._pool.kv_capacity)

    def submit(self, prompt: Sequence[int], sampling: SamplingParams) -> QueryStream:
        """The output stream of a new query; raises Draining, PromptTooLong or QueueFull."""
        if self.is_draining:
            self._ledger.ended("refused")
            raise Draining
        max_tokens = self._output_limit(prompt, sampling)
        if len(self._pool.waiting) >= self._max_waiting:
            self._ledger.ended("refused")
            raise QueueFull(self._max_waiting, self._ledger.seconds_for(self._max_waiting / 2))
        stream = QueryStream(next(self._ids), QueryTimes(arrival_s=time.monotonic()), self._cancel)
        query = Query(
            id=stream.query,
            prompt=tuple(prompt),
            sampling=sampling,
            max_tokens=max_tokens,
            stream=stream,
        )
        self._pool.wait(query)
        self._ledger.submitted(query, self._pool)
        self._work_came.set()
        return stream

    def reschedule(self, schedule: AnySchedule, promise: Promise) -> None:
        """Works by `schedule` from the next step on; nothing that runs is touched."""
        self.schedule = schedule
        self._ledger.metrics.in_force(schedule)
        self._ledger.metrics.promised(promise)

    def drain(self) -> None:
        """Refuses new queries from now; `run` returns when the last stream has finished."""
        self.is_draining = True
        self._work_came.set()

    async def run(self) -> None:
        """Works until drained or cancelled; raises WorkerRefused if the worker cannot serve this."""
        end: ExeGPTError = Unavailable("the server stopped before the answer was complete. Retry.")
        try:
            await self._keep_connected()
        except ExeGPTError as error:
            end = error
            raise
        finally:
            self.ready, self.is_draining = False, True
            self._fail(self._pool.everyone(), end)
            self._pool.clear()
            await self._link.close()

    async def _keep_connected(self) -> None:
        attempts = 0
        while not (self.is_draining and not len(self._pool)):
            try:
                await self._link.connect()
                self.ready, attempts = True, 0
                await self._serve()
            except WorkerLost as error:
                if self.ready:
                    self._recover(error)
                await asyncio.sleep(BACK_OFF_S[min(attempts, len(BACK_OFF_S) - 1)])
                attempts += 1

    def _recover(self, error: WorkerLost) -> None:
        self.ready = False
        self._ledger.hand_out()
        lost = self._pool.lose_worker()
        self._drops.clear()
        self._ledger.metrics.worker_restarts.inc()
        log.warning("worker lost", extra={"reason": str(error), "queries_in_flight": len(lost)})
        suspects = [query for query in lost if query.losses >= MAX_LOSSES]
        for query in suspects:
            self._pool.remove(query.id)
        self._fail(suspects, error)

    async def _serve(self) -> None:
        dropper = asyncio.ensure_future(self._send_drops_when_asked())
        try:
            while True:
                plan = next_step(self.schedule, self._pool.view(lookahead(self.schedule)))
                if plan is not None:
                    await self._step(plan)
                    continue
                self._ledger.hand_out()
                if self.is_draining:
                    return
                await self._idle()
        finally:
            dropper.cancel()

    async def _idle(self) -> None:
        """Until work comes or the worker is lost."""
        self._work_came.clear()
        work = asyncio.ensure_future(self._work_came.wait())
        broken = asyncio.ensure_future(self._link.broken())
        try:
            await asyncio.wait((work, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            broken.cancel()
        if broken.done() and not broken.cancelled():
            await self._link.receive(0)  # raises what broke it

    async def _step(self, plan: StepPlan) -> None:
        begun_s, schedule = time.monotonic(), self.schedule
        step = _Step(plan, next(self._sequences))
        self._pool.begin(plan.chunks)
        command = step_command(plan, step.sequence, self._pool)
        step.num_tokens = len(self._pool.active) + sum(chunk.tokens for chunk in plan.chunks)
        await self._send_drops()
        await self._link.send(command)
        self._ledger.hand_out()
        self._ledger.pool(self._pool)
        is_last = False
        while not is_last:
            result = await self._link.receive(step.num_tokens)
            received_s = time.monotonic()
            self._apply(step, result, received_s)
            is_last = result.last
            if not is_last:
                self._ledger.hand_out()
        if plan.chunks or not isinstance(schedule, RraSchedule):
            self._ledger.metrics.cycle_s.observe(received_s - begun_s)

    def _apply(self, step: _Step, result: worker_pb2.IterationResult, received_s: float) -> None:
        """Brings the pool up to date; what can wait until the next step is sent goes to the ledger."""
        if result.sequence != step.sequence:
            raise WorkerLost(f"a result of step {result.sequence} came in step {step.sequence}.")
        index = self._ledger.arrived(result)
        if step.is_first:
            step.is_first = False
            for chunk in step.plan.chunks:
                query = self._pool.encoded(chunk)
                if query is not None and query.first_iteration is None:
                    query.first_iteration = index
                    engine_s = result.clocks.wall_s - result.clocks.between_s
                    query.stream.times.encode_started_s = received_s - engine_s
        for token in result.tokens:
            taken = self._pool.took(token.query, token.token)
            if taken is None:
                step.overrun.add(token.query)
                continue
            taken.last_iteration = index
            finish = FINISH[token.finish]
            self._ledger.token(taken, token.token, finish, received_s)
            if finish is not None:
                self._pool.finish(taken)
        for evicted in result.evicted:
            self._pool.evict(evicted)
        self._pool.kv_used = result.kv_tokens
        if result.last and step.overrun:
            # Its drop may have come before its encode: say it again, now that the worker knows the query.
            self._drops.extend(step.overrun)
            self._drop_asked.set()

    def _cancel(self, query: int) -> None:
        found, is_held = self._pool.remove(query)
        if found is None:
            return
        if found.stream.is_complete and found.generated:
            self._pool.learn(len(found.generated))
            self._ledger.completed(found)
        else:
            self._ledger.ended("cancelled")
        if is_held:
            self._drops.append(query)
            self._drop_asked.set()

    async def _send_drops(self) -> None:
        if self._drops:
            drops, self._drops = self._drops, []
            await self._link.send(worker_pb2.Command(drop=worker_pb2.Drop(queries=drops)))

    async def _send_drops_when_asked(self) -> None:
        while True:
            await self._drop_asked.wait()
            self._drop_asked.clear()
            try:
                await self._send_drops()
            except Unavailable:
                return  # the loop over results sees it too, and takes care of it

    def _output_limit(self, prompt: Sequence[int], sampling: SamplingParams) -> int:
        left = self.context - len(prompt)
        problem = ""
        if not prompt:
            problem = "the prompt is empty. Give at least one token."
        elif left < 1:
            problem = (
                f"the prompt has {len(prompt)} tokens, and {self.context} fit with the output. "
                "Shorten it."
            )
        elif sampling.max_tokens is not None and sampling.max_tokens > left:
            problem = (
                f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, but "
                f"only {self.context} fit together. Ask for at most {left}."
            )
        if problem:
            self._ledger.ended("refused")
            raise PromptTooLong(problem)
        return left if sampling.max_tokens is None else sampling.max_tokens

    def _fail(self, queries: Sequence[Query], error: ExeGPTError) -> None:
        for query in queries:
            query.stream.push(error)
            self._ledger.ended("failed")


@dataclass(slots=True)
class _Step:
    """A step under way."""

    plan: StepPlan
    sequence: int
    num_tokens: int = 0  # in its first iteration
    is_first: bool = True  # no result of it has come yet
    overrun: set[int] = field(
        default_factory=set
    )  # queries that got tokens after they were dropped
