"""Kernels for bfloat16 rows on a CPU, compiled when a model loads: one call where torch takes many small operators.

A decode query's attention reads its keys and values once, near the speed of memory; torch's own takes 2.5 times as long
for one query (docs/decisions/0009). Numbers are float32 between load and store. Addresses are int64: an array costs
numba ten times as long to take in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import float32, int64, njit, prange, types, void
from numpy.typing import NDArray
from torch import Tensor

from exegpt_runner.layers.linear import packs
from exegpt_runner.layers.vectors import (
    FLOAT_BYTES,
    HALF_BYTES,
    LEAST,
    WIDTH,
    Lanes,
    Value,
    compiled,
    uses_threads,
    vector_code,
    widen_code,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_VALUES_AT_ONCE = 4  # weighed before the sum goes back to memory
_KEYS_AHEAD = 32  # asked for before they are needed

_ints = types.Array(int64, 1, "C", readonly=False)


def usable(dtype: torch.dtype, *sizes: int) -> bool:
    """Whether there are kernels for rows of these sizes on this machine."""
    return packs(dtype) and not any(size % WIDTH for size in sizes)


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """Compiled for one number of heads, their size, and this process's threads."""

    _place: Callable[..., None]
    _attend: Callable[..., None]

    def place(self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, kv: Tensor) -> None:
        """Turns queries and keys in place and writes the new keys and values to their slots.

        qkv: (T, H + 2G, D), rows beyond the slots being padding; cos, sin: (T, D/2) float32; slots: (S,) int64;
        kv: (2, G, C, D).
        """
        addresses = (qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), kv.data_ptr())
        self._place(*addresses, slots.numpy(), kv.shape[2])

    def attend(self, qkv: Tensor, kv: Tensor, starts: Ints, contexts: Ints, out: Tensor) -> None:
        """Attention of the first n rows, a query each, over `contexts` tokens of the arena from `starts`.

        qkv: (T, H + 2G, D), kv: (2, G, C, D), starts and contexts: (n,); writes n rows of out, (T, H * D).
        """
        addresses = (qkv.data_ptr(), kv.data_ptr(), out.data_ptr())
        self._attend(*addresses, starts, contexts, kv.shape[2])


def attention_kernels(num_heads: int, num_kv_heads: int, head_dim: int) -> AttentionKernels:
    """The kernels for such heads and as many threads as torch has; compiling takes seconds, once."""
    heads = (num_heads, num_kv_heads, head_dim, uses_threads())
    return AttentionKernels(_place_kernel(*heads), _attend_kernel(*heads))


