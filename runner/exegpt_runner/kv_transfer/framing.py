"""What both ends of a push agree on: the method, the form of a layer's bytes, and their checksum.

The checksum of a layer is seeded with that of the header's bytes, so that a damaged header (another query, other
lengths of the same sum) shows at the first layer.
"""

from __future__ import annotations

from typing import Final

import torch
import xxhash

SERVICE: Final = "exegpt.v1.KV"
METHOD: Final = f"/{SERVICE}/Push"


def layer_bytes(tokens: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one layer's keys and values (2, G, T, D) of `tokens` tokens."""
    return 2 * num_kv_heads * tokens * head_dim * dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """The name on the wire, e.g. "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def seed_of(header: bytes) -> int:
    """The seed of the checksums in a stream that begins with `header`."""
    return xxhash.xxh3_64_intdigest(header)
