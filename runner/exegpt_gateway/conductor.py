"""Turns queries into steps and results into streams, on one worker or several.

The loop of a worker's lane: apply a result, ask the policy, send the next step, and only then hand out tokens, so that
the worker waits for nothing but the policy. A lost worker costs time, never a query: what it held goes back to the
front of the queue and is encoded again from prompt + output so far. Never detokenises, never knows text.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable, Sequence

from exegpt_gateway.backlog import Backlog, Query
from exegpt_gateway.hand_overs import HandOvers
from exegpt_gateway.lane import Lane, Step
from exegpt_gateway.ledger import Ledger
from exegpt_gateway.messages import add_hand_over, add_join, step_command
from exegpt_gateway.metrics import Metrics, Promise
from exegpt_gateway.policies import (
    EXTENT_TOKENS,
    PoolView,
    StepPlan,
    lookahead,
    next_step,
    parts,
)
from exegpt_gateway.pool import Pool
from exegpt_gateway.query import (
    Draining,
    PromptTooLong,
    QueryStream,
    QueryTimes,
    QueueFull,
    SamplingParams,
    output_limit,
)
from exegpt_gateway.results import give_tokens, note_encodes
from exegpt_gateway.step_log import StepLog
from exegpt_gateway.ways import Ways
from exegpt_gateway.worker_link import WorkerLink, WorkerLost
from exegpt_planner.errors import ExeGPTError, Unavailable
from exegpt_planner.schedule import AnySchedule, RraSchedule, WaaSchedule
from exegpt_wire import worker_pb2

log = logging.getLogger(__name__)

MAX_LOSSES = 5  # a query lost so often is taken to be what kills workers, or transfers


class Conductor:
    """Owns the queries of some workers; all methods belong to the event loop that runs it."""

    def __init__(  # noqa: PLR0913 - what a conductor is made of, given once by the CLI
        self,
        links: Sequence[WorkerLink],
        *,
        schedule: AnySchedule,
        kv_tokens: int,
        context: int,
        max_waiting: int,
        metrics: Metrics,
        step_log: StepLog | None = None,
    ) -> None:
        """`kv_tokens` is what each worker holds."""
        self.schedule = schedule
        self.revision = 1  # of the schedule: one more with each `reschedule`
        self._parts = parts(schedule, len(links))
        capacity = kv_tokens // EXTENT_TOKENS * EXTENT_TOKENS
        self._backlog = Backlog()
        self._lanes = tuple(
            Lane(index, link, Pool(capacity, self._backlog)) for index, link in enumerate(links)
        )
        self._hand_overs = HandOvers()
        self._ways = Ways(self._lanes, self._hand_overs)
        self._ways.follow(self._parts)
        self.context = min(context, capacity)  # tokens of one query, output included
        self._max_waiting = max_waiting
        self._ledger = Ledger(metrics, step_log)
        self._ids = itertools.count(1)
        self._sequences = itertools.count(1)
        self.is_draining = False
        self._is_over = False
        metrics.in_force(schedule)
        metrics.kv_capacity.set(capacity * len(self._lanes))

    @property
    def ready(self) -> bool:
        """Whether a query would be encoded and decoded now."""
        if self._is_over:
            return False
        if isinstance(self.schedule, WaaSchedule):
            return self._ways.is_any_open
        return any(lane.is_connected for lane in self._lanes)

    @property
    def is_complete(self) -> bool:
        """Whether every worker is connected."""
        return all(lane.is_connected for lane in self._lanes)

    @property
    def metrics(self) -> Metrics:
        """What it measures."""
        return self._ledger.metrics

    @property
    def is_settled(self) -> bool:
        """Whether every worker is connected and KV gets wherever the schedule sends it."""
        return not self._is_over and self.is_complete and self._ways.are_all_open

    @property
    def lost_workers(self) -> list[str]:
        """Addresses of those that are not connected."""
        return [lane.link.address for lane in self._lanes if not lane.is_connected]

    @property
    def transfer_problem(self) -> str:
        """Why KV does not get through, if it was tried in vain."""
        return self._ways.probes.problem

    def submit(self, prompt: Sequence[int], sampling: SamplingParams) -> QueryStream:
        """The output stream of a new query; raises Draining, PromptTooLong or QueueFull."""
        if self.is_draining:
            self._ledger.ended("refused")
            raise Draining
        try:
            max_tokens = output_limit(prompt, sampling, self.context)
        except PromptTooLong:
            self._ledger.ended("refused")
            raise
        if len(self._backlog) >= self._max_waiting:
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
        self._backlog.wait(query)
        self._ledger.submitted(query, len(self._backlog))
        self._wake()
        return stream

    @property
    def num_workers(self) -> int:
        """All of them, lost ones included."""
        return len(self._lanes)

    @property
    def num_iterations(self) -> int:
        """Iterations of all workers whose results have come."""
        return self._ledger.num_iterations

    def reschedule(self, schedule: AnySchedule, promise: Promise) -> None:
        """Works by `schedule` from each worker's next step on; nothing that runs is touched.

        Raises `InvalidSpec` when it is for another number of workers.
        """
        self._parts = parts(schedule, len(self._lanes))
        self._ways.follow(self._parts)
        self.schedule = schedule
        self.revision += 1
        self._ledger.metrics.in_force(schedule, self.revision)
        self._ledger.metrics.promised(promise)
        self._wake()

    def drain(self) -> None:
        """Refuses new queries from now; `run` returns when the last stream has finished."""
        self.is_draining = True
        self._wake()

    async def run(self) -> None:
        """Works until drained or cancelled; raises WorkerRefused if a worker cannot serve this."""
        end: ExeGPTError = Unavailable("the server stopped before the answer was complete. Retry.")
        working = [asyncio.ensure_future(lane.run(self)) for lane in self._lanes]
        try:
            await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            for each in working:
                if each.done():
                    each.result()
        except ExeGPTError as error:
            end = error
            raise
        finally:
            self._is_over = self.is_draining = True
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            self._ledger.hand_out()
            self._fail(self._everyone(), end)
            for lane in self._lanes:
                lane.pool.clear()
                await lane.close()

    # What a lane asks

    def rests(self) -> bool:
        """Nothing is to do for a lane now; whether it may end."""
        self._ledger.hand_out()
        return self.is_draining and not self._num_queries()

    def next_step(self, lane: Lane) -> Step | None:
        """The next step of this lane, its queries moved accordingly, or None when there is nothing to do."""
        target = None
        if isinstance(self.schedule, WaaSchedule) and self._parts[lane.index] == "encoder":
            probe = self._ways.probe(lane)
            if probe is not None:
                probe.sequence = next(self._sequences)
                return Step(StepPlan(), worker_pb2.Command(step=probe))
            target = self._ways.decoder_for(lane, self.schedule.pool)
        plan = next_step(self.schedule, self._view(lane, target))
        if plan is None:
            return None
        pool = lane.pool
        joining = self._hand_overs.joining(lane.index)
        pool.begin(plan.chunks)
        transfer = None
        if plan.leaves and target is not None:
            leaving = [pool.partial[chunk.query] for chunk in plan.chunks]
            transfer = self._hand_overs.begin(lane.index, target.index, leaving)
        command = step_command(plan, next(self._sequences), pool)
        if transfer is not None and target is not None:
            add_hand_over(command.step, transfer, target.link.place)
        for each in joining:
            add_join(command.step, each)
            pool.join(each)
        num_tokens = len(pool.active) + sum(chunk.tokens for chunk in plan.chunks)
        return Step(plan, command, num_tokens=num_tokens, transfer=transfer)

    def hand_out(self) -> None:
        """A worker is at its next iteration: time to hand out what has come so far."""
        self._ledger.hand_out()

    def sent(self) -> None:
        """A worker has its step: time to hand out what has come so far, and to show the pool."""
        self._ledger.hand_out()
        self._ledger.pool(
            waiting=len(self._backlog),
            running=self._num_queries() - len(self._backlog),
            kv_used=sum(each.pool.kv_used for each in self._lanes),
        )

    def apply(
        self, lane: Lane, step: Step, result: worker_pb2.IterationResult, at_s: float
    ) -> None:
        """Brings the lane's pool up to date; what can wait until the next step is sent goes to the ledger."""
        self.news(lane, result)
        pool = lane.pool
        index = self._ledger.arrived(result, lane.index)
        if step.is_first:
            note_encodes(step, pool, index, result, at_s)
        ended = give_tokens(step, pool, self._ledger, index, result, at_s)
        for evicted in result.evicted:
            pool.evict(evicted)
        pool.kv_used = result.kv_tokens
        if step.is_first:
            step.is_first = False
            self._hand_on(step, pool)
        if result.last and step.overrun:
            # Its drop may have come before its encode: say it again, now that the worker knows the query.
            lane.drop(queries=step.overrun)
        if ended or result.evicted:
            self._wake()

    def news(self, lane: Lane, result: worker_pb2.IterationResult) -> None:
        """What came and went, from any message of the worker."""
        for transfer in result.arrived:
            if not self._hand_overs.arrived(lane.index, transfer):
                lane.drop(transfers=[transfer])  # given up meanwhile
        for handed in result.handed:
            self._handed(lane, handed)
        if result.arrived or result.handed:
            self._wake()

    def finished(self, step: Step, seconds: float) -> None:
        """The step's last result has come."""
        if step.plan.chunks or not isinstance(self.schedule, RraSchedule):
            self._ledger.metrics.cycle_s.observe(seconds)

    def connected(self, lane: Lane) -> None:
        """The worker is there, and empty."""
        log.info("worker connected", extra={"worker": lane.index, "address": lane.link.address})
        self._wake()

    def lost(self, lane: Lane, error: WorkerLost) -> None:
        """Sends back to the queue whatever the worker held, or was to get, or had not wholly sent."""
        self._ledger.hand_out()
        lost = lane.pool.everyone()
        lane.pool.clear()
        for transfer in self._hand_overs.lose(lane.index):
            if transfer.is_encoded:
                lost += transfer.queries.values()
            if transfer.target != lane.index:
                self._lanes[transfer.target].drop(transfers=[transfer.id])
        self._give_back(lost, error)
        self._ledger.metrics.worker_restarts.inc()
        extra = {"worker": lane.index, "reason": str(error), "queries_in_flight": len(lost)}
        log.warning("worker lost", extra=extra)
        self._wake()

    # Steps

    def _view(self, lane: Lane, target: Lane | None) -> PoolView:
        room = None
        if isinstance(self.schedule, WaaSchedule) and target is not None:
            room = self._ways.room(target, self.schedule.pool)
        return lane.pool.view(
            lookahead(self.schedule),
            part=self._parts[lane.index],
            num_joining=self._hand_overs.num_joining(lane.index),
            num_arriving=self._hand_overs.num_arriving(lane.index),
            kv_arriving=self._hand_overs.kv_tokens(lane.index),
            room=room,
        )

    def _hand_on(self, step: Step, pool: Pool) -> None:
        """Those that were encoded to leave are no longer the encoder's."""
        transfer = step.transfer
        if transfer is None:
            return
        leaving = [query for query in transfer.queries.values() if pool.active.pop(query.id, None)]
        if not self._hand_overs.encoded(transfer, leaving):  # it failed before the encode was over
            self._give_back(leaving, WorkerLost(f"hand-over failed: {transfer.problem}"))
        elif not leaving:
            self._hand_overs.forget(transfer)  # all ended with their first tokens
            self._lanes[transfer.target].drop(transfers=[transfer.id])
        self._wake()

    # Hand-overs

    def _handed(self, lane: Lane, handed: worker_pb2.Handed) -> None:
        """How a transfer ended, from its sender."""
        if self._ways.probes.ended(handed):
            if handed.reason:
                asyncio.get_running_loop().call_later(self._ways.probes.RETRY_S, self._wake)
            return
        self._ledger.metrics.handed(handed)
        if not handed.reason:
            return
        log.warning("hand-over failed", extra={"worker": lane.index, "reason": handed.problem})
        transfer = self._hand_overs.give_up(handed.transfer, handed.problem)
        if transfer is not None:
            self._lanes[transfer.target].drop(transfers=[transfer.id])
            if transfer.is_encoded:
                problem = WorkerLost(f"hand-over failed: {handed.problem}")
                self._give_back(transfer.queries.values(), problem)

    def _give_back(self, queries: Iterable[Query], error: ExeGPTError) -> None:
        """Sends queries that lost their KV back to the queue, but for those that always do."""
        suspects = []
        for query in queries:
            query.losses += 1
            if query.losses >= MAX_LOSSES:
                suspects.append(query)
            else:
                self._backlog.wait(query)
        self._fail(suspects, error)

    # Queries

    def _cancel(self, query: int) -> None:
        found = self._backlog.remove(query) or self._hand_overs.remove(query)
        for lane in self._lanes:
            if found is None and (found := lane.pool.remove(query)) is not None:
                lane.drop(queries=[query])
        if found is None:
            return
        if found.stream.is_complete and found.generated:
            self._backlog.learn(len(found.generated))
            self._ledger.completed(found)
        else:
            self._ledger.ended("cancelled")
        self._wake()

    def _fail(self, queries: Iterable[Query], error: ExeGPTError) -> None:
        for query in queries:
            query.stream.push(error)
            self._ledger.ended("failed")

    def _everyone(self) -> list[Query]:
        """Every query, taken from wherever it is."""
        everyone = self._backlog.take(len(self._backlog)) + self._hand_overs.clear()
        for lane in self._lanes:
            everyone += lane.pool.everyone()
        return everyone

    def _num_queries(self) -> int:
        held = sum(len(lane.pool) for lane in self._lanes)
        return len(self._backlog) + held + len(self._hand_overs)

    def _wake(self) -> None:
        for lane in self._lanes:
            lane.wake()
