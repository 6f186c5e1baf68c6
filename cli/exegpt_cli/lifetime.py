"""A process's life: signals become exceptions, a child ends with its parent, a server may hold many streams."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENDING = (signal.SIGTERM, signal.SIGHUP)  # Python makes an exception of SIGINT by itself


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise SystemExit once, so that everything started is ended."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        for each in ENDING:  # a second one must not interrupt the clean-up, which is short
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_many_files() -> None:
    """Raise this process's limit of open files to what it may have: every stream is a socket."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def end_with_parent(parent: int) -> None:
    """Have SIGTERM sent to this process when the process `parent` ends, even by SIGKILL."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it had ended before the call
        sys.exit(1)
