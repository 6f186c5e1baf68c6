"""The worker as a process: it ends when told to and when its parent ends, and refuses a bad address or core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from exegpt_wire import PROTOCOL
from exegpt_wire import worker_pb2 as pb
from tiny_models import write_model
from worker_client import Stream
from worker_process import worker_process

pytestmark = pytest.mark.slow  # each starts a process that loads torch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with worker_process(tmp_path) as worker:
        worker.stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=60)
        worker.process.send_signal(number)
        assert worker.process.wait(timeout=20) == 0


def test_a_worker_that_is_told_to_end_says_so_to_its_conductor(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with worker_process(tmp_path) as worker:
        worker.stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=60)
        request = pb.ConfigureRequest(
            protocol=PROTOCOL, epoch=1, model_path=str(model), dtype="float64", kv_tokens=64
        )
        worker.stub.Configure(request, timeout=60)
        with Stream.opened(worker.stub) as stream:
            stream.step(decode=1)
            worker.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as caught:
                stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # come back; ABORTED: do not


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / 'worker.sock'}"
    parent = (
        "import os, subprocess, sys, time;"
        "p = subprocess.Popen([sys.executable, '-m', 'exegpt_runner.worker', '--listen', sys.argv[1],"
        " '--die-with-parent', str(os.getpid())]); print(p.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, address], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        handle = os.pidfd_open(worker)
        process.kill()
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import select,sys; sys.exit(not select.select([int(sys.argv[1])],[],[],20)[0])",
            str(handle),
        ],
        pass_fds=[handle],
        check=False,
    )
    assert ended.returncode == 0


def test_cores_and_threads_are_set_before_torch_loads(tmp_path: Path) -> None:
    core = str(max(os.sched_getaffinity(0)))
    with worker_process(tmp_path, ("--cpus", core)) as worker:
        described = worker.stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=60)
        assert described.threads == 1
        assert os.sched_getaffinity(worker.process.pid) == {int(core)}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "unix:///no/such/folder/worker.sock"], "cannot listen on"),
        (["--listen", "unix:///tmp/unused.sock", "--cpus", "4095"], "cores [4095]"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: list[str], text: str) -> None:
    command = [sys.executable, "-m", "exegpt_runner.worker", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 5
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr
