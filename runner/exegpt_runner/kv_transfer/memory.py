"""Memory for what arrives: page faults cost a receiver more than copies (docs/decisions/0010-kv-over-grpc.md)."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import torch
from torch import Tensor

# Of mallopt(3). Both at their largest: glibc takes no mmap threshold above half a thread's heap of 64 MiB.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 1 << 30
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 << 20


def keep_freed() -> None:
    """Makes this process reuse freed memory, up to 1 GiB of it, where it would return and fault it in again.

    Call it once, when a worker process starts. Other C libraries than glibc are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def adopt(message: bytes) -> Tensor:
    """The bytes of `message`, (n,) of uint8, not copied; for reading only."""
    return torch.utils.dlpack.from_dlpack(np.frombuffer(message, dtype=np.uint8))


def allocate(size: int) -> tuple[Tensor, memoryview]:
    """A tensor (size,) of uint8 in huge pages where there are some, touched only as it is written, and its memory."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(buffer, dtype=torch.uint8), memoryview(buffer)
