"""From what a manifest asks for to a plan on this machine, and the workers that carry it out.

How large a profile must be depends on the plan, and the plan on the profile: sizes start at FIRST_QUERIES and grow
until the best schedule lies well inside. Weights and KV may take MEMORY_SHARE of the memory available now, less
RESERVE_BYTES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from exegpt_cli.cache import Cache
from exegpt_cli.foresee import promise
from exegpt_cli.output import progress, say
from exegpt_cli.placement import leave_to_workers, this_machine
from exegpt_cli.profiling import (
    BUDGET_S,
    WAITING,
    ProfiledWorkers,
    ProfileTarget,
    cached_table,
    forget,
    local_key,
)
from exegpt_cli.profiling import profile as measure
from exegpt_cli.simulated import Simulated
from exegpt_cli.wanted import Wanted
from exegpt_cli.workers import Workers
from exegpt_gateway.metrics import Promise
from exegpt_gateway.steering import Foreseen
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import NEAR_EDGE, Plan, make_plan
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import ProfileKey, ProfileTable
from exegpt_planner.workload import Workload
from exegpt_runner import identity

FIRST_QUERIES = 64  # in a decode; a bound of seconds on a CPU rarely allows more
PROMPTS_SHARE = 0.75  # of them encoded at once: in RRA with N_D near s99, B_E is most of the pool
GROWTHS = (1, 4, 16)  # of the sizes: 64, 256, 1024 queries; each costs a profile's time
GROWTH_BUDGET_S = (
    60.0  # of measuring where a smaller profile has just been measured: its samples are kept
)
MEMORY_SHARE = 0.5  # of what is available: the rest is for the page cache and whatever else runs
RUNTIME_BYTES = 1792 << 20  # of a worker without a model: torch, and freed memory that it keeps
RESERVE_BYTES = 256 << 20  # activations, tokenizer, gateway
GRAIN_BYTES = 256 << 20  # so that the budget, and the plan, do not change with every free page


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A plan, the step times it rests on, and the running workers that will carry it out."""

    wanted: Wanted
    table: ProfileTable
    plan: Plan
    workers: Workers


def as_planned(ready: Ready) -> Foreseen:
    """The planner's own plan, whose prediction is of these already."""
    return Foreseen(plan=ready.plan, promise=promise_of(ready))


def promise_of(ready: Ready) -> Promise:
    """What was promised, and how an answer of another length compares with it."""
    return promise(ready.plan, ready.table, ready.wanted.workload)


@contextmanager
def preparing(wanted: Wanted, cache: Cache) -> Iterator[Ready]:
    """A plan and its workers, which end with the block."""
    profiler = Profiler(wanted, cache)
    try:
        profiler.start()  # torch loads while the plan is made
        table, plan = plan_on_profile(wanted, profiler.table)
        yield Ready(
            wanted=wanted,
            table=table,
            plan=plan,
            workers=profiler.start(),
        )
    finally:
        profiler.stop()


@contextmanager
def planning(wanted: Wanted, cache: Cache) -> Iterator[Profiler]:
    """Profiles for plans; a worker runs only while something must be measured."""
    profiler = Profiler(wanted, cache)
    try:
        yield profiler
    finally:
        profiler.stop()


