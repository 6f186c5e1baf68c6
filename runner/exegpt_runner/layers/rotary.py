"""Rotary position embedding: pairs (i, i + D/2) of a head turn by position x frequency_i.

Frequencies and angles are computed in float32, as `transformers` does, whatever the model's dtype: the checkpoints were
trained with these very numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from exegpt_planner.model_spec import LinearRopeScaling, Llama3RopeScaling, LlamaSpec


def frequencies(spec: LlamaSpec) -> Tensor:
    """Radians a position, (D/2,) float32, with the model's scaling."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    plain = 1.0 / (spec.rope_theta**exponents)
    match spec.rope_scaling:
        case None:
            return plain
        case LinearRopeScaling() as scaling:
            return plain / scaling.factor
        case Llama3RopeScaling() as scaling:
            return _llama3(plain, scaling)


def _llama3(plain: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Llama 3.1's scaling: long waves divided by `factor`, short ones kept, a linear blend between."""
    turns = scaling.original_context * plain / (2 * math.pi)  # over the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


@dataclass(frozen=True, slots=True)
class Rotation:
    """The turn of each row: `cos` and `sin` of its angles, (T, D/2) float32."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def at(positions: Tensor, frequencies: Tensor) -> Rotation:
        """The turn at `positions` (T,)."""
        angles = positions.to(torch.float32)[:, None] * frequencies
        return Rotation(angles.cos(), angles.sin())

    def turn_(self, heads: Tensor) -> None:
        """Turns `heads` (T, H, D) in place."""
        cos, sin = (each.to(heads.dtype)[:, None] for each in (self.cos, self.sin))
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(torch.cat((cos, cos), -1)).addcmul_(swapped, torch.cat((-sin, sin), -1))
