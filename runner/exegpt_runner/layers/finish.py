"""What follows a product, in the same pass: bias, activation, a sum or a product with another matrix."""

from __future__ import annotations

import functools
from typing import Any, Literal

from numba import int64, njit, void

from exegpt_runner.layers.vectors import Lanes, Value, vector_code

Finish = Literal["none", "silu", "relu", "add", "multiply"]
CODES: dict[Finish, int] = {"none": 0, "silu": 1, "relu": 2, "add": 3, "multiply": 4}


@functools.cache
def finish_code() -> Any:
    """For numba: finish(code, sums, bias, other, out) writes 16 outputs; addresses of float32, float32, bfloat16."""
    plain, silu, relu, add, multiply = (_finish(finish) for finish in CODES)

    @njit(void(int64, int64, int64, int64, int64), fastmath=True, error_model="numpy")
    def finish(code: int, sums: int, bias: int, other: int, out: int) -> None:
        if code == 0:
            plain(sums, bias, other, out)
        elif code == 1:
            silu(sums, bias, other, out)
        elif code == 2:
            relu(sums, bias, other, out)
        elif code == 3:
            add(sums, bias, other, out)
        else:
            multiply(sums, bias, other, out)

    return finish


def _finish(finish: Finish) -> Any:
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