class NormKernel:
    """x / sqrt(mean(x**2) + eps) * weight, the mean over the last dimension. weight: (E,) or (H, D) float32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._size = weight.shape[-1]
        num_weights = weight.numel() // self._size
        self._norm = _norm_kernel(self._size, num_weights, eps, uses_threads())

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., *weight.shape) bfloat16."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self._norm(x.data_ptr(), self._weight.data_ptr(), out.data_ptr(), x.numel() // self._size)
        return out


@functools.cache
def _attend_kernel(num_heads: int, num_kv_heads: int, head_dim: int, is_parallel: bool) -> Any:
    G, D, R = num_kv_heads, head_dim, num_heads // num_kv_heads  # R query heads a KV head
    scores, weigh, weigh_one = _scores(R, D), _weigh(R, D, _VALUES_AT_ONCE), _weigh(R, D, 1)
    widen, narrow, softmax = widen_code(R * D), _narrow(R * D), _softmax()
    row_bytes = HALF_BYTES * D
    scale = np.float32(head_dim**-0.5)

    def attend(
        qkv_at: int, kv_at: int, out_at: int, starts: Ints, contexts: Ints, capacity: int
    ) -> None:
        for pair in prange(len(contexts) * G):
            i, g = pair // G, pair % G
            context = contexts[i]
            length = (context + WIDTH - 1) // WIDTH * WIDTH  # in whole blocks
            weights, stride = np.empty(R * length, np.float32), FLOAT_BYTES * length
            query, total = np.empty(R * D, np.float32), np.empty(R * D, np.float32)
            weights_at = weights.ctypes.data
            keys_at = kv_at + (g * capacity + starts[i]) * row_bytes
            values_at = keys_at + G * capacity * row_bytes
            widen(qkv_at + (i * (R + 2) * G + g * R) * row_bytes, query.ctypes.data)
            for d in range(R * D):
                query[d] *= scale
                total[d] = 0
            for t in range(context):
                weight_at, ahead = weights_at + FLOAT_BYTES * t, t * row_bytes
                scores(query.ctypes.data, keys_at + ahead, values_at + ahead, weight_at, stride)
            for r in range(R):
                softmax(weights, r * length, context, length)
            whole = context - context % _VALUES_AT_ONCE
            for t in range(0, whole, _VALUES_AT_ONCE):
                weight_at, value_at = weights_at + FLOAT_BYTES * t, values_at + t * row_bytes
                weigh(weight_at, stride, value_at, total.ctypes.data)
            for t in range(whole, context):
                weight_at, value_at = weights_at + FLOAT_BYTES * t, values_at + t * row_bytes
                weigh_one(weight_at, stride, value_at, total.ctypes.data)
            narrow(total.ctypes.data, out_at + pair * R * row_bytes)

    signature = void(int64, int64, int64, _ints, _ints, int64)
    return compiled(attend, signature, is_parallel=is_parallel)


def _softmax() -> Any:
    larger, exponentials = _larger(), _exponentials()

    @njit(fastmath=True, error_model="numpy")
    def softmax(numbers: Floats, first: int, size: int, length: int) -> None:
        """In place, of `size` numbers from `first`; those up to `length`, a whole number of blocks, become 0."""
        most, sums = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
        row_at = numbers.ctypes.data + first * FLOAT_BYTES
        for i in range(first + size, first + length):
            numbers[i] = LEAST
        for lane in range(WIDTH):
            most[lane], sums[lane] = LEAST, 0
        for at in range(0, length, WIDTH):
            larger(row_at + at * FLOAT_BYTES, most.ctypes.data)
        for lane in range(1, WIDTH):
            most[0] = max(most[0], most[lane])
        for at in range(0, length, WIDTH):
            exponentials(row_at + at * FLOAT_BYTES, most[0], sums.ctypes.data)
        for lane in range(1, WIDTH):
            sums[0] += sums[lane]
        for i in range(first, first + length):
            numbers[i] /= sums[0]

    return softmax


@functools.cache
def _place_kernel(num_heads: int, num_kv_heads: int, head_dim: int, is_parallel: bool) -> Any:
    H, G, D = num_heads, num_kv_heads, head_dim
    turn, copy = _turn(D), _copy(D)
    row_bytes, angle_bytes = HALF_BYTES * D, FLOAT_BYTES * (D // 2)

    def place(
        qkv_at: int, cos_at: int, sin_at: int, kv_at: int, slots: Ints, capacity: int
    ) -> None:
        for t in prange(len(slots)):
            row_at = qkv_at + t * (H + 2 * G) * row_bytes
            for h in range(H + G):
                turn(row_at + h * row_bytes, cos_at + t * angle_bytes, sin_at + t * angle_bytes)
            for g in range(2 * G):
                copy(row_at + (H + g) * row_bytes, kv_at + (g * capacity + slots[t]) * row_bytes)

    signature = void(int64, int64, int64, int64, _ints, int64)
    return compiled(place, signature, is_parallel=is_parallel)


@functools.cache
def _norm_kernel(size: int, num_weights: int, eps: float, is_parallel: bool) -> Any:
    add_squares, scaled = _add_squares(), _scaled()

    def norm(x_at: int, weight_at: int, out_at: int, num_rows: int) -> None:
        for row in prange(num_rows):
            first, weight = row * size, weight_at + row % num_weights * size * FLOAT_BYTES
            squares = np.zeros(WIDTH, np.float32)
            for d in range(0, size, WIDTH):
                add_squares(x_at + HALF_BYTES * (first + d), squares.ctypes.data)
            scale = np.float32(1 / np.sqrt(squares.sum() / size + eps))
            for d in range(0, size, WIDTH):
                at = HALF_BYTES * (first + d)
                scaled(x_at + at, scale, weight + FLOAT_BYTES * d, out_at + at)

    return compiled(norm, void(int64, int64, int64, int64), is_parallel=is_parallel)


def _scores(num_heads: int, head_dim: int) -> Any:
    """Query times key for `num_heads` queries and one key, whose value is asked for too."""

    @vector_code(int64, int64, int64, int64, int64)
    def scores(v: Lanes, query: Value, key: Value, value: Value, out: Value, stride: Value) -> None:
        row_bytes = HALF_BYTES * head_dim
        v.prefetch(value, row_bytes)
        v.prefetch(v.offset(key, _KEYS_AHEAD * row_bytes), row_bytes)
        blocks = head_dim // WIDTH
        keys = [v.halves_at(key, block) for block in range(blocks)]
        for head in range(num_heads):
            total = v.product(v.floats_at(query, head * blocks), keys[0])
            for block in range(1, blocks):
                total = v.add_product(v.floats_at(query, head * blocks + block), keys[block], total)
            v.store_sum(total, v.row(out, head, stride))

    return scores


def _weigh(num_heads: int, head_dim: int, num_values: int) -> Any:
    """Adds `num_values` values, times their weights, to the sums of `num_heads` heads."""

    @vector_code(int64, int64, int64, int64)
    def weigh(v: Lanes, weight: Value, stride: Value, value: Value, total: Value) -> None:
        blocks = head_dim // WIDTH
        rows = [v.offset(value, HALF_BYTES * head_dim * i) for i in range(num_values)]
        weights = [
            [
                v.float_at(v.offset(v.row(weight, head, stride), FLOAT_BYTES * i))
                for i in range(num_values)
            ]
            for head in range(num_heads)
        ]
        for block in range(blocks):
            values = [v.halves_at(row, block) for row in rows]
            for head in range(num_heads):
                sums = v.floats_at(total, head * blocks + block)
                for each, factor in zip(values, weights[head], strict=True):
                    sums = v.add_product(each, factor, sums)
                v.store_floats(sums, total, head * blocks + block)

    return weigh


def _larger() -> Any:
    """Raises maxima, a lane each, to a block of numbers."""

    @vector_code(int64, int64)
    def larger(v: Lanes, block: Value, most: Value) -> None:
        v.store_floats(v.maximum(v.floats_at(block, 0), v.floats_at(most, 0)), most, 0)

    return larger


def _exponentials() -> Any:
    """Replaces a block x by exp(x - most), and adds that to sums, a lane each."""

    @vector_code(int64, float32, int64)
    def exponentials(v: Lanes, block: Value, most: Value, sums: Value) -> None:
        result = v.exp(v.difference(v.floats_at(block, 0), v.all(most)))
        v.store_floats(result, block, 0)
        v.store_floats(v.sum(result, v.floats_at(sums, 0)), sums, 0)

    return exponentials


def _turn(head_dim: int) -> Any:
    """Rotary embedding of one head in place: pairs (i, i + D/2) by angle i."""

    @vector_code(int64, int64, int64)
    def turn(v: Lanes, head: Value, cos: Value, sin: Value) -> None:
        second = v.offset(head, HALF_BYTES * (head_dim // 2))
        for block in range(head_dim // 2 // WIDTH):
            x, y = v.halves_at(head, block), v.halves_at(second, block)
            c, s = v.floats_at(cos, block), v.floats_at(sin, block)
            v.store_halves(v.difference(v.product(x, c), v.product(y, s)), head, block)
            v.store_halves(v.add_product(y, c, v.product(x, s)), second, block)

    return turn


def _copy(size: int) -> Any:
    """Copies a bfloat16 row."""

    @vector_code(int64, int64)
    def copy(v: Lanes, source: Value, target: Value) -> None:
        for block in range(size // WIDTH):
            v.store_halves(v.halves_at(source, block), target, block)

    return copy


def _narrow(size: int) -> Any:
    """float32 to bfloat16."""

    @vector_code(int64, int64)
    def narrow(v: Lanes, source: Value, target: Value) -> None:
        for block in range(size // WIDTH):
            v.store_halves(v.floats_at(source, block), target, block)

    return narrow


def _add_squares() -> Any:
    """Adds the squares of a block to sums, a lane each."""

    @vector_code(int64, int64)
    def add_squares(v: Lanes, block: Value, sums: Value) -> None:
        x = v.halves_at(block, 0)
        v.store_floats(v.add_product(x, x, v.floats_at(sums, 0)), sums, 0)

    return add_squares


def _scaled() -> Any:
    """A block times a number and its weights."""

    @vector_code(int64, float32, int64, int64)
    def scaled(v: Lanes, block: Value, scale: Value, weight: Value, out: Value) -> None:
        x = v.product(v.halves_at(block, 0), v.all(scale))
        v.store_halves(v.product(x, v.floats_at(weight, 0)), out, 0)

    return scaled
