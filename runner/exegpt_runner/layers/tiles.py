"""Matrix tiles in numba functions: 16 rows of 64 bytes, multiplied by one instruction (AMX in Intel's manuals).

There are eight. A tile of the left factor holds rows of 32 bfloat16; one of the right factor holds pairs of inputs, the
16 outputs' numbers of a pair side by side; products add up in tiles of 16 x 16 float32. A tile with fewer rows is
configured so: whoever uses tiles configures them first and releases them at the end, on each thread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numba import int64
from numpy.typing import NDArray

from exegpt_runner.layers.vectors import Lanes, Value, vector_code

ROWS = 16
ROW_BYTES = 64
INPUTS = 32  # bfloat16 in a row
TILE_BYTES = ROWS * ROW_BYTES
CONFIGURATION_BYTES = 64
_PALETTE, _ROW_BYTES_AT, _ROWS_AT = 1, 16, 48  # where a configuration has what


@functools.cache
def usable() -> bool:
    """Whether this machine multiplies tiles of bfloat16; asks the system to let this process."""
    machine: Any = torch.cpu
    return bool(machine._is_amx_tile_supported() and machine._init_amx())


def configuration(rows: Mapping[int, int]) -> NDArray[np.uint8]:
    """The bytes that give each tile its rows; those that are not named, or have none, are not used."""
    found = np.zeros(CONFIGURATION_BYTES, np.uint8)
    found[0] = _PALETTE
    for tile, num_rows in rows.items():
        if num_rows:
            found[_ROW_BYTES_AT + 2 * tile] = ROW_BYTES
            found[_ROWS_AT + tile] = num_rows
    return found


def configure_code() -> Any:
    """For numba: takes on the configuration at an address."""

    @vector_code(int64)
    def configure(v: Lanes, at: Value) -> None:
        v.instruct("ldtilecfg", v.pointer(at))

    return configure


def release_code() -> Any:
    """For numba: tiles are used no more."""

    @vector_code()
    def release(v: Lanes) -> None:
        v.instruct("tilerelease")

    return release


def zero(v: Lanes, *tiles: int) -> None:
    """Makes tiles 0."""
    for tile in tiles:
        v.instruct("tilezero", tile)


def load(v: Lanes, tile: int, address: Value, stride: Value) -> None:
    """Fills a tile with rows that lie `stride` bytes apart."""
    v.instruct("tileloadd64", tile, v.pointer(address), stride)


def add_product(v: Lanes, total: int, left: int, right: int) -> None:
    """Adds the product of two tiles to a third."""
    v.instruct("tdpbf16ps", total, left, right)


def store(v: Lanes, tile: int, address: Value, stride: Value) -> None:
    """Writes a tile as rows `stride` bytes apart."""
    v.instruct("tilestored64", tile, v.pointer(address), stride)
