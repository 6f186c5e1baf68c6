"""What the conductor measures, under the names of docs/glossary.md; the registry is the caller's.

A completion of length L is comparable with the bound, which is for answers of length s99, once it is normalised:

    normalised_s = measured_s * predicted_s(s99) / predicted_s(L)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from exegpt_gateway.lengths_seen import LengthsSeen
from exegpt_gateway.speed import MachineSpeed
from exegpt_gateway.stage_times import Stage, StageTimes
from exegpt_planner.profile_table import ProfileTable, StepShape
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    Prediction,
    RraSchedule,
    StaticSchedule,
    WaaSchedule,
)
from exegpt_wire import worker_pb2

LENGTHS = tuple(2**power for power in range(18))  # tokens
BATCHES = tuple(2**power for power in range(12))  # queries
STEPS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ANSWERS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
ANSWERS_REMEMBERED = 1000  # the share within the bound is of the latest so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What was promised of the schedule, and how to compare an answer of any length with it."""

    bound_s: float
    prediction: Prediction
    table: ProfileTable
    normalise: Callable[[int], float | None]  # output tokens -> predicted(s99) / predicted(L)


class Metrics:
    """All metrics of one conductor."""

    def __init__(self, registry: CollectorRegistry, promise: Promise | None = None) -> None:
        self.registry = registry
        self._promise: Promise | None = None
        self._within: deque[bool] = deque(maxlen=ANSWERS_REMEMBERED)
        self._stages = StageTimes()
        self.lengths = LengthsSeen()
        self._lengths_and_queue(registry)
        self._batches_and_steps(registry)
        self._knobs(registry)
        self._answers(registry)
        self._transfers(registry)
        if promise is not None:
            self._promise_gauges(registry)
            self._beside_table(registry)
            self._speed = MachineSpeed(promise.table.kernel_s)
            self.promised(promise)

    def promised(self, promise: Promise) -> None:
        """Holds what comes from now against `promise`, which is on the table of the first one."""
        self._promise, expected = promise, promise.prediction
        self.forget_observed()
        self.bound_s.set(promise.bound_s)
        self.promised_s.set(expected.promised_s)
        self.predicted_latency_s.set(expected.latency_mean_s)
        self.predicted_queries_per_s.set(expected.queries_per_s)
        self.predicted_tokens_per_s.set(expected.tokens_per_s)

    def forget_observed(self) -> None:
        """Begins anew to observe lengths and whether answers keep the bound."""
        self._within.clear()
        self.lengths.clear()

    def in_force(self, schedule: AnySchedule, revision: int = 1) -> None:
        """Shows the knobs of a schedule; those that it does not have are 0."""
        self._stages.clear()
        self.stage_variation.clear()
        self.schedule_revision.set(revision)
        encode_batch = pool = interval = chunk_tokens = 0
        match schedule:
            case RraSchedule():
                encode_batch, interval = schedule.encode_batch, schedule.encode_interval
            case CraSchedule():
                pool, chunk_tokens = schedule.pool, schedule.chunk_tokens
            case StaticSchedule():
                encode_batch = pool = schedule.batch
            case OrcaSchedule():
                encode_batch, pool, interval = 1, schedule.pool, 1
            case WaaSchedule():
                encode_batch, pool = schedule.encode_batch, schedule.pool
        self.schedule_encode_batch.set(encode_batch)
        self.schedule_decode_batch.set(pool)
        self.schedule_encode_interval.set(interval)
        self.schedule_chunk_tokens.set(chunk_tokens)

    @property
    def within(self) -> tuple[int, int]:
        """(of the latest answers, normalised to the bound's length, those that kept it; all of them)."""
        return sum(self._within), len(self._within)

    def answered(self, completion_s: float, input_tokens: int, output_tokens: int) -> None:
        """Notes an answer that came to its end, `completion_s` after its encode started."""
        self.lengths.note(input_tokens, output_tokens)
        self.output_tokens.observe(output_tokens)
        self.completion_s.observe(completion_s)
        if self._promise is None:
            return
        ratio = self._promise.normalise(output_tokens)
        if ratio is None:
            return
        self.normalised_s.observe(completion_s * ratio)
        self._within.append(completion_s * ratio <= self._promise.bound_s)
        self.within_share.set(sum(self._within) / len(self._within))

    def iterated(
        self,
        shape: StepShape,
        clocks: worker_pb2.Clocks,
        *,
        worker: int = 0,
        is_last: bool = True,
        has_backlog: bool = False,
    ) -> None:
        """Notes an iteration of a worker: its batch, its time, and what the profile says of it."""
        kind: Stage = "mixed" if shape.encode_chunks and shape.decode_queries else "decode"
        if shape.encode_chunks:
            self.encode_batch.observe(shape.encode_chunks)
            kind = kind if shape.decode_queries else "encode"
        if shape.decode_queries:
            self.decode_batch.observe(shape.decode_queries)
        self.iteration_s.labels(kind).observe(clocks.wall_s)
        unslowed_s = self._beside_profile(shape, clocks)
        self._stages.note(kind, unslowed_s, worker=worker, is_last=is_last, counts=has_backlog)
        if (kind != "decode" or is_last) and (strays := self._stages.variation(kind)) is not None:
            self.stage_variation.labels(kind).set(strays)

    def _beside_profile(self, shape: StepShape, clocks: worker_pb2.Clocks) -> float:
        """The iteration's time at the machine's speed while profiling; its wall time where that is not known."""
        if self._promise is None or not clocks.kernel_s:  # without a reading nothing is comparable
            return clocks.wall_s
        table = self._promise.table
        slowdown = self._speed.slowdown(clocks.kernel_s)
        # As the profile was measured.
        clock_s = clocks.cpu_s if table.key.threads == 1 else clocks.wall_s
        self.unslowed_s.inc(clock_s / slowdown)
        self.predicted_s.inc(table.step_s(shape))
        self.slowdown.set(slowdown)
        return clock_s / slowdown

    def handed(self, handed: worker_pb2.Handed) -> None:
        """Notes how a hand-over of KV ended."""
        if handed.reason:
            self.kv_failures.labels(handed.reason).inc()
            return
        self.kv_bytes.inc(handed.num_bytes)
        self.kv_transfer_s.observe(handed.seconds)
        self.kv_exposed_s.observe(handed.exposed_s)

    def _lengths_and_queue(self, registry: CollectorRegistry) -> None:
        self.input_tokens = Histogram(
            "exegpt_input_tokens", "Prompt length", buckets=LENGTHS, registry=registry
        )
        self.output_tokens = Histogram(
            "exegpt_output_tokens", "Output length", buckets=LENGTHS, registry=registry
        )
        self.queries = Counter(
            "exegpt_queries",
            "Queries by how they ended: stop, length, cancelled, refused, failed",
            ["outcome"],
            registry=registry,
        )
        self.waiting = Gauge(
            "exegpt_waiting_queries", "Queries that wait for their encode", registry=registry
        )
        self.pool = Gauge("exegpt_pool_queries", "Queries in encode or decode", registry=registry)

    def _batches_and_steps(self, registry: CollectorRegistry) -> None:
        self.encode_batch = Histogram(
            "exegpt_encode_batch_queries",
            "Prompts and chunks in an iteration that encodes",
            buckets=BATCHES,
            registry=registry,
        )
        self.decode_batch = Histogram(
            "exegpt_decode_batch_queries",
            "Queries in an iteration that decodes",
            buckets=BATCHES,
            registry=registry,
        )
        self.cycle_s = Histogram(
            "exegpt_cycle_seconds",
            "From deciding on a step to its last result; in RRA, of steps that encode",
            buckets=ANSWERS_S,
            registry=registry,
        )
        self.iteration_s = Histogram(
            "exegpt_iteration_seconds",
            "One iteration in the worker, by kind: encode, decode, mixed",
            ["kind"],
            buckets=STEPS_S,
            registry=registry,
        )
        self.stage_variation = Gauge(
            "exegpt_stage_time_variation_ratio",
            "Standard deviation over mean of the latest stages' times under a backlog, by kind: encode, decode, mixed",
            ["kind"],
            registry=registry,
        )
        self.kv_used = Gauge("exegpt_kv_used_tokens", "KV tokens held", registry=registry)
        self.kv_capacity = Gauge(
            "exegpt_kv_capacity_tokens", "KV tokens the worker can hold", registry=registry
        )
        self.evictions = Counter(
            "exegpt_evictions", "Queries evicted and encoded again", registry=registry
        )
        self.worker_restarts = Counter(
            "exegpt_worker_restarts", "Workers lost and connected again", registry=registry
        )

    def _knobs(self, registry: CollectorRegistry) -> None:
        self.schedule_encode_batch = Gauge(
            "exegpt_schedule_encode_batch_queries", "B_E in force", registry=registry
        )
        self.schedule_decode_batch = Gauge(
            "exegpt_schedule_decode_batch_queries", "B_D in force", registry=registry
        )
        self.schedule_encode_interval = Gauge(
            "exegpt_schedule_encode_interval_iterations", "N_D in force", registry=registry
        )
        self.schedule_chunk_tokens = Gauge(
            "exegpt_schedule_chunk_tokens", "C in force", registry=registry
        )
        self.schedule_revision = Gauge(
            "exegpt_schedule_revision", "Schedules that have been in force", registry=registry
        )

    def _transfers(self, registry: CollectorRegistry) -> None:
        self.kv_bytes = Counter(
            "exegpt_kv_transfer_bytes", "KV handed from encoders to decoders", registry=registry
        )
        self.kv_transfer_s = Histogram(
            "exegpt_kv_transfer_seconds",
            "One hand-over, from its first byte to the receiver's acknowledgement",
            buckets=STEPS_S,
            registry=registry,
        )
        self.kv_exposed_s = Histogram(
            "exegpt_kv_transfer_exposed_seconds",
            "Of a hand-over, what came after the end of the encode",
            buckets=STEPS_S,
            registry=registry,
        )
        self.kv_failures = Counter(
            "exegpt_kv_transfer_failures",
            "Hand-overs that failed, their queries encoded again, by reason",
            ["reason"],
            registry=registry,
        )

    def _answers(self, registry: CollectorRegistry) -> None:
        self.queued_s = Histogram(
            "exegpt_queued_seconds",
            "From arrival to the start of the encode",
            buckets=ANSWERS_S,
            registry=registry,
        )
        self.first_token_s = Histogram(
            "exegpt_first_token_seconds",
            "From arrival to the first output token",
            buckets=ANSWERS_S,
            registry=registry,
        )
        self.inter_token_s = Histogram(
            "exegpt_inter_token_seconds",
            "Between two output tokens of a query",
            buckets=STEPS_S,
            registry=registry,
        )
        self.completion_s = Histogram(
            "exegpt_completion_seconds",
            "From the start of the encode to the last token",
            buckets=ANSWERS_S,
            registry=registry,
        )
        self.normalised_s = Histogram(
            "exegpt_normalised_latency_seconds",
            "Completion, normalised to an answer of length s99",
            buckets=ANSWERS_S,
            registry=registry,
        )
        self.within_share = Gauge(
            "exegpt_within_bound_ratio",
            "Share of the latest answers whose normalised latency keeps the bound",
            registry=registry,
        )

    def _beside_table(self, registry: CollectorRegistry) -> None:
        self.slowdown = Gauge(
            "exegpt_machine_slowdown_ratio",
            "Time for the same work now / while profiling, by the calibration kernel",
            registry=registry,
        )
        self.unslowed_s = Counter(
            "exegpt_unslowed_iteration_seconds",
            "What the iterations would have taken at the machine's speed while profiling",
            registry=registry,
        )
        self.predicted_s = Counter(
            "exegpt_predicted_iteration_seconds",
            "What the profile says of the iterations",
            registry=registry,
        )

    def _promise_gauges(self, registry: CollectorRegistry) -> None:
        self.bound_s = Gauge("exegpt_bound_seconds", "The latency bound", registry=registry)
        self.promised_s = Gauge(
            "exegpt_promised_latency_seconds",
            "Promised 99th percentile latency of an answer of length s99",
            registry=registry,
        )
        self.predicted_latency_s = Gauge(
            "exegpt_predicted_latency_seconds",
            "Predicted mean latency of an answer of length s99",
            registry=registry,
        )
        self.predicted_queries_per_s = Gauge(
            "exegpt_predicted_queries_per_second",
            "Predicted throughput under a saturated backlog",
            registry=registry,
        )
        self.predicted_tokens_per_s = Gauge(
            "exegpt_predicted_tokens_per_second",
            "Predicted output tokens per second",
            registry=registry,
        )
