"""Matrix products, with weights kept in the layout that the device multiplies fastest.

In bfloat16 on a CPU that is oneDNN's blocked layout, made once: torch's own linear makes it again at each call, which
costs more than the product for 2 to 256 rows (measured 1.4-1.8 times as slow). oneDNN also adds, multiplies or
activates in the product's epilogue. The blocked weights replace the plain ones. oneDNN compiles a product anew for each
number of rows it has not met, which takes as long as several products; so rows are `padded` to few numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu

from exegpt_runner.layers.few_rows import FewRows

# One layout serves all: the one for 32 rows was as fast at 1 and at 1024 rows as theirs.
_PACKED_FOR_ROWS = 32
_onednn: Any = torch.ops.mkldnn  # without type information
# The overloads by name: finding the right one at each call costs some 3 us, 150 times a step.
_product: Any = _onednn._linear_pointwise.default
_combined_product: Any = _onednn._linear_pointwise.binary


Activation = Literal["silu", "relu", "gelu_tanh"]
_PLAIN: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "relu": relu,
    "gelu_tanh": functools.partial(gelu, approximate="tanh"),
}
_FUSED: dict[Activation, tuple[str, str]] = {  # oneDNN's names
    "silu": ("swish", ""),
    "relu": ("relu", ""),
    "gelu_tanh": ("gelu", "tanh"),
}


class Linear:
    """x @ weight.T + bias. weight: (out, in)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._is_packed = packs(weight.dtype)
        self._few_rows: FewRows | None = None
        self._weight = weight
        if self._is_packed:
            self._weight = _onednn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
            self._few_rows = FewRows.of(self._weight, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, in); returns (T, out)."""
        if (few_rows := self._of(len(x))) is not None:
            return few_rows(x, "none")
        if self._is_packed:
            return self._fused(x, "none")
        return linear(x, self._weight, self._bias)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Other + the product. other: (T, out)."""
        if (few_rows := self._of(len(x))) is not None:
            return few_rows(x, "add", other)
        if self._is_packed:
            return self._combined(x, other, "add")
        return other + linear(x, self._weight, self._bias)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """Other times the product. other: (T, out)."""
        if (few_rows := self._of(len(x))) is not None:
            return few_rows(x, "multiply", other)
        if self._is_packed:
            return self._combined(x, other, "mul")
        return other * linear(x, self._weight, self._bias)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        """The product, through an activation."""
        if activation != "gelu_tanh" and (few_rows := self._of(len(x))) is not None:
            return few_rows(x, activation)
        if self._is_packed:
            return self._fused(x, *_FUSED[activation])
        return _PLAIN[activation](linear(x, self._weight, self._bias))

    def _of(self, num_rows: int) -> FewRows | None:
        """The kernel for so many rows, if there is one."""
        return self._few_rows if self._few_rows and self._few_rows.takes(num_rows) else None

    def _fused(self, x: Tensor, activation: str, algorithm: str = "") -> Tensor:
        result: Tensor = _product(x, self._weight, self._bias, activation, [], algorithm)
        return result

    def _combined(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        result: Tensor = _combined_product(x, other, self._weight, self._bias, operation)
        return result


def num_padded(num_rows: int) -> int:
    """`num_rows` rounded up to one of eight sizes an octave, multiples of 8: at most an eighth more above 64."""
    if num_rows <= 1:
        return num_rows
    grain = max(8, 1 << max((num_rows - 1).bit_length() - 4, 0))
    return -(-num_rows // grain) * grain


def padded_sizes(most: int) -> list[int]:
    """The values of `num_padded` up to `most` rows, which must be one of them."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(num_padded(sizes[-1] + 1))
    return sizes


def padded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` (T, ...) with rows of zeros up to `num_padded`, where weights of `dtype` are packed."""
    missing = num_padded(len(x)) - len(x) if packs(dtype) else 0
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether weights of `dtype` are kept blocked on this machine."""
    return dtype == torch.bfloat16 and bool(_onednn._is_mkldnn_bf16_supported())
