"""A profiled worker for benchmarks: supervised, placed and profiled as by `exegpt serve`, without a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.model_source import resolve
from exegpt_cli.output import progress, say
from exegpt_cli.placement import leave_to_worker, this_machine
from exegpt_cli.profiling import ProfileTarget, profile
from exegpt_cli.supervisor import Supervisor, worker_command
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
    """A running worker, its model and its table."""

    address: str
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
def profiled(name: str, loads: Sequence[Workload]) -> Iterator[Profiled]:
    """A worker for model `name` with a profile that covers `loads`; it ends with the block."""
    cache = Cache.of_user()
    folder = model_folder(name, cache)
    spec = read_model_spec(folder)
    placement = this_machine()
    with Supervisor(worker_command(placement)) as supervisor:
        supervisor.described()
        leave_to_worker(placement)
        with progress(f"Profiling {name}") as bar:
            table = profile(
                ProfileTarget(model_dir=folder, spec=spec, dtype=DTYPE),
                supervisor.address,
                coverage_of(loads),
                cache,
                lambda done, total, _what: bar(done, total),
                budget_s=PROFILE_S,
            )
        yield Profiled(address=supervisor.address, folder=folder, spec=spec, table=table)


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
