"""Starts workers by fork, with torch loaded once: each is a process of its own, and there in a fraction of a second.

Reads a JSON list of a worker's arguments a line and answers with its process id. Its workers die with it, and it ends
with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # read once, by torch

import exegpt_runner.kv_transfer.receiver  # what a worker imports, all before the forks
import exegpt_runner.service  # noqa: F401 - loads torch once, for all who are forked
from exegpt_runner import worker
from exegpt_runner.clocks import CalibrationKernel


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets the dead
    CalibrationKernel(threads=1)  # loads the compiled kernels
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing after a fork"
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            os._exit(worker.main(json.loads(line)))
        print(child, flush=True)


main()
