"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm


class RMSNorm:
    """x / sqrt(mean(x**2) + eps) * weight, the mean over the last dimension. weight: (E,), or (H, D) for heads."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._eps = eps
        self._weight32 = weight.float()
        self._eps32 = torch.tensor(eps)

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, E) or (T, H, D), the dimensions of the weight last."""
        if x.dtype != torch.bfloat16:
            return rms_norm(x, x.shape[-1:], None, self._eps) * self.weight
        # The same in float32 and in place: up to twice as fast on a CPU as torch's composite.
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # (T, 1)
        scale = torch.addcmul(self._eps32, length, length, value=1 / x.shape[-1]).rsqrt_()
        return wide.mul_(scale).mul_(self._weight32).bfloat16()
