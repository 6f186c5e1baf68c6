"""Attention of packed rows over the arena: each query over its own contiguous keys and values.

A chunk at position 0 is causal; a later one needs a mask for its last columns, made once a step and shared by the
layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from exegpt_runner.layers.batch import Batch, ChunkRows
from exegpt_runner.layers.chunk_attention import ChunkAttention
from exegpt_runner.layers.kernels import AttentionKernels, attention_kernels, usable
from exegpt_runner.layers.linear import padded
from exegpt_runner.layers.rotary import Rotation


@dataclass(frozen=True, slots=True)
class Heads:
    """What attention knows of a model: H query heads over G of keys and values, each D wide."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    frequencies: Tensor  # (D/2,) float32: radians a position
    kernels: AttentionKernels | None  # where this machine has them
    of_chunk: ChunkAttention | None

    @staticmethod
    def of(
        num_heads: int, num_kv_heads: int, head_dim: int, frequencies: Tensor, dtype: torch.dtype
    ) -> Heads:
        """With kernels, compiled now, if there are any for `dtype`."""
        shape = (num_heads, num_kv_heads, head_dim)
        if not usable(dtype, head_dim // 2):
            return Heads(*shape, frequencies, None, None)
        return Heads(*shape, frequencies, attention_kernels(*shape), ChunkAttention.of(*shape))


class Attention:
    """One step's attention: turns queries and keys, keeps the new keys and values, attends."""

    def __init__(self, heads: Heads, batch: Batch, dtype: torch.dtype) -> None:
        self._heads = heads
        self._batch = batch
        self._rotation = Rotation.at(padded(batch.positions, dtype), heads.frequencies)
        masked = batch.chunks if heads.of_chunk is None else ()  # the kernel needs no masks
        self._masks = [_mask(chunk, dtype) if chunk.start else None for chunk in masked]

    def __call__(self, qkv: Tensor, kv: Tensor) -> Tensor:
        """qkv: (T, H + 2G, D), turned in place; kv: (2, G, C, D), written at the batch's slots.

        Returns (T, H * D); rows beyond the batch's are padding and come out as 0.
        """
        batch, H, D = self._batch, self._heads.num_heads, self._heads.head_dim
        self._place(qkv, kv)
        attended = qkv.new_empty(len(qkv), H * D)
        self._decode(qkv, kv, attended)
        if (of_chunk := self._heads.of_chunk) is not None:
            for chunk in batch.chunks:
                of_chunk(qkv, kv, chunk, attended)
        else:
            self._encode(qkv, kv, attended)
        attended[len(batch.tokens) :] = 0
        return attended

    def _encode(self, qkv: Tensor, kv: Tensor, attended: Tensor) -> None:
        """The rows of chunks."""
        H, D = self._heads.num_heads, self._heads.head_dim
        for chunk, mask in zip(self._batch.chunks, self._masks, strict=True):
            context = chunk.start + chunk.num_tokens
            keys, values = kv.narrow(2, chunk.kv_start, context).unsqueeze(1)
            heads = qkv.narrow(0, chunk.first, chunk.num_tokens)[:, :H].transpose(0, 1)  # (H, t, D)
            out = scaled_dot_product_attention(
                heads.unsqueeze(0),
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=True,
            )
            rows = attended.narrow(0, chunk.first, chunk.num_tokens)
            rows.view(-1, H, D).copy_(out[0].transpose(0, 1))

    def _place(self, qkv: Tensor, kv: Tensor) -> None:
        slots, rotation, heads = self._batch.slots, self._rotation, self._heads
        if heads.kernels is not None:
            heads.kernels.place(qkv, rotation.cos, rotation.sin, slots, kv)
            return
        num_turned = heads.num_heads + heads.num_kv_heads
        rotation.turn_(qkv[:, :num_turned])
        new = qkv[: len(slots), heads.num_heads :].transpose(0, 1)  # (2G, S, D)
        kv.view(2 * heads.num_kv_heads, -1, heads.head_dim).index_copy_(1, slots, new)

    def _decode(self, qkv: Tensor, kv: Tensor, attended: Tensor) -> None:
        """The rows that decode, a query each."""
        batch, heads = self._batch, self._heads
        if heads.kernels is not None:
            heads.kernels.attend(qkv, kv, batch.kv_starts, batch.contexts, attended)
            return
        keys, values = kv.unsqueeze(1)  # (1, G, C, D) each
        for row, (start, context) in enumerate(
            zip(batch.kv_starts.tolist(), batch.contexts.tolist(), strict=True)
        ):
            query = qkv[row, : heads.num_heads].unsqueeze(1).unsqueeze(0)  # (1, H, 1, D)
            attended[row] = scaled_dot_product_attention(
                query,
                keys.narrow(2, start, context),
                values.narrow(2, start, context),
                enable_gqa=True,
            ).view(-1)


def _mask(chunk: ChunkRows, dtype: torch.dtype) -> Tensor:
    """0 where row i of the chunk may look, -inf after; (t, start + t)."""
    full = torch.full((chunk.num_tokens, chunk.start + chunk.num_tokens), -torch.inf, dtype=dtype)
    return full.triu(chunk.start + 1)
