"""What the engine asks of a model, whatever its family, and what families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from exegpt_planner.model_spec import ModelSpec
from exegpt_runner.kv_arena import KVShape
from exegpt_runner.layers.batch import Batch

COMPILED_ROWS = 2048  # beyond, compiling a product is little beside the product itself
COMPILED_SAMPLED = 256

LayerDone = Callable[[int], None]


def skip(layer: int) -> None:
    """Does nothing when a layer is done."""


class Model(Protocol):
    """Weights in memory and what they compute on packed rows."""

    @property
    def spec(self) -> ModelSpec:
        """The shape."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, rows and KV."""
        ...

    def warm_up(self) -> None:
        """Has the products compiled for the numbers of rows to come (seconds in all): else the first steps pay."""

    def embed(self, batch: Batch) -> Tensor:
        """The rows that go into the layers, (T, E)."""
        ...

    def run_layers(
        self, x: Tensor, batch: Batch, kv: Sequence[Tensor], has_kv: LayerDone = skip
    ) -> Tensor:
        """All layers on packed rows; writes their keys and values to `kv`, (2, G, C, D) a layer. x: (T, E).

        `has_kv(layer)` is called as soon as a layer's are written, before the rest of the layer runs.
        """
        ...

    def logits(self, x: Tensor) -> Tensor:
        """x: (T, E) after the layers; returns (T, V)."""
        ...


def kv_shape(spec: ModelSpec) -> KVShape:
    """What a token's keys and values take."""
    return KVShape(
        num_layers=spec.num_layers, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim
    )
