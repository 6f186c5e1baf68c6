"""Products of few rows with a packed matrix, which is read once, as one stream (docs/decisions/0009 and 0012).

oneDNN's own products of few rows read small matrices at half to two thirds of the memory's speed. The packed layout is
known and checked: blocks of 32 outputs; in each of them pairs of inputs, the 32 outputs' weights of a pair side by
side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exegpt_runner.layers import tiles
from exegpt_runner.layers.finish import CODES, Finish
from exegpt_runner.layers.row_product import OUTPUTS, UNROLLED, row_kernel
from exegpt_runner.layers.tile_product import MOST_ROWS, ROW_GRAIN, tile_kernel
from exegpt_runner.layers.vectors import HALF_BYTES, uses_threads

_onednn: Any = torch.ops.mkldnn


@dataclass(frozen=True, slots=True)
class FewRows:
    """x @ weight.T + bias for one row x, or for some, where the machine has tiles."""

    _weight: Tensor  # packed; kept, as the address is into it
    _address: int
    _bias: Tensor  # (out,) float32
    _in_features: int
    _of_row: Callable[..., None]
    _of_rows: Callable[..., None] | None

    @staticmethod
    def of(packed: Tensor, weight: Tensor, bias: Tensor | None) -> FewRows | None:
        """For a matrix (out, in) and its packed form; None where the layout is another one."""
        outputs, inputs = weight.shape
        if outputs % OUTPUTS or inputs % UNROLLED or not _is_known(packed, weight):
            return None
        wide = torch.zeros(outputs) if bias is None else bias.float()
        is_parallel = uses_threads()
        of_rows = tile_kernel(is_parallel) if tiles.usable() else None
        address = _onednn.data_ptr(packed)
        return FewRows(packed, address, wide, inputs, row_kernel(is_parallel), of_rows)

    def takes(self, num_rows: int) -> bool:
        """Whether it multiplies so many rows."""
        if num_rows == 1:
            return True
        is_size = ROW_GRAIN <= num_rows <= MOST_ROWS and num_rows % ROW_GRAIN == 0
        return is_size and self._of_rows is not None

    def __call__(self, x: Tensor, finish: Finish, other: Tensor | None = None) -> Tensor:
        """x: (T, in), a number of rows that it takes; other: (T, out), to add or to multiply by; returns (T, out)."""
        x = x.contiguous()
        out = x.new_empty(len(x), len(self._bias))
        other = out if other is None else other.contiguous()
        addresses = (
            x.data_ptr(),
            self._address,
            self._bias.data_ptr(),
            other.data_ptr(),
            out.data_ptr(),
        )
        sizes = (len(self._bias), self._in_features, CODES[finish])
        if self._of_rows is None or len(x) == 1:
            self._of_row(*addresses, *sizes)
        else:
            self._of_rows(*addresses, len(x), *sizes)
        return out


def _is_known(packed: Tensor, weight: Tensor) -> bool:
    """Whether the first and the last block lie where they are looked for."""
    outputs, inputs = weight.shape
    if int(_onednn._nbytes(packed)) != outputs * inputs * HALF_BYTES:
        return False
    memory = torch.frombuffer(
        (ctypes.c_uint16 * (outputs * inputs)).from_address(_onednn.data_ptr(packed)),
        dtype=torch.bfloat16,
    ).view(outputs // OUTPUTS, -1)
    return all(
        torch.equal(
            memory[block],
            weight[block * OUTPUTS :][:OUTPUTS].view(OUTPUTS, -1, 2).transpose(0, 1).reshape(-1),
        )
        for block in (0, outputs // OUTPUTS - 1)
    )
