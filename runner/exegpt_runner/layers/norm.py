"""Root-mean-square normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import rms_norm

from exegpt_runner.layers.kernels import NormKernel, usable


class RMSNorm:
    """x / sqrt(mean(x**2) + eps) * weight, the mean over the last dimension. weight: (E,), or (H, D) for heads."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._eps = eps
        has_kernel = usable(weight.dtype, weight.shape[-1])
        self._kernel = NormKernel(weight.float(), eps) if has_kernel else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, E) or (T, H, D), the dimensions of the weight last."""
        if self._kernel is not None:
            return self._kernel(x)
        return rms_norm(x, x.shape[-1:], None, self._eps) * self.weight
