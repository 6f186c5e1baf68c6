"""The kernel for attention of an encode chunk, tile by tile: 16 queries of a head at a time over all they may look at.

Keys and values of a KV head are packed once for all its queries: keys as the right factor of q K', pairs of a key's
numbers and 16 keys side by side; values as the right factor of p V, pairs of values. Scores of 16 queries stay in a
cache; so the softmax is plain, over whole rows, and what a query must not see is left out of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import float32, int64, njit, prange, void
from torch import Tensor

from exegpt_runner.layers import tiles
from exegpt_runner.layers.batch import ChunkRows
from exegpt_runner.layers.tiles import ROW_BYTES, ROWS, TILE_BYTES
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
)

_KEYS = 2 * ROWS  # at a time
_LANES = 2 * WIDTH
_LANES_BYTES = FLOAT_BYTES * _LANES
_TOTALS = 4  # tiles of a head's outputs at a time


@dataclass(frozen=True, slots=True)
class ChunkAttention:
    """Compiled for one number of heads, their size, and this process's threads."""

    _attend: Callable[..., None]

    @staticmethod
    def of(num_heads: int, num_kv_heads: int, head_dim: int) -> ChunkAttention | None:
        """None where there are no tiles."""
        if not tiles.usable():
            return None
        return ChunkAttention(_kernel(num_heads, num_kv_heads, head_dim, uses_threads()))

    def __call__(self, qkv: Tensor, kv: Tensor, chunk: ChunkRows, out: Tensor) -> None:
        """Writes the chunk's rows of out, (T, H * D). qkv: (T, H + 2G, D), kv: (2, G, C, D), the chunk's included."""
        addresses = (qkv.data_ptr(), kv.data_ptr(), out.data_ptr())
        place = (chunk.first, chunk.num_tokens, chunk.kv_start, chunk.start)
        self._attend(*addresses, *place, kv.shape[2])


@functools.cache
def _kernel(num_heads: int, num_kv_heads: int, head_dim: int, is_parallel: bool) -> Any:
    G, D, R = num_kv_heads, head_dim, num_heads // num_kv_heads  # R query heads a KV head
    pack, score, weigh, write = _pack(D), _score(D), _weigh(D), _write(D)
    configure, release, softmax = tiles.configure_code(), tiles.release_code(), _softmax()
    row_bytes, query_bytes = HALF_BYTES * D, HALF_BYTES * D * (num_heads + 2 * G)
    key_tiles_bytes = ROWS * row_bytes  # of 16 keys
    configurations_at = _configurations().ctypes.data
    scale = np.float32(head_dim**-0.5)

    def attend(  # noqa: PLR0913 - addresses, where the chunk is, and the arena's size
        qkv_at: int,
        kv_at: int,
        out_at: int,
        first: int,
        num_tokens: int,
        kv_start: int,
        start: int,
        capacity: int,
    ) -> None:
        context = start + num_tokens
        length = (context + _KEYS - 1) // _KEYS * _KEYS
        for g in prange(G):
            keys_at = kv_at + (g * capacity + kv_start) * row_bytes
            values_at = keys_at + G * capacity * row_bytes
            keys, values = np.zeros(length * D, np.uint16), np.zeros(length * D, np.uint16)
            pack(keys_at, values_at, context, keys.ctypes.data, values.ctypes.data)
            scores = np.empty(ROWS * length, np.float32)
            weights = np.empty(ROWS * length, np.uint16)
            totals = np.empty(ROWS * D, np.float32)
            lanes = np.empty(ROWS * _LANES, np.float32)  # of a row's softmax: maxima, then sums
            lanes_at, totals_at = lanes.ctypes.data, totals.ctypes.data
            scores_at, scores_bytes = scores.ctypes.data, FLOAT_BYTES * length
            weights_at, weights_bytes = weights.ctypes.data, HALF_BYTES * length
            for part in range(0, num_tokens, ROWS):
                num_rows = min(ROWS, num_tokens - part)
                visible = start + part + 1  # to the first of them
                seen = (visible + num_rows + _KEYS - 2) // _KEYS * _KEYS
                configure(configurations_at + num_rows * tiles.CONFIGURATION_BYTES)
                for head in range(g * R, g * R + R):
                    query_at = qkv_at + (first + part) * query_bytes + head * row_bytes
                    for t in range(0, seen, _KEYS):
                        packed_at = keys.ctypes.data + t // ROWS * key_tiles_bytes
                        out = scores_at + FLOAT_BYTES * t
                        score(query_at, query_bytes, packed_at, out, scores_bytes)
                    for row in range(num_rows):
                        hidden = row * length + visible + row
                        scores[hidden : row * length + seen] = LEAST
                        row_at, out = (
                            scores_at + row * scores_bytes,
                            weights_at + row * weights_bytes,
                        )
                        softmax(row_at, seen, scale, out, lanes_at + row * _LANES_BYTES)
                    weigh(weights_at, weights_bytes, values.ctypes.data, seen, totals_at)
                    for row in range(num_rows):
                        out = out_at + ((first + part + row) * G * R + head) * row_bytes
                        sum_at = lanes_at + row * _LANES_BYTES
                        write(totals_at + row * FLOAT_BYTES * D, sum_at, out)
                release()

    return compiled(attend, void(*[int64] * 8), is_parallel=is_parallel)


