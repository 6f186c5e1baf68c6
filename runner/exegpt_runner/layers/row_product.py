"""The product of one row with a packed matrix, which is read once, as one stream (docs/decisions/0009).

oneDNN's own product of one row reads small matrices at two thirds of the memory's speed. The packed layout is known and
checked: blocks of 32 outputs, in each of them pairs of inputs, the 32 outputs' weights of a pair side by side.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numba import int64, prange, void
from torch import Tensor

from exegpt_runner.layers.vectors import (
    FLOAT_BYTES,
    HALF_BYTES,
    WIDTH,
    Lanes,
    Value,
    compiled,
    uses_threads,
    vector_code,
    widen_code,
)

OUTPUTS = 2 * WIDTH  # of a block
_INPUTS = 32  # of a run, unrolled
_BYTES_AHEAD = 4096  # asked for before they are needed
_onednn: Any = torch.ops.mkldnn

Finish = Literal["none", "silu", "relu", "add", "multiply"]
_CODES: dict[Finish, int] = {"none": 0, "silu": 1, "relu": 2, "add": 3, "multiply": 4}


@dataclass(frozen=True, slots=True)
class RowProduct:
    """x @ weight.T + bias for one row x."""

    _weight: Tensor  # packed; kept, as the address is into it
    _address: int
    _bias: Tensor  # (out,) float32
    _in_features: int
    _product: Callable[..., None]

    @staticmethod
    def of(packed: Tensor, weight: Tensor, bias: Tensor | None) -> RowProduct | None:
        """For a matrix (out, in) and its packed form; None where the layout is another one."""
        outputs, inputs = weight.shape
        if outputs % OUTPUTS or inputs % _INPUTS or not _is_known(packed, weight):
            return None
        wide = torch.zeros(outputs) if bias is None else bias.float()
        address = _onednn.data_ptr(packed)
        return RowProduct(packed, address, wide, inputs, _kernel(uses_threads()))

    def __call__(self, x: Tensor, finish: Finish, other: Tensor | None = None) -> Tensor:
        """x: (1, in); other: (1, out), to add or to multiply by; returns (1, out)."""
        x = x.contiguous()
        out = x.new_empty(1, len(self._bias))
        other = out if other is None else other.contiguous()
        self._product(
            x.data_ptr(),
            self._address,
            self._bias.data_ptr(),
            other.data_ptr(),
            out.data_ptr(),
            len(self._bias),
            self._in_features,
            _CODES[finish],
        )
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


@functools.cache
def _kernel(is_parallel: bool) -> Any:
    add_products, widen = _add_products(), widen_code(WIDTH)
    plain, silu, relu, add, multiply = (_finish(finish) for finish in _CODES)

    def product(  # noqa: PLR0913 - addresses and sizes
        x_at: int,
        weight_at: int,
        bias_at: int,
        other_at: int,
        out_at: int,
        outputs: int,
        inputs: int,
        finish: int,
    ) -> None:
        wide = np.empty(inputs, np.float32)
        for i in range(0, inputs, WIDTH):
            widen(x_at + HALF_BYTES * i, wide.ctypes.data + FLOAT_BYTES * i)
        for block in prange(outputs // OUTPUTS):
            sums = np.zeros(OUTPUTS, np.float32)
            block_at = weight_at + HALF_BYTES * block * OUTPUTS * inputs
            for i in range(0, inputs, _INPUTS):
                add_products(
                    block_at + HALF_BYTES * i * OUTPUTS,
                    wide.ctypes.data + FLOAT_BYTES * i,
                    sums.ctypes.data,
                )
            for half in range(2):
                sums_at = sums.ctypes.data + FLOAT_BYTES * half * WIDTH
                first = block * OUTPUTS + half * WIDTH
                bias, other = bias_at + FLOAT_BYTES * first, other_at + HALF_BYTES * first
                out = out_at + HALF_BYTES * first
                if finish == 0:
                    plain(sums_at, bias, other, out)
                elif finish == 1:
                    silu(sums_at, bias, other, out)
                elif finish == 2:
                    relu(sums_at, bias, other, out)
                elif finish == 3:
                    add(sums_at, bias, other, out)
                else:
                    multiply(sums_at, bias, other, out)

    return compiled(product, void(*[int64] * 8), is_parallel=is_parallel)


def _add_products() -> Any:
    """Adds a run of inputs times their weights to the sums of 32 outputs."""

    @vector_code(int64, int64, int64)
    def add_products(v: Lanes, weights: Value, x: Value, sums: Value) -> None:
        totals = [v.floats_at(sums, half) for half in range(2)]
        v.prefetch(v.offset(weights, _BYTES_AHEAD), HALF_BYTES * _INPUTS * OUTPUTS)
        for pair in range(_INPUTS // 2):
            even, odd = (v.float_at(v.offset(x, FLOAT_BYTES * (2 * pair + i))) for i in range(2))
            for half in range(2):
                weights_even, weights_odd = v.pairs_at(weights, 2 * pair + half)
                totals[half] = v.add_product(weights_even, even, totals[half])
                totals[half] = v.add_product(weights_odd, odd, totals[half])
        for i, total in enumerate(totals):
            v.store_floats(total, sums, i)

    return add_products


def _finish(finish: Finish) -> Any:
    """Writes a block of sums, with the bias, through what comes after the product."""

    @vector_code(int64, int64, int64, int64)
    def end(v: Lanes, sums: Value, bias: Value, other: Value, out: Value) -> None:
        x = v.sum(v.floats_at(sums, 0), v.floats_at(bias, 0))
        match finish:
            case "silu":  # x / (1 + exp(-x)), through exponents that are never above 0
                size = v.maximum(x, v.difference(v.constant(0.0), x))
                power = v.exp(v.difference(v.constant(0.0), size))
                share = v.where_negative(x, power, v.constant(1.0))
                x = v.quotient(v.product(x, share), v.sum(power, v.constant(1.0)))
            case "relu":
                x = v.maximum(x, v.constant(0.0))
            case "add":
                x = v.sum(x, v.halves_at(other, 0))
            case "multiply":
                x = v.product(x, v.halves_at(other, 0))
            case "none":
                pass
        v.store_halves(x, out, 0)

    return end
