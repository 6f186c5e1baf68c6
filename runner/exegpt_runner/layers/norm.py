"""Root-mean-square normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import rms_norm

from exegpt_runner.layers import kernels


class RMSNorm:
    """x / sqrt(mean(x**2) + eps) * weight, the mean over the last dimension. weight: (E,), or (H, D) for heads."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._eps = eps
        self._weight32 = weight.float()
        self._has_kernel = kernels.usable(weight.dtype, weight.shape[-1])

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, E) or (T, H, D), the dimensions of the weight last."""
        if not self._has_kernel:
            return rms_norm(x, x.shape[-1:], None, self._eps) * self.weight
        return kernels.rms_norm(x.contiguous(), self._weight32, self._eps)
