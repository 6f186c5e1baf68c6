"""What a device reaches, and the few forms that its times take as curves.

A product of `rows` packed tokens with a matrix of w parameters, b bytes each, takes the longer of reading and
computing,

    max(w b / (memory * bandwidth), 2 w rows / (gemm * peak))

The ridge, rows = b gemm peak / (2 memory bandwidth), does not depend on the matrix's shape: products of any number
together have one knot.
"""

from __future__ import annotations

from dataclasses import dataclass

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.hardware.calibrations import Efficiencies
from exegpt_planner.hardware.devices import Device
from exegpt_planner.model_spec import BYTES_PER_NUMBER
from exegpt_planner.profile_table import Curve

DTYPES = ("float16", "bfloat16")  # what the devices' published tensor rates are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one device reaches, and the bytes of a number."""

    number_bytes: int
    bytes_per_s: float
    gemm_flops_per_s: float
    attention_flops_per_s: float

    @classmethod
    def of(cls, device: Device, efficiencies: Efficiencies, dtype: str) -> Rates:
        """A device's published rates times what is reached of them."""
        if dtype not in DTYPES:
            problem = f"published rates are of {' and '.join(DTYPES)}, not {dtype!r}"
            raise InvalidSpec("dtype", [problem])
        return cls(
            number_bytes=BYTES_PER_NUMBER[dtype],
            bytes_per_s=device.memory_bytes_per_s * efficiencies.memory,
            gemm_flops_per_s=device.tensor_flops_per_s * efficiencies.gemm,
            attention_flops_per_s=device.tensor_flops_per_s * efficiencies.attention,
        )

    def moved_s(self, numbers: float) -> float:
        """Seconds of reading or writing so many numbers."""
        return numbers * self.number_bytes / self.bytes_per_s

    @property
    def ridge(self) -> float:
        """Rows for which a product computes as long as it reads its weights."""
        return self.number_bytes * self.gemm_flops_per_s / (2 * self.bytes_per_s)

    def products(self, parameters: float, *, row_s: float, fixed_s: float, last: float) -> Curve:
        """Seconds of products with so many parameters by their rows; `row_s` more a row, `fixed_s` more in all."""
        read_s = fixed_s + self.moved_s(parameters)
        compute_s = fixed_s + 2 * parameters * last / self.gemm_flops_per_s
        return Curve(
            x=(0.0, self.ridge, last),
            seconds=(read_s, read_s + row_s * self.ridge, compute_s + row_s * last),
        )


def line(slope: float, last: float, *, at_zero: float = 0.0) -> Curve:
    """An affine curve."""
    return Curve(x=(0.0, last), seconds=(at_zero, at_zero + slope * last))


def unless_none(curve: Curve) -> Curve:
    """The curve from 1 on; nothing at 0, where what it times does not happen."""
    later = [(x, s) for x, s in zip(curve.x, curve.seconds, strict=True) if x > 1]
    x, seconds = zip((0.0, 0.0), (1.0, curve(1.0)), *later, strict=True)
    return Curve(x=x, seconds=seconds)
