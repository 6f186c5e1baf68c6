"""What came of the results: tokens to the streams, numbers to the metrics, lines to the step log.

Collected while the worker waits, handed out once it works again.
"""

from __future__ import annotations

import time
from collections import deque

from exegpt_gateway.backlog import Query
from exegpt_gateway.messages import shape_of
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import Finish, TokenEvent
from exegpt_gateway.step_log import QueryRecord, StepLog
from exegpt_wire import worker_pb2

ENDS_REMEMBERED = 64  # the completion rate is taken over these
RETRY_UNKNOWN_S = 5.0  # before two queries have ended


# A query's token, why it is the last, and when it came; bare, for it is made while the worker waits.
_Token = tuple[Query, int, Finish | None, float]
_Iteration = tuple[worker_pb2.IterationResult, int]  # and its worker


class Ledger:
    """Keeps what happened until there is time to tell."""

    def __init__(self, metrics: Metrics, step_log: StepLog | None) -> None:
        self.metrics = metrics
        self._log = step_log
        self._outbox: list[_Token | _Iteration] = []
        self.num_iterations = 0
        self._has_backlog = False  # queries waited when the latest step was sent
        self._ends_s: deque[float] = deque(maxlen=ENDS_REMEMBERED)

    def submitted(self, query: Query, num_waiting: int) -> None:
        """Notes a new query."""
        self.metrics.input_tokens.observe(len(query.prompt))
        self.metrics.waiting.set(num_waiting)

    def ended(self, outcome: str) -> None:
        """Counts a query that ended so."""
        self.metrics.queries.labels(outcome).inc()

    def completed(self, query: Query) -> None:
        """Notes a query that its reader, who has seen its tokens so far, calls answered."""
        self.hand_out()
        query.stream.times.finished_s = time.monotonic()
        self._end(query, "stop")

    def pool(self, *, waiting: int, running: int, kv_used: int) -> None:
        """Shows how many queries wait and run, and the KV they hold."""
        self._has_backlog = waiting > 0
        self.metrics.waiting.set(waiting)
        self.metrics.pool.set(running)
        self.metrics.kv_used.set(kv_used)

    def arrived(self, result: worker_pb2.IterationResult, worker: int) -> int:
        """The index of this result's iteration. A step that had nothing left to do brings a result without one."""
        if result.shape.tokens:
            self._outbox.append((result, worker))
            self.num_iterations += 1
        return self.num_iterations - 1

    def token(self, query: Query, token: int, finish: Finish | None, received_s: float) -> None:
        """Keeps a token for its stream."""
        self._outbox.append((query, token, finish, received_s))

    def hand_out(self) -> None:
        """Tells everything kept so far."""
        kept, self._outbox = self._outbox, []
        for each in kept:
            if len(each) == 2:
                self._note_iteration(*each)
            else:
                self._hand_token(*each)

    def seconds_for(self, num_queries: float) -> float:
        """Seconds in which so many queries should end, at the present rate, and at least 1."""
        elapsed_s = self._ends_s[-1] - self._ends_s[0] if len(self._ends_s) > 1 else 0.0
        if elapsed_s <= 0:
            return RETRY_UNKNOWN_S
        return max(1.0, num_queries * elapsed_s / (len(self._ends_s) - 1))

    def _hand_token(self, query: Query, token: int, finish: Finish | None, now_s: float) -> None:
        times = query.stream.times
        if times.first_token_s is None:
            times.first_token_s = now_s
            self.metrics.first_token_s.observe(now_s - times.arrival_s)
            if times.encode_started_s is not None:
                self.metrics.queued_s.observe(times.encode_started_s - times.arrival_s)
        elif query.last_token_s is not None:
            self.metrics.inter_token_s.observe(now_s - query.last_token_s)
        query.last_token_s = now_s
        if finish is not None:
            times.finished_s = now_s
            self._end(query, finish)
        query.stream.push(TokenEvent(token, finish))

    def _end(self, query: Query, outcome: str) -> None:
        times = query.stream.times
        self.ended(outcome)
        assert times.encode_started_s is not None, f"query {query.id} ended before it began"
        assert times.first_token_s is not None, f"query {query.id} ended without a token"
        assert times.finished_s is not None, f"query {query.id} ended at no time"
        assert query.first_iteration is not None, f"query {query.id} began in no iteration"
        assert query.last_iteration is not None, f"query {query.id} ended in no iteration"
        self._ends_s.append(times.finished_s)
        self.metrics.answered(
            times.finished_s - times.encode_started_s, len(query.prompt), len(query.generated)
        )
        if self._log is not None:
            self._log.query(
                QueryRecord(
                    query=query.id,
                    input_tokens=len(query.prompt),
                    output_tokens=len(query.generated),
                    arrival_s=times.arrival_s,
                    encode_started_s=times.encode_started_s,
                    first_token_s=times.first_token_s,
                    finished_s=times.finished_s,
                    first_iteration=query.first_iteration,
                    last_iteration=query.last_iteration,
                )
            )

    def _note_iteration(self, result: worker_pb2.IterationResult, worker: int) -> None:
        self.metrics.iterated(
            shape_of(result.shape),
            result.clocks,
            worker=worker,
            is_last=result.last,
            has_backlog=self._has_backlog,
        )
        if result.evicted:
            self.metrics.evictions.inc(len(result.evicted))
        if self._log is not None:
            self._log.iteration(result, worker)