@functools.cache
def _configurations() -> Any:
    """For 0 to 16 queries; scores or totals are tiles 0 to 3, queries or weights 4, keys or values 5 to 7."""
    queries, packed = (0, 1, 2, 3, 4), (5, 6, 7)
    return np.stack(
        [
            tiles.configuration(dict.fromkeys(queries, rows) | dict.fromkeys(packed, ROWS))
            for rows in range(ROWS + 1)
        ]
    )


def _pack(head_dim: int) -> Any:
    """For numba: `context` keys and values to arrays of 0 for a whole number of blocks."""
    pack_key, pack_values = _pack_key(head_dim), _pack_values(head_dim)
    row_bytes = HALF_BYTES * head_dim
    key_tiles_bytes = ROWS * row_bytes

    @njit(fastmath=True, error_model="numpy")
    def pack(keys: int, values: int, context: int, packed_keys: int, packed_values: int) -> None:
        for t in range(context):
            at = t // ROWS * key_tiles_bytes + t % ROWS * 2 * HALF_BYTES
            pack_key(keys + t * row_bytes, packed_keys + at)
        nothing = np.zeros(head_dim, np.uint16)
        for t in range(0, context, 2):
            even = values + t * row_bytes
            odd = even + row_bytes if t + 1 < context else nothing.ctypes.data
            at = t // _KEYS * _KEYS * row_bytes + t % _KEYS // 2 * ROW_BYTES
            pack_values(even, odd, packed_values + at)

    return pack


