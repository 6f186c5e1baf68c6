"""Attention of packed rows over the arena: each query over its own contiguous keys and values.

A chunk at position 0 is causal; a later one needs a mask for its last columns, made once a step and shared by the
layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from exegpt_runner.layers.batch import Batch, ChunkRows

Masks = Sequence[Tensor | None]  # one a chunk


def attend(query: Tensor, kv: Tensor, batch: Batch, masks: Masks) -> Tensor:
    """Attention of each row over its query's KV; rows beyond the batch's are padding and come out as 0.

    query: (T, H, D), kv: (2, G, C, D); returns (T, H * D).
    """
    _, H, D = query.shape
    keys, values = kv.unsqueeze(1)  # (1, G, C, D) each
    rows = query[: len(batch.contexts)].unsqueeze(2).unsqueeze(1).unbind()  # (1, H, 1, D) each
    attended = [
        scaled_dot_product_attention(
            row, keys.narrow(2, start, context), values.narrow(2, start, context), enable_gqa=True
        ).view(1, H * D)
        for row, start, context in zip(rows, batch.kv_starts, batch.contexts, strict=True)
    ]
    for chunk, mask in zip(batch.chunks, masks, strict=True):
        context = chunk.start + chunk.num_tokens
        heads = query.narrow(0, chunk.first, chunk.num_tokens).transpose(0, 1)  # (H, t, D)
        out = scaled_dot_product_attention(
            heads.unsqueeze(0),
            keys.narrow(2, chunk.kv_start, context),
            values.narrow(2, chunk.kv_start, context),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        attended.append(out[0].transpose(0, 1).reshape(-1, H * D))
    if num_padding := len(query) - len(batch.tokens):
        attended.append(query.new_zeros(num_padding, H * D))
    return torch.cat(attended) if len(attended) > 1 else attended[0]


def causal_masks(batch: Batch, dtype: torch.dtype) -> Masks:
    """For each chunk that does not start its prompt, what each row may look at."""
    return [_mask(chunk, dtype) if chunk.start else None for chunk in batch.chunks]


def _mask(chunk: ChunkRows, dtype: torch.dtype) -> Tensor:
    """0 where row i of the chunk may look, -inf after; (t, start + t)."""
    full = torch.full((chunk.num_tokens, chunk.start + chunk.num_tokens), -torch.inf, dtype=dtype)
    return full.triu(chunk.start + 1)
