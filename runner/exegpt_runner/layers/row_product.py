"""The kernel that multiplies one row with a packed matrix (few_rows.py has the layout)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import int64, prange, void

from exegpt_runner.layers.finish import finish_code
from exegpt_runner.layers.vectors import (
    FLOAT_BYTES,
    HALF_BYTES,
    WIDTH,
    Lanes,
    Value,
    compiled,
    vector_code,
    widen_code,
)

OUTPUTS = 2 * WIDTH  # of a block
UNROLLED = 32  # inputs
_BYTES_AHEAD = 4096  # asked for before they are needed


@functools.cache
def row_kernel(is_parallel: bool) -> Any:
    """product(x, weight, bias, other, out, outputs, inputs, finish): addresses, sizes, and a code of `finish`."""
    add_products, widen, finish = _add_products(), widen_code(WIDTH), finish_code()

    def product(  # noqa: PLR0913 - addresses and sizes
        x_at: int,
        weight_at: int,
        bias_at: int,
        other_at: int,
        out_at: int,
        outputs: int,
        inputs: int,
        code: int,
    ) -> None:
        wide = np.empty(inputs, np.float32)
        for i in range(0, inputs, WIDTH):
            widen(x_at + HALF_BYTES * i, wide.ctypes.data + FLOAT_BYTES * i)
        for block in prange(outputs // OUTPUTS):
            sums = np.zeros(OUTPUTS, np.float32)
            block_at = weight_at + HALF_BYTES * block * OUTPUTS * inputs
            for i in range(0, inputs, UNROLLED):
                add_products(
                    block_at + HALF_BYTES * i * OUTPUTS,
                    wide.ctypes.data + FLOAT_BYTES * i,
                    sums.ctypes.data,
                )
            for first in range(0, OUTPUTS, WIDTH):
                output = block * OUTPUTS + first
                finish(
                    code,
                    sums.ctypes.data + FLOAT_BYTES * first,
                    bias_at + FLOAT_BYTES * output,
                    other_at + HALF_BYTES * output,
                    out_at + HALF_BYTES * output,
                )

    return compiled(product, void(*[int64] * 8), is_parallel=is_parallel)


def _add_products() -> Any:
    """Adds a run of inputs times their weights to the sums of 32 outputs."""

    @vector_code(int64, int64, int64)
    def add_products(v: Lanes, weights: Value, x: Value, sums: Value) -> None:
        totals = [v.floats_at(sums, half) for half in range(2)]
        v.prefetch(v.offset(weights, _BYTES_AHEAD), HALF_BYTES * UNROLLED * OUTPUTS)
        for pair in range(UNROLLED // 2):
            even, odd = (v.float_at(v.offset(x, FLOAT_BYTES * (2 * pair + i))) for i in range(2))
            for half in range(2):
                weights_even, weights_odd = v.pairs_at(weights, 2 * pair + half)
                totals[half] = v.add_product(weights_even, even, totals[half])
                totals[half] = v.add_product(weights_odd, odd, totals[half])
        for i, total in enumerate(totals):
            v.store_floats(total, sums, i)

    return add_products