def _pack_key(head_dim: int) -> Any:
    """One key to its column of the packed ones."""

    @vector_code(int64, int64)
    def pack_key(v: Lanes, key: Value, target: Value) -> None:
        for i in range(head_dim // tiles.INPUTS):
            v.spread(v.offset(key, ROW_BYTES * i), v.offset(target, TILE_BYTES * i), ROW_BYTES)

    return pack_key


def _pack_values(head_dim: int) -> Any:
    """Two values to their row of the packed ones."""

    @vector_code(int64, int64, int64)
    def pack_values(v: Lanes, even: Value, odd: Value, target: Value) -> None:
        for i in range(head_dim // WIDTH):
            at = HALF_BYTES * WIDTH * i
            v.interleave(v.offset(even, at), v.offset(odd, at), v.offset(target, TILE_BYTES * i))

    return pack_values


def _score(head_dim: int) -> Any:
    """Scores of up to 16 queries and 32 keys."""

    @vector_code(int64, int64, int64, int64, int64)
    def score(v: Lanes, query: Value, stride: Value, keys: Value, out: Value, width: Value) -> None:
        blocks, row_bytes = head_dim // tiles.INPUTS, v.constant_int(ROW_BYTES)
        tiles.zero(v, 0, 1)
        for i in range(blocks):
            tiles.load(v, 4, v.offset(query, ROW_BYTES * i), stride)
            for half in range(2):
                at = v.offset(keys, TILE_BYTES * (half * blocks + i))
                tiles.load(v, 5 + half, at, row_bytes)
                tiles.add_product(v, half, 4, 5 + half)
        for half in range(2):
            tiles.store(v, half, v.offset(out, ROW_BYTES * half), width)

    return score


def _weigh(head_dim: int) -> Any:
    """For numba: values times the weights of up to 16 queries."""
    row_bytes, whole = HALF_BYTES * head_dim, head_dim // ROWS // _TOTALS * _TOTALS
    left = head_dim // ROWS - whole
    zero, add, store = _total_code(_TOTALS, head_dim)
    zero_left, add_left, store_left = _total_code(left, head_dim)

    @njit(fastmath=True, error_model="numpy")
    def weigh(weights: int, stride: int, values: int, seen: int, totals: int) -> None:
        for tile in range(0, whole, _TOTALS):
            zero()
            for t in range(0, seen, _KEYS):
                add(weights + HALF_BYTES * t, stride, values + t * row_bytes + tile * TILE_BYTES)
            store(totals + tile * ROW_BYTES)
        if left:
            zero_left()
            for t in range(0, seen, _KEYS):
                values_at = values + t * row_bytes + whole * TILE_BYTES
                add_left(weights + HALF_BYTES * t, stride, values_at)
            store_left(totals + whole * ROW_BYTES)

    return weigh


def _total_code(num_tiles: int, head_dim: int) -> tuple[Any, Any, Any]:
    @vector_code()
    def zero(v: Lanes) -> None:
        tiles.zero(v, *range(num_tiles))

    @vector_code(int64, int64, int64)
    def add(v: Lanes, weights: Value, stride: Value, values: Value) -> None:
        tiles.load(v, 4, weights, stride)
        row_bytes = v.constant_int(ROW_BYTES)
        for i in range(num_tiles):
            packed = 5 + i % 3
            tiles.load(v, packed, v.offset(values, TILE_BYTES * i), row_bytes)
            tiles.add_product(v, i, 4, packed)

    @vector_code(int64)
    def store(v: Lanes, totals: Value) -> None:
        stride = v.constant_int(FLOAT_BYTES * head_dim)
        for i in range(num_tiles):
            tiles.store(v, i, v.offset(totals, ROW_BYTES * i), stride)

    return zero, add, store


def _softmax() -> Any:
    begin, larger, widest, exponentials, end = (
        _begin(),
        _larger(),
        _widest(),
        _exponentials(),
        _end(),
    )

    @njit(fastmath=True, error_model="numpy")
    def softmax(scores: int, seen: int, scale: float, weights: int, lanes: int) -> None:
        """Writes exp(scale (x - max)) of a row's scores as bfloat16; leaves their sum at `lanes`."""
        begin(lanes)
        for at in range(0, seen, _KEYS):
            larger(scores + at * FLOAT_BYTES, lanes)
        widest(lanes)
        for at in range(0, seen, _KEYS):
            exponentials(scores + at * FLOAT_BYTES, lanes, scale, weights + at * HALF_BYTES)
        end(lanes)

    return softmax


def _begin() -> Any:
    """Maxima at the least, sums at 0: a lane each, one after the other."""

    @vector_code(int64)
    def begin(v: Lanes, lanes: Value) -> None:
        v.store_floats(v.constant(LEAST), lanes, 0)
        v.store_floats(v.constant(0.0), lanes, 1)

    return begin


def _larger() -> Any:
    """Raises the maxima to 32 scores."""

    @vector_code(int64, int64)
    def larger(v: Lanes, scores: Value, lanes: Value) -> None:
        most = v.maximum(v.floats_at(scores, 0), v.floats_at(scores, 1))
        v.store_floats(v.maximum(most, v.floats_at(lanes, 0)), lanes, 0)

    return larger


def _widest() -> Any:
    """The largest of the maxima, in every lane."""

    @vector_code(int64)
    def widest(v: Lanes, lanes: Value) -> None:
        v.store_floats(v.all(v.largest(v.floats_at(lanes, 0))), lanes, 0)

    return widest


def _exponentials() -> Any:
    """Writes exp(scale (x - most)) of 32 scores as bfloat16, and adds it to the sums."""

    @vector_code(int64, int64, float32, int64)
    def exponentials(v: Lanes, scores: Value, lanes: Value, scale: Value, out: Value) -> None:
        most, sums = v.floats_at(lanes, 0), v.floats_at(lanes, 1)
        for half in range(2):
            below = v.difference(v.floats_at(scores, half), most)
            result = v.exp(v.product(below, v.all(scale)))
            v.store_halves(result, out, half)
            sums = v.sum(result, sums)
        v.store_floats(sums, lanes, 1)

    return exponentials


def _end() -> Any:
    """The sum of the sums, as the first number."""

    @vector_code(int64)
    def end(v: Lanes, lanes: Value) -> None:
        v.store_sum(v.floats_at(lanes, 1), lanes)

    return end


def _write(head_dim: int) -> Any:
    """A row of totals, by the sum of its weights, as bfloat16."""

    @vector_code(int64, int64, int64)
    def write(v: Lanes, totals: Value, total_weight: Value, out: Value) -> None:
        share = v.quotient(v.constant(1.0), v.float_at(total_weight))
        for block in range(head_dim // WIDTH):
            v.store_halves(v.product(v.floats_at(totals, block), share), out, block)

    return write
