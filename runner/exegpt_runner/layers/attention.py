"""Attention of packed rows over the arena: each query over its own contiguous keys and values.

A decode query's heads that share a key-value head are folded into the query dimension, so nothing is repeated. A chunk
at position 0 is causal; a later one needs a mask for its last columns, made once a step and shared by the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from exegpt_runner.layers.batch import Batch, ChunkRows


def attend(query: Tensor, kv: Tensor, batch: Batch) -> Tensor:
    """Attention of each row over its query's KV. query: (T, H, D), kv: (2, G, C, D); returns (T, H * D)."""
    T, H, D = query.shape
    out = torch.empty_like(query)
    groups = kv.shape[1]
    spans = zip(batch.kv_starts.tolist(), batch.contexts.tolist(), strict=True)
    for row, (start, context) in enumerate(spans):
        keys, values = kv[:, None, :, start : start + context]  # (1, G, S, D)
        heads = query[row].view(1, groups, H // groups, D)
        out[row] = scaled_dot_product_attention(heads, keys, values).view(H, D)
    for chunk in batch.chunks:
        _attend_chunk(query, kv, chunk, out)
    return out.view(T, H * D)


def _attend_chunk(query: Tensor, kv: Tensor, chunk: ChunkRows, out: Tensor) -> None:
    context = chunk.start + chunk.num_tokens
    rows = slice(chunk.first, chunk.first + chunk.num_tokens)
    keys, values = kv[:, None, :, chunk.kv_start : chunk.kv_start + context]
    heads = query[rows].transpose(0, 1).unsqueeze(0)  # (1, H, t, D)
    is_first = chunk.start == 0
    attended = scaled_dot_product_attention(
        heads,
        keys,
        values,
        attn_mask=None if is_first else causal_mask(chunk, query.dtype),
        is_causal=is_first,
        enable_gqa=True,
    )
    out[rows] = attended[0].transpose(0, 1)


def causal_mask(chunk: ChunkRows, dtype: torch.dtype) -> Tensor:
    """0 where row i of the chunk may look, -inf after; (t, start + t)."""
    full = torch.full((chunk.num_tokens, chunk.start + chunk.num_tokens), -torch.inf, dtype=dtype)
    return full.triu(chunk.start + 1)
