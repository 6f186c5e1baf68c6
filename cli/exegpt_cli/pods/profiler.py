"""A profiling pod: measures step times beside as many workers as will serve, and keeps the table until it was taken.

Grows the profile until the best schedule for the manifest's lengths lies well inside, as `exegpt serve` does; where no
schedule keeps the bound, the table as it is says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio

from exegpt_cli.cache import Cache
from exegpt_cli.local import memory_budget, plan_on_profile
from exegpt_cli.placement import Placement, leave_to_workers
from exegpt_cli.profiling import ProfiledWorkers, ProfileTarget, profile
from exegpt_cli.wanted import Wanted
from exegpt_cli.workers import Workers
from exegpt_planner.bound import Bound
from exegpt_planner.errors import ExeGPTError, InfeasibleBound
from exegpt_planner.manifest import Deployment
from exegpt_planner.model_spec import read_model_spec
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.strict import parse, read_json_object
from exegpt_planner.workload import read_workload
from exegpt_wire import GRPC_OPTIONS, profiler_pb2
from exegpt_wire.profiler_pb2_grpc import ProfilerServicer, add_ProfilerServicer_to_server
from exegpt_wire.token import AioTokenInterceptor, read_token

Context = aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class _Work:
    """How far it is; written by the measuring thread, read by the service."""

    reply: profiler_pb2.ProgressReply = field(default_factory=profiler_pb2.ProgressReply)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, **fields: Any) -> None:
        with self.lock:
            for name, value in fields.items():
                setattr(self.reply, name, value)

    def now(self) -> profiler_pb2.ProgressReply:
        with self.lock:
            copy = profiler_pb2.ProgressReply()
            copy.CopyFrom(self.reply)
            return copy


class _Service(ProfilerServicer):
    def __init__(self, work: _Work, taken: asyncio.Event) -> None:
        self._work, self._taken = work, taken

    async def Progress(  # noqa: N802 - the service's name
        self, request: profiler_pb2.ProgressRequest, context: Context
    ) -> profiler_pb2.ProgressReply:
        del request, context
        return self._work.now()

    async def Taken(  # noqa: N802 - the service's name
        self, request: profiler_pb2.TakenRequest, context: Context
    ) -> profiler_pb2.TakenReply:
        del request, context
        self._taken.set()
        return profiler_pb2.TakenReply()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and waits until that was taken; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return asyncio.run(_run(options, read_token(options.token_file)))
    except ExeGPTError as error:
        print(f"exegpt profiler: {error}", file=sys.stderr)
        return error.exit_code


async def _run(options: argparse.Namespace, token: str) -> int:
    work, taken = _Work(), asyncio.Event()
    server = aio.server(options=list(GRPC_OPTIONS), interceptors=[AioTokenInterceptor(token)])
    add_ProfilerServicer_to_server(_Service(work, taken), server)
    server.add_insecure_port(options.listen)
    await server.start()
    try:
        await asyncio.to_thread(_measure, options, work)
    except ExeGPTError as error:
        print(f"exegpt profiler: {error}", file=sys.stderr)
        work.note(problem=str(error))
    try:
        async with asyncio.timeout(options.wait):
            await taken.wait()
    except TimeoutError:
        print("exegpt profiler: nobody came for the table", file=sys.stderr)
        return 1
    finally:
        await server.stop(grace=1)
    return 0


def _measure(options: argparse.Namespace, work: _Work) -> None:
    deployment = parse(Deployment, read_json_object(options.manifest), source=str(options.manifest))
    spec = deployment.spec
    model = read_model_spec(options.model)
    bound = spec.latency_bound
    wanted = Wanted(
        deployment=deployment,
        folder=options.model,
        model=model,
        workload=read_workload(spec.workload, model.context),
        bound=Bound(seconds=bound.seconds, percentile_length=bound.percentile_length),
        strategies=spec.scheduling.strategies,
    )
    budget = memory_budget(wanted.num_workers)
    placement = _placement(wanted.num_workers)
    with Workers(placement) as workers:
        leave_to_workers(placement)
        work.note(doing="starting the workers")
        workers.described()
        table = _table(wanted, workers, work)
    work.note(
        model_json=model.model_dump_json(),
        device_bytes=budget.device_bytes,
        reserve_bytes=budget.reserve_bytes,
        table_json=table.model_dump_json(),
    )


def _placement(num_workers: int) -> Placement:
    """A core each, from the last, as their containers will have; the first is for the rest."""
    cores = sorted(os.sched_getaffinity(0))
    own = [cores[-1 - worker % len(cores)] for worker in reversed(range(num_workers))]
    return Placement(worker_cores=tuple((core,) for core in own), other_cores=(cores[0],))


def _table(wanted: Wanted, workers: Workers, work: _Work) -> ProfileTable:
    """A table that reaches well beyond the best schedule for these lengths, if there is one within the bound."""
    spec, cache = wanted.deployment.spec, Cache.of_user()
    target = ProfileTarget(model_dir=wanted.folder, spec=wanted.model, dtype=spec.model.dtype)
    measured: list[ProfileTable] = []

    def table_of(coverage: Coverage) -> ProfileTable:
        measured.append(
            profile(
                target,
                ProfiledWorkers(addresses=workers.addresses, token=workers.token),
                coverage,
                cache,
                lambda done, total, doing: work.note(done=done, total=total, doing=doing),
            )
        )
        return measured[-1]

    with contextlib.suppress(InfeasibleBound):  # the operator will say so
        plan_on_profile(wanted, table_of)
    return measured[-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exegpt_cli.pods.profiler", description="One profile.")
    parser.add_argument("--manifest", type=Path, required=True, help="the deployment, JSON")
    parser.add_argument("--model", type=Path, required=True, help="the model's folder")
    parser.add_argument("--listen", required=True, help="host:port that the operator calls")
    parser.add_argument("--token-file", type=Path, required=True, help="the deployment's token")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds to be asked within")
    return parser


if __name__ == "__main__":
    sys.exit(main())
