"""The kernel that multiplies 8 to 64 rows with a packed matrix, tile by tile (few_rows.py has the layout).

A block of 32 outputs comes from memory once; further rows than the tiles hold meet it again in a core's own cache.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import int64, prange, void

from exegpt_runner.layers import tiles
from exegpt_runner.layers.finish import finish_code
from exegpt_runner.layers.vectors import (
    FLOAT_BYTES,
    HALF_BYTES,
    WIDTH,
    Lanes,
    Value,
    compiled,
    vector_code,
)

MOST_ROWS = 64  # beyond, oneDNN is as fast
_AT_ONCE = 2 * tiles.ROWS
ROW_GRAIN = 8  # rows are padded to this anyway
_OUTPUTS = 2 * tiles.ROWS  # of a block
_BYTES_AHEAD = 8192  # asked for before they are needed
_SUMS_BYTES = FLOAT_BYTES * _OUTPUTS  # of a row
_PAIR_BYTES = 2 * HALF_BYTES * _OUTPUTS


@functools.cache
def tile_kernel(is_parallel: bool) -> Any:
    """product(x, weight, bias, other, out, rows, outputs, inputs, finish): addresses, sizes, and a code of `finish`."""
    few, many = _Code(1), _Code(2)  # tiles of rows
    zero_few, step_few, store_few = few.zero(), few.step(), few.store()
    zero_many, step_many, store_many = many.zero(), many.step(), many.store()
    configure, release, finish = tiles.configure_code(), tiles.release_code(), finish_code()
    configurations_at = _configurations().ctypes.data

    def product(  # noqa: PLR0913 - addresses and sizes
        x_at: int,
        weight_at: int,
        bias_at: int,
        other_at: int,
        out_at: int,
        rows: int,
        outputs: int,
        inputs: int,
        code: int,
    ) -> None:
        stride = HALF_BYTES * inputs
        for block in prange(outputs // _OUTPUTS):
            sums = np.empty(MOST_ROWS * _OUTPUTS, np.float32)
            block_at = weight_at + block * _OUTPUTS * stride
            for start in range(0, rows, _AT_ONCE):
                num = min(rows - start, _AT_ONCE)
                from_at = x_at + start * stride
                sums_at = sums.ctypes.data + start * _SUMS_BYTES
                configure(configurations_at + num // ROW_GRAIN * tiles.CONFIGURATION_BYTES)
                if num <= tiles.ROWS:
                    zero_few()
                    for at in range(0, stride, tiles.ROW_BYTES):
                        step_few(from_at + at, stride, block_at + at * _OUTPUTS)
                    store_few(sums_at)
                else:
                    zero_many()
                    for at in range(0, stride, tiles.ROW_BYTES):
                        step_many(from_at + at, stride, block_at + at * _OUTPUTS)
                    store_many(sums_at)
            release()
            for row in range(rows):
                for first in range(0, _OUTPUTS, WIDTH):
                    output = block * _OUTPUTS + first
                    at = HALF_BYTES * (row * outputs + output)
                    finish(
                        code,
                        sums.ctypes.data + row * _SUMS_BYTES + FLOAT_BYTES * first,
                        bias_at + FLOAT_BYTES * output,
                        other_at + at,
                        out_at + at,
                    )

    return compiled(product, void(*[int64] * 9), is_parallel=is_parallel)


@functools.cache
def _configurations() -> Any:
    """Of the tiles for 0, 8, 16, 24 and 32 rows; totals are tiles 0 to 3, x 4 and 5, weights 6 and 7."""
    found = []
    for rows in range(0, _AT_ONCE + 1, ROW_GRAIN):
        first = min(rows, tiles.ROWS)
        second = rows - first
        by_tile = (first, first, second, second, first, second, tiles.ROWS, tiles.ROWS)
        found.append(tiles.configuration(dict(enumerate(by_tile))))
    return np.stack(found)


class _Code:
    """What is done with one or two tiles of rows and two of outputs."""

    def __init__(self, num_tiles: int) -> None:
        self._num_tiles = num_tiles

    def zero(self) -> Any:
        @vector_code()
        def zero(v: Lanes) -> None:
            tiles.zero(v, *range(2 * self._num_tiles))

        return zero

    def step(self) -> Any:
        """Adds 32 inputs times their weights."""

        @vector_code(int64, int64, int64)
        def step(v: Lanes, x: Value, stride: Value, weights: Value) -> None:
            v.prefetch(v.offset(weights, _BYTES_AHEAD), 2 * tiles.TILE_BYTES)
            pair_bytes = v.constant_int(_PAIR_BYTES)
            for half in range(2):
                tiles.load(v, 6 + half, v.offset(weights, half * tiles.ROW_BYTES), pair_bytes)
            for i in range(self._num_tiles):
                tiles.load(v, 4 + i, v.row(x, i * tiles.ROWS, stride), stride)
                for half in range(2):
                    tiles.add_product(v, 2 * i + half, 4 + i, 6 + half)

        return step

    def store(self) -> Any:
        @vector_code(int64)
        def store(v: Lanes, sums: Value) -> None:
            stride = v.constant_int(_SUMS_BYTES)
            for i in range(self._num_tiles):
                for half in range(2):
                    at = i * tiles.ROWS * _SUMS_BYTES + half * tiles.ROW_BYTES
                    tiles.store(v, 2 * i + half, v.offset(sums, at), stride)

        return store
