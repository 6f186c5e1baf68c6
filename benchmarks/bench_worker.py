"""Profiled workers for benchmarks: supervised, placed and profiled as by `exegpt serve`, without a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.model_source import resolve
from exegpt_cli.output import progress, say
from exegpt_cli.placement import leave_to_workers, this_machine
from exegpt_cli.profiling import ProfiledWorkers, ProfileTarget, profile
from exegpt_cli.workers import Workers
from exegpt_planner.model_spec import ModelSpec, read_model_spec
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.workload import Workload
from points import write_random_llama

DEMO = "demo://smollm2-135m-instruct"
DTYPE = "bfloat16"
MOST_QUERIES = 96  # decode queries covered: beyond, more of them no longer raise throughput here
MOST_ENCODE_TOKENS = 2048
PROFILE_S = 180.0  # long enough for the whole design on a slow core


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Running workers, their model and their table."""

    workers: Workers
    folder: Path
    spec: ModelSpec
    table: ProfileTable


def model_folder(name: str, cache: Cache) -> Path:
    """The folder of "demo", of "random", or of a path."""
    match name:
        case "demo":
            return resolve(DEMO, "main", cache, say=say)
        case "random":
            return write_random_llama(cache.folder("bench-random-llama"))
        case path:
            return Path(path)


@contextmanager
def profiled(name: str, loads: Sequence[Workload], num_workers: int = 1) -> Iterator[Profiled]:
    """Workers for model `name` with a profile that covers `loads`; they end with the block."""
    cache = Cache.of_user()
    folder = model_folder(name, cache)
    spec = read_model_spec(folder)
    placement = this_machine(num_workers)
    with Workers(placement) as workers:
        workers.described()
        leave_to_workers(placement)
        with progress(f"Profiling {name}, {num_workers} worker(s)") as bar:
            table = profile(
                ProfileTarget(model_dir=folder, spec=spec, dtype=DTYPE),
                ProfiledWorkers(addresses=workers.addresses, token=workers.token),
                coverage_of(loads),
                cache,
                lambda done, total, _what: bar(done, total),
                budget_s=PROFILE_S,
            )
        yield Profiled(workers=workers, folder=folder, spec=spec, table=table)


def coverage_of(loads: Sequence[Workload]) -> Coverage:
    """Steps of all these workloads, with room for pools beyond the best."""
    context = max(load.input.max + load.output.max for load in loads)
    return Coverage(
        decode_queries=MOST_QUERIES,
        context=context,
        encode_tokens=MOST_ENCODE_TOKENS,
        encode_chunks=MOST_QUERIES,
        kv_tokens=MOST_QUERIES * context // 2,
    )
