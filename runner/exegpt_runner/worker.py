"""The worker process: one device, one gRPC server (`python -m exegpt_runner.worker --listen unix:///path/worker.sock`).

Threads and cores are set before torch is loaded, because OpenMP reads them once: waiting threads must sleep, since
spinning barriers collapse when processes share cores. The process ends on SIGTERM or SIGINT, and with `--die-with-
parent` when the thread that started it ends (Linux counts threads here: start workers from a thread that lives as
long as they should).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exegpt_planner.errors import Unavailable
from exegpt_wire.token import read_token

_PR_SET_PDEATHSIG = 1
SERVING = "serving"  # the health service that says whether a conductor is served
CALLS = 64  # at once, a thread each: pushes that wait for room must not keep Describe waiting
_ENDING = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until told to end; the exit status."""
    options = _parser().parse_args(arguments)
    if options.die_with_parent is not None:
        _die_with_parent(options.die_with_parent)
    if options.cpus:
        try:
            os.sched_setaffinity(0, options.cpus)
        except OSError:
            cores = sorted(os.sched_getaffinity(0))
            return _fail(f"cores {sorted(options.cpus)} are not all there; try some of {cores}.")
    os.nice(options.nice)
    threads = options.threads or len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["GOMP_SPINCOUNT"] = "0"
    token = None
    if options.token_file is not None:
        try:
            token = read_token(options.token_file)
        except Unavailable as error:
            return _fail(str(error))
    elif not options.listen.startswith("unix:"):
        return _fail("a worker that listens on a network needs --token-file, or a Unix socket.")
    return _serve(options.listen, threads, token)


def _serve(listen: str, threads: int, token: str | None) -> int:
    """Serves until a signal ends the process; returns only when it could not start."""
    # Blocked in this thread and those it starts, so that none of them takes a signal that sigwait waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    import grpc  # after the environment is set: these load torch
    import torch
    from grpc_health.v1.health import HealthServicer
    from grpc_health.v1.health_pb2 import HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

    from exegpt_runner.kv_transfer.memory import keep_freed
    from exegpt_runner.kv_transfer.receiver import kv_handler
    from exegpt_runner.service import WorkerService
    from exegpt_wire import GRPC_OPTIONS, worker_pb2_grpc
    from exegpt_wire.token import TokenInterceptor

    keep_freed()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    health = (
        HealthServicer()
    )  # "" since the process serves, "serving" while it works for a conductor
    health.set(SERVING, HealthCheckResponse.NOT_SERVING)

    def serves(is_serving: bool) -> None:
        answer = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
        health.set(SERVING, answer)

    service = WorkerService(threads=threads, token=token, on_serving=serves)
    server = grpc.server(
        ThreadPoolExecutor(max_workers=CALLS),
        options=list(GRPC_OPTIONS),
        interceptors=[TokenInterceptor(token)],
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
    add_HealthServicer_to_server(health, server)
    server.add_generic_rpc_handlers((kv_handler(service.landing),))
    try:
        server.add_insecure_port(listen)
    except RuntimeError as error:
        return _fail(f"cannot listen on {listen}: {error}. Choose another address.")
    server.start()
    signal.sigwait(_ENDING)
    service.stop()
    server.stop(grace=1).wait()
    os._exit(0)  # a thread that still loads weights or computes would hold up an orderly exit


def _fail(problem: str) -> int:
    print(f"exegpt worker: {problem}", file=sys.stderr)
    return Unavailable.exit_code


def _die_with_parent(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it had ended before the call
        sys.exit(1)


def _cpu_list(text: str) -> set[int]:
    """Core numbers as in `taskset -c`: "1", "0,2", "2-3"."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exegpt_runner.worker", description="One exegpt worker.")
    parser.add_argument("--listen", required=True, help="unix:///path/worker.sock or host:port")
    parser.add_argument(
        "--token-file", type=Path, help="holds the deployment's token; every call must carry it"
    )
    parser.add_argument("--threads", type=int, help="compute threads; as many as cores by default")
    parser.add_argument("--cpus", type=_cpu_list, help='cores to stay on, e.g. "1" or "2-3"')
    parser.add_argument("--nice", type=int, default=0, help="let others go first on shared cores")
    parser.add_argument(
        "--die-with-parent", type=int, metavar="PID", help="end when this parent process ends"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
