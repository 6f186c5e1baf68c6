"""One run of the comparison: `exegpt bench`'s load on one server in a closed loop, read by two clocks.

*From its start*: an answer's time from the start of its encode, where the server says when that was. *From sending*:
as the client sees it, for every server. A closed loop holds a constant number of queries in flight, each followed by
the next: with as many as the engine works on at once, sending is the start but for the iteration under way.

Beside each run: the calibration kernel on the engine's core, before and after it, and what both sides' cores did
meanwhile. The load shares its cores with the servers' HTTP side, so `front_busy` near 1 means a figure of the load.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from exegpt_cli.bench.client import Answer, Target
from exegpt_cli.bench.load import Limits
from exegpt_cli.bench.report import tokens_between
from exegpt_cli.bench.run import LoadPlan, Outcome, run_load
from exegpt_cli.bench.stats import percentile
from exegpt_cli.placement import Placement
from exegpt_planner.workload import Workload
from exegpt_runner.clocks import CalibrationKernel

SETTLING = 1.5  # warm-up, in latencies of an s99 answer, as in exegpt bench
LEAST_WARM_UP_S = 2.0
KERNELS = 5  # readings of the calibration kernel, of which the median counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What is sent."""

    workload: Workload  # probes mixed in
    s99: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run showed after its warm-up."""

    engine: str
    in_flight: int
    window_s: float
    tokens_per_s: float
    num_queries: int
    num_failed: int
    first_error: str | None
    wrong_lengths: int  # answers of another length than asked for
    from_start_s: tuple[float, ...]  # s99 answers; empty where the server doesn't say
    from_sending_s: tuple[float, ...]
    kernel_s: float
    engine_busy: float  # share of its cores' time that was not idle
    front_busy: float
    stolen: float  # share of all cores' time that the hypervisor gave to others

    @property
    def settled_s(self) -> float:
        """The mean latency of an s99 answer, from sending."""
        return statistics.mean(self.from_sending_s) if self.from_sending_s else self.window_s


class Loader:
    """Runs loads from the cores that serve, and calibrates on those that compute."""

    def __init__(self, law: Law, placement: Placement) -> None:
        self._law, self._placement = law, placement
        torch.set_num_threads(1)  # the kernel is of one thread, as one pinned to its core must be
        self._kernel = CalibrationKernel(threads=1)
        self._seed = 0

    def run(
        self, engine: str, target: Target, *, in_flight: int, settle_s: float, window_s: float
    ) -> Run:
        """One run; `settle_s` is what an s99 answer is expected to take."""
        warm_up_s = max(LEAST_WARM_UP_S, SETTLING * settle_s)
        self._seed += 1
        plan = LoadPlan(
            target=target,
            metrics_url=None,
            workload=self._law.workload,
            vocab=self._law.vocab,
            seed=self._seed,
            in_flight=in_flight,
            rate_per_s=None,
            warm_up_s=warm_up_s,
            limits=Limits(duration_s=warm_up_s + window_s),
        )
        before_s = self.calibrate()
        cores = _Cores(self._placement)
        load = asyncio.run(_loaded(plan, cores)).load
        kernel_s = (before_s + self.calibrate()) / 2
        begin_s, end_s = load.started_s + warm_up_s, load.stopped_s
        done = [
            each for each in load.answers if each.ok and begin_s <= (each.finished_s or 0) <= end_s
        ]
        longest = [each for each in done if each.query.output_tokens == self._law.s99]
        failed = [each.error for each in load.answers if each.error is not None]
        return Run(
            engine=engine,
            in_flight=in_flight,
            window_s=end_s - begin_s,
            tokens_per_s=tokens_between(load.answers, begin_s, end_s) / (end_s - begin_s),
            num_queries=len(done),
            num_failed=len(failed),
            first_error=failed[0] if failed else None,
            wrong_lengths=sum(each.completion_tokens != each.query.output_tokens for each in done),
            from_start_s=_from_start(longest),
            from_sending_s=tuple((each.finished_s or 0.0) - each.sent_s for each in longest),
            kernel_s=kernel_s,
            **cores.shares(),
        )

    def calibrate(self) -> float:
        """Seconds of the calibration kernel on the cores that compute, now."""
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._placement.worker_cores[0])
        try:
            return statistics.median(self._kernel.run() for _ in range(KERNELS))
        finally:
            os.sched_setaffinity(0, here)


async def _loaded(plan: LoadPlan, cores: _Cores) -> Outcome:
    """The load, with the cores read from the end of its warm-up to the end of its window."""

    async def read() -> None:
        await asyncio.sleep(plan.warm_up_s)
        cores.begin()
        await asyncio.sleep(plan.limits.duration_s - plan.warm_up_s)
        cores.end()

    reading = asyncio.create_task(read())
    try:
        return await run_load(plan, _unheard)
    finally:
        reading.cancel()


def _unheard(done: float, total: float, doing: str = "") -> None:
    """Nobody watches a run's progress."""


def _from_start(answers: Sequence[Answer]) -> tuple[float, ...]:
    times = [each.server_completion_s for each in answers]
    return tuple(each for each in times if each is not None) if None not in times else ()


def p99(latencies_s: Sequence[float]) -> float | None:
    """The 99th percentile; of fewer than a hundred answers the longest."""
    return percentile(list(latencies_s), 0.99) if latencies_s else None


class _Cores:
    """What the cores do between two moments."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.begin()
        self._end = self._begin

    def begin(self) -> None:
        self._begin = psutil.cpu_times(percpu=True)

    def end(self) -> None:
        self._end = psutil.cpu_times(percpu=True)

    def shares(self) -> dict[str, float]:
        every = self._placement.worker_cores[0] + self._placement.other_cores
        return {
            "engine_busy": 1 - self._share("idle", self._placement.worker_cores[0]),
            "front_busy": 1 - self._share("idle", self._placement.other_cores),
            "stolen": self._share("steal", every),
        }

    def _share(self, kind: str, cores: Sequence[int]) -> float:
        part = sum(
            getattr(self._end[core], kind) - getattr(self._begin[core], kind) for core in cores
        )
        total = sum(sum(self._end[core][:8]) - sum(self._begin[core][:8]) for core in cores)
        return part / total if total else 0.0