@dataclass(slots=True)
class Profiler:
    """Step times of one model on this machine, from the cache or from a worker started for it."""

    wanted: Wanted
    cache: Cache
    _workers: Workers | None = None
    _has_measured: bool = False

    def start(self) -> Workers:
        """The workers, started if they are not; from then on this thread leaves their cores alone."""
        if self._workers is None:
            placement = this_machine(self.wanted.num_workers)
            self._workers = Workers(placement).start()
            leave_to_workers(placement)
        return self._workers

    def stop(self) -> None:
        """End the workers, if there are any."""
        if self._workers is not None:
            self._workers.stop()

    @property
    def key(self) -> ProfileKey:
        """What the step times are filed under."""
        num_workers = self.wanted.num_workers
        threads = (
            self._workers.placement.threads
            if self._workers
            is not None  # this thread has left their cores, and would count too few
            else this_machine(num_workers).threads
        )
        dtype = self.wanted.deployment.spec.model.dtype
        return local_key(self.wanted.model, dtype, threads, num_workers)

    def forget(self) -> None:
        """Removes the profile on file, so that the next table is measured anew."""
        forget(self.key, self.cache, waiting=lambda: say(f"{WAITING} ..."))

    def table(self, coverage: Coverage) -> ProfileTable:
        """Times of steps up to `coverage`; measures only what no profile on file holds."""
        spec = self.wanted.deployment.spec.model
        key = self.key
        found = cached_table(key, coverage, self.cache)
        if found is not None:
            return found
        workers = self.start()
        with progress("Starting the workers" if key.workers > 1 else "Starting the worker"):
            workers.described()  # one that cannot start says why
        target = ProfileTarget(
            model_dir=self.wanted.folder, spec=self.wanted.model, dtype=spec.dtype
        )
        title = f"Profiling {spec.served_name} on {_devices(key)}"
        budget_s = GROWTH_BUDGET_S if self._has_measured else BUDGET_S
        self._has_measured = True
        with progress(title) as report:
            return measure(
                target,
                ProfiledWorkers(addresses=workers.addresses, token=workers.token),
                coverage,
                self.cache,
                report,
                budget_s=budget_s,
            )


def _devices(key: ProfileKey) -> str:
    each = f"{key.device}, {key.threads} thread(s)"
    return each if key.workers == 1 else f"{key.workers} workers of {each} each"


def coverage_for(workload: Workload, model_context: int, queries: int = FIRST_QUERIES) -> Coverage:
    """The largest steps to time for pools of up to `queries`; powers of two, so that profiles are shared."""
    prompts = math.ceil(queries * PROMPTS_SHARE)
    longest = min(model_context, workload.input.max + workload.output.max)
    encode_tokens = max(prompts * workload.input.mean, workload.input.max)
    return Coverage(
        decode_queries=_power(queries),
        context=_power(longest),
        encode_tokens=_power(encode_tokens),
        encode_chunks=_power(prompts),
        kv_tokens=_power(max(queries * (workload.input.mean + workload.output.mean), longest)),
    )


def _power(value: float) -> int:
    return 1 << math.ceil(math.log2(value))


def plan_on_profile(
    wanted: Wanted,
    table_of: Callable[[Coverage], ProfileTable],
    memory: MemoryBudget | None = None,
) -> tuple[ProfileTable, Plan]:
    """The best schedule, on a profile that reaches well beyond it; within this memory, or what there is now."""
    budget = memory_budget(wanted.num_workers) if memory is None else memory
    for growth in GROWTHS:
        queries = FIRST_QUERIES * growth
        table = table_of(coverage_for(wanted.workload, wanted.model.context, queries))
        try:
            plan = _plan(wanted, table, budget)
        except IncompleteProfile:
            if growth == GROWTHS[-1]:
                raise
            continue
        if Simulated(plan, table, wanted.workload).edge < NEAR_EDGE:
            break
    return table, plan


def _plan(wanted: Wanted, table: ProfileTable, budget: MemoryBudget) -> Plan:
    with progress("Planning"):
        return make_plan(
            table=table,
            model=wanted.model,
            workload=wanted.workload,
            bound=wanted.bound,
            memory=budget,
            strategies=wanted.strategies,
            workers=wanted.num_workers,
        )


def memory_budget(num_workers: int = 1) -> MemoryBudget:
    """What weights and KV of one of the workers may take of the memory that is available now."""
    limit = identity.memory_bytes() - num_workers * RUNTIME_BYTES  # a container's, or the machine's
    available = max(0, min(psutil.virtual_memory().available, limit))
    share = int(available * MEMORY_SHARE / num_workers) // GRAIN_BYTES * GRAIN_BYTES
    return MemoryBudget(device_bytes=share, reserve_bytes=RESERVE_BYTES)
