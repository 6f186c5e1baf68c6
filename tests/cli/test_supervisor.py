from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest

from exegpt_cli.placement import place
from exegpt_cli.supervisor import Supervisor
from exegpt_cli.workers import worker_command
from exegpt_planner.errors import Unavailable
from exegpt_wire import worker_pb2
from exegpt_wire.worker_pb2_grpc import WorkerStub

WORKER = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]
SOON = (0.01,)  # before the next start


def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain until {what}"
        time.sleep(0.01)


def described(address: str) -> worker_pb2.DescribeReply:
    with grpc.insecure_channel(address) as channel:
        return WorkerStub(channel).Describe(
            worker_pb2.DescribeRequest(), timeout=20, wait_for_ready=True
        )


def test_a_worker_lives_as_long_as_the_block_and_leaves_no_process_and_no_file() -> None:
    with Supervisor(WORKER, back_off_s=SOON) as supervisor:
        pid = supervisor.described().incarnation
        folder = Path(supervisor.address.removeprefix("unix://")).parent
        assert pid == supervisor.pid
        assert psutil.pid_exists(pid)
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_a_killed_worker_is_started_again_at_the_same_address() -> None:
    with Supervisor(WORKER, back_off_s=SOON) as supervisor:
        first = supervisor.described().incarnation
        os.kill(first, signal.SIGKILL)
        until(lambda: supervisor.pid != first, "another worker is started")
        second = described(supervisor.address).incarnation
        assert second == supervisor.pid != first
        assert not psutil.pid_exists(first)
        assert supervisor.failure is None
    assert not psutil.pid_exists(second)


def test_a_hung_worker_is_killed_and_started_again() -> None:
    with Supervisor(WORKER, back_off_s=SOON) as supervisor:
        first = supervisor.described().incarnation
        os.kill(first, signal.SIGSTOP)
        supervisor.restart()
        until(lambda: supervisor.pid != first, "another worker is started")
        assert described(supervisor.address).incarnation == supervisor.pid


def test_a_worker_that_ends_at_every_start_is_given_up_with_its_own_words() -> None:
    told: list[bool] = []
    with (
        Supervisor(
            [*WORKER, "--crash"], on_failure=lambda: told.append(True), back_off_s=SOON
        ) as supervisor,
        pytest.raises(Unavailable, match=r"(?s)3 times in a row.*exit code 7.*\n  no such device"),
    ):
        supervisor.described()
    assert told == [True]
    assert supervisor.pid is not None
    assert not psutil.pid_exists(supervisor.pid)


def test_stopping_before_the_worker_answers_ends_it_too() -> None:
    with Supervisor(WORKER, back_off_s=SOON) as supervisor:
        until(lambda: supervisor.pid is not None, "a worker is started")
        pid = supervisor.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)


def test_the_worker_gets_all_cores_but_the_first_and_shares_a_single_one() -> None:
    assert place([0, 1]).worker_cores == ((1,),)
    assert place([0, 1]).other_cores == (0,)
    assert place([5, 2, 3]).worker_cores == ((3, 5),)
    assert place([5, 2, 3]).threads == 2
    assert place([4]).worker_cores == (place([4]).other_cores,) == ((4,),)


def test_several_workers_get_equal_shares_of_all_cores_but_the_first() -> None:
    assert place([0, 1, 2], 2).worker_cores == ((1,), (2,))
    assert place(range(6), 2).worker_cores == ((1, 2), (3, 4))
    assert place(range(6), 2).threads == 2
    assert not any(place(range(6), 2).yields(worker) for worker in range(2))


def test_where_cores_are_few_the_first_worker_shares_with_the_gateway_and_yields_to_it() -> None:
    both = place([0, 1], 2)
    assert both.worker_cores == ((0,), (1,))
    assert both.other_cores == (0,)
    assert [both.yields(worker) for worker in range(2)] == [True, False]
    assert "--nice" in worker_command(both, 0, Path("token"))
    assert "--nice" not in worker_command(both, 1, Path("token"))
    assert place([0, 1], 3).worker_cores == ((0,), (1,), (0,))


def test_a_worker_ends_with_its_parent_and_asks_for_the_token() -> None:
    command = worker_command(place([0, 1]), 0, Path("/there/token"))
    assert command[command.index("--die-with-parent") + 1] == str(os.getpid())
    assert command[command.index("--token-file") + 1] == "/there/token"
    assert command[-1] == "--listen", "the address is appended"


def test_the_worker_keeps_its_cores_when_the_starting_thread_leaves_them() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with Supervisor(WORKER, back_off_s=SOON) as supervisor:
        first = supervisor.described()
        os.sched_setaffinity(0, cores[:1])
        try:
            os.kill(first.incarnation, signal.SIGKILL)
            until(lambda: supervisor.pid != first.incarnation, "another worker is started")
            again = described(supervisor.address)
        finally:
            os.sched_setaffinity(0, cores)
    assert again.versions["cores"] == ",".join(str(core) for core in cores)
