"""KV for this worker: what may come, within which limits, and what came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exegpt_runner.kv_transfer.framing import layer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a fault or a stranger can make a landing hold, however it is configured."""

    header_bytes: int = 1 << 20  # enough for the queries below
    queries: int = 65_536  # of one transfer
    streams: int = 32  # at once; each holds a thread of the server, also while it waits for room
    ended_ids: int = 16_384  # remembered one by one (ids.py); some 2 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """What may come to this worker as it is configured, and how much of it at once."""

    incarnation: int
    epoch: int
    model_fingerprint: str
    weights_digest: str
    dtype: torch.dtype
    num_kv_heads: int
    head_dim: int
    first_layer: int
    num_layers: int
    capacity_bytes: int  # of all transfers that are coming or wait to be taken

    @property
    def layers(self) -> range:
        """This worker's layers."""
        return range(self.first_layer, self.first_layer + self.num_layers)

    def layer_bytes(self, tokens: int) -> int:
        """Bytes of one layer of `tokens` tokens."""
        return layer_bytes(tokens, self.num_kv_heads, self.head_dim, self.dtype)

    def transfer_bytes(self, tokens: int) -> int:
        """Bytes of a whole transfer of `tokens` tokens."""
        return self.num_layers * self.layer_bytes(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A whole transfer: KV of `queries`, their tokens one after the other, of every layer of this worker."""

    transfer: int
    queries: tuple[int, ...]
    tokens: tuple[int, ...]
    layers: Mapping[int, Tensor]

    def layer(self, index: int) -> Tensor:
        """Keys and values of the model's layer `index`: (2, G, T, D) over the tokens of all queries."""
        return self.layers[index]
