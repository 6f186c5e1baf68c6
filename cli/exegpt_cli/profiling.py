"""A profile table of one model on this machine: from the cache, or measured by the worker that will serve.

Kept under the profile's key (model shape, device, dtype, threads, versions). What is measured is recorded step by
step, so an interrupted profile continues; when a workload needs larger steps than were covered, sizes double and
only the new design is measured, beside the old samples. One process measures at a time; others wait and share the
table.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from exegpt_cli.cache import Cache, writing
from exegpt_cli.profile_assembly import table_from
from exegpt_cli.profile_client import ProfileClient, connected
from exegpt_cli.profile_companions import BESIDE, busy, kind_of, usual
from exegpt_cli.profile_hand_over import hand_over_curves
from exegpt_cli.profile_overheads import overheads
from exegpt_cli.profile_samples import (
    MeasuredStep,
    clock,
    merge,
    read_steps,
    record,
    spread,
    timings,
)
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.profile_design import Coverage, DesignedStep, design
from exegpt_planner.profile_table import ProfileKey, ProfileTable, StepShape
from exegpt_planner.strict import M, StrictModel, read_json
from exegpt_wire import worker_pb2

Progress = Callable[[int, int, str], None]  # steps done, of how many, what is going on

WAITING = "another process measures this profile; waiting for it"
NUM_STEPS = 240  # held-out errors no longer fall beyond, on the demo model
FEWEST_STEPS = 80  # measured even when time is over
BUDGET_S = 100.0  # of measuring; half of it left a 30-layer model with 80 steps, and predictions 25 % too fast
FIRST_SWEEP_SHARE = 0.6  # of the budget: the rest repeats measurements
BATCH = 16  # steps in one request
REPEAT_BELOW_S = 0.25  # longer steps average over more by themselves
OUTLIER = 0.06  # repeat while the measurements of a step differ by more
TIMINGS, MOST_TIMINGS = 2, 4
HELD_OUT_TIMINGS = 7  # what is wanted of these is the table's error, not one measurement's
LONG_HELD_OUT_TIMINGS = 3
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTarget:
    """What is profiled."""

    model_dir: Path
    spec: ModelSpec
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledWorkers:
    """Where the workers are that will serve, and the token they ask for."""

    addresses: Sequence[str]
    token: str | None = None


class _Covered(StrictModel):
    """What a key's steps cover."""

    coverage: Coverage  # being measured, or finished
    finished: tuple[Coverage, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a key's files lie."""

    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "table.json"

    @property
    def steps(self) -> Path:
        return self.folder / "steps.jsonl"

    @property
    def covered(self) -> Path:
        return self.folder / "coverage.json"


def local_key(spec: ModelSpec, dtype: str, threads: int, workers: int = 1) -> ProfileKey:
    """The key that a worker of this machine will have, beside others, without starting one."""
    from exegpt_runner import identity

    return ProfileKey(
        model_fingerprint=spec.fingerprint,
        device=identity.device(),
        dtype=dtype,
        threads=threads,
        versions=identity.versions(),
        workers=workers,
    )


def cached_table(key: ProfileKey, coverage: Coverage, cache: Cache) -> ProfileTable | None:
    """The table on file for `key`, if it covers `coverage`."""
    place = _place(key, cache)
    try:
        table = _read(ProfileTable, place.table)
    except Unavailable as error:
        if isinstance(error.__context__, FileNotFoundError):
            return None  # never measured, or forgotten this moment
        raise
    return table if table.covers(coverage.largest) else None


def keep_table(table: ProfileTable, cache: Cache) -> None:
    """Puts `table` on file under its key, where `cached_table` finds it."""
    place = _place(table.key, cache)
    cache.folder("profiles", place.folder.name)
    _keep(cache, place.table, table)


def forget(key: ProfileKey, cache: Cache, *, waiting: Callable[[], None]) -> None:
    """Removes all that was measured under `key`; calls `waiting` if another process is at it.

    The samples go last, so that a crash leaves what an interrupted profile leaves: never a table or a finished
    coverage without the samples behind it.
    """
    place = _place(key, cache)
    with cache.locked(place.table, waiting=waiting), writing(place.folder):
        for path in (place.table, place.covered, place.steps):
            path.unlink(missing_ok=True)


def profile(
    target: ProfileTarget,
    workers: ProfiledWorkers,
    coverage: Coverage,
    cache: Cache,
    progress: Progress = lambda done, total, what: None,  # noqa: ARG005 (the callback's signature)
    *,
    budget_s: float = BUDGET_S,
) -> ProfileTable:
    """The table that covers `coverage`; measures only what the cache lacks, for `budget_s` or a little longer.

    The last worker is measured, the others keep busy as they will in serving.
    """
    return asyncio.run(_profile(target, workers, coverage, cache, progress, budget_s))


async def _profile(
    target: ProfileTarget,
    workers: ProfiledWorkers,
    coverage: Coverage,
    cache: Cache,
    progress: Progress,
    budget_s: float,
) -> ProfileTable:
    async with AsyncExitStack() as stack:
        *companions, client = [
            await stack.enter_async_context(connected(address, workers.token))
            for address in workers.addresses
        ]
        for each in companions:
            await each.describe()
        worker = await client.describe()
        key = ProfileKey(
            model_fingerprint=target.spec.fingerprint,
            device=worker.device,
            dtype=target.dtype,
            threads=worker.threads,
            versions=dict(worker.versions),
            workers=len(workers.addresses),
        )
        place = _place(key, cache)
        with cache.locked(place.table, waiting=lambda: progress(0, 0, WAITING)):
            table = cached_table(key, coverage, cache)
            if table is not None:
                return table
            covered = _covered(place, coverage)
            run = _Run(client, companions, cache, place, key, progress, workers.token, budget_s)
            return await run.measure(target, covered)


@dataclass(frozen=True, slots=True)
class _Run:
    """One measuring of one key."""

    client: ProfileClient
    companions: Sequence[ProfileClient]
    cache: Cache
    place: _Place
    key: ProfileKey
    progress: Progress
    token: str | None
    budget_s: float

    async def measure(self, target: ProfileTarget, covered: _Covered) -> ProfileTable:
        """Measures the steps that are missing and writes the table."""
        self.progress(0, NUM_STEPS, "loading the model")
        coverage = covered.coverage
        _keep(self.cache, self.place.covered, covered)
        for each in self.companions:
            await each.configure(target.model_dir, target.dtype, coverage)
        served = await self.client.configure(target.model_dir, target.dtype, coverage)
        steps = await self._measure_steps(covered)
        curves = None
        if self.companions:
            self.progress(NUM_STEPS, NUM_STEPS, "timing hand-overs")
            curves = await hand_over_curves(
                self.companions[0], self.client, coverage.encode_tokens, threads=self.key.threads
            )
        self.progress(NUM_STEPS, NUM_STEPS, "timing messages")
        crowd = min(32, coverage.decode_queries)
        encodes = usual(design(coverage, seed=_SEED, num_steps=NUM_STEPS), "encode")
        async with busy(self.companions, encodes):
            beside = await overheads(self.client.address, served, crowd, self.token)
        table = table_from(self.key, target.spec.num_layers, steps, coverage.largest, beside)
        table = table.model_copy(update={"hand_over": curves})
        keep_table(table, self.cache)
        finished = (*covered.finished, coverage)
        covered = covered.model_copy(update={"finished": finished})
        _keep(self.cache, self.place.covered, covered)
        return table

    async def _measure_steps(self, covered: _Covered) -> list[MeasuredStep]:
        """All steps on file, after those are added that no finished coverage includes.

        In sweeps over the whole design, so that a step's measurements lie far apart: a neighbour's busy minute
        spoils none of them. The first sweep settles how many steps there are; in the others, those that judge the
        fit come first.
        """
        name = _design_name(covered.coverage)
        designed = [
            step
            for step in design(covered.coverage, seed=_SEED, num_steps=NUM_STEPS)
            if not any(old.includes(step) for old in covered.finished)
        ]
        measured = {(step.design, step.id): step for step in read_steps(self.place.steps)}
        begin_s = time.monotonic()
        for sweep in range(HELD_OUT_TIMINGS):
            share = 1.0 if sweep else FIRST_SWEEP_SHARE
            again = [
                step
                for step in designed
                if _needs(sweep + 1, measured.get((name, step.id)), self.key.threads)
            ]
            again.sort(key=lambda step: bool(sweep) and not step.held_out)
            while again:
                done = len(designed) - len(again)
                is_late = time.monotonic() > begin_s + share * self.budget_s
                if is_late and (sweep or done >= FEWEST_STEPS):
                    break
                what = f"timing steps, sweep {sweep + 1}" if sweep else "timing steps"
                self.progress(done, len(designed), what)
                batch, again = again[:BATCH], again[BATCH:]
                for part, companion_steps in self._parts(batch, designed):
                    async with busy(self.companions, companion_steps):
                        found = await self._measure_batch(part, name, sweep)
                    record(self.cache, self.place.steps, found)
                    merge(measured, found)
            designed = [step for step in designed if (name, step.id) in measured]
        return list(measured.values())

    def _parts(
        self, batch: Sequence[DesignedStep], designed: Sequence[DesignedStep]
    ) -> Iterator[tuple[Sequence[DesignedStep], Sequence[DesignedStep]]]:
        """The batch by kind, each with what the companions do beside it; whole where there are none."""
        if not self.companions:
            yield batch, ()
            return
        for kind, beside in BESIDE.items():
            if part := [step for step in batch if kind_of(step) == kind]:
                yield part, usual(designed, beside)

    async def _measure_batch(
        self, batch: Sequence[DesignedStep], name: str, sweep: int
    ) -> list[MeasuredStep]:
        """Every step of `batch` once."""
        measurements = await self.client.measure(
            batch, warm_up=1, seed=batch[0].id * HELD_OUT_TIMINGS + sweep
        )
        return [
            MeasuredStep(
                design=name,
                id=step.id,
                held_out=step.held_out,
                shape=_shape_of(measurement.shape),
                timings=(timing,),
            )
            for step, measurement, timing in zip(
                batch, measurements, timings(measurements), strict=True
            )
        ]


def _needs(num_timings: int, step: MeasuredStep | None, threads: int) -> bool:
    """Whether a step is to be measured up to `num_timings` times: the first of these if it has fewer."""
    if step is None:
        return True
    if len(step.timings) >= num_timings:
        return False
    if clock(step.timings[0], threads) > REPEAT_BELOW_S:
        return step.held_out and num_timings <= LONG_HELD_OUT_TIMINGS
    if step.held_out or num_timings <= TIMINGS:
        return True
    return num_timings <= MOST_TIMINGS and spread(step.timings, threads=threads) > OUTLIER


def _covered(place: _Place, needed: Coverage) -> _Covered:
    """What to cover: what is needed, or what was covered before, doubled until it holds that."""
    if not place.covered.exists():
        return _Covered(coverage=needed)
    before = _read(_Covered, place.covered)
    return before.model_copy(update={"coverage": before.coverage.grown(needed)})


def _read(model: type[M], path: Path) -> M:
    try:
        return read_json(model, path)
    except InvalidSpec as error:
        problem = f"{error}. Delete {path.parent}; the profile is measured again."
        raise Unavailable(problem) from None


def _shape_of(message: worker_pb2.Shape) -> StepShape:
    return StepShape(
        tokens=message.tokens,
        decode_queries=message.decode_queries,
        decode_context=message.decode_context,
        encode_chunks=message.encode_chunks,
        encode_pairs=message.encode_pairs,
        sampled=message.sampled,
    )


def _design_name(coverage: Coverage) -> str:
    return "-".join(str(value) for value in asdict(coverage).values())


def _place(key: ProfileKey, cache: Cache) -> _Place:
    text = json.dumps(key.model_dump(), sort_keys=True)  # a map off the wire has any order
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return _Place(cache.root / "profiles" / f"{key.model_fingerprint}-{digest}")


def _keep(cache: Cache, path: Path, value: StrictModel) -> None:
    cache.write(path, (value.model_dump_json(indent=1) + "\n").encode())
