"""Whether a schedule's KV fits: the pool at its fullest, its own fluctuation and the arena's rounding counted in.

    capacity = (device_bytes - reserve_bytes - weights) / KV bytes a token
    need     = max over iterations of  mean + SDS sd,  of KV tokens and of the slack in the last granule of each query

A schedule that needs more is never chosen. Should a rare excursion pass the margin, admission waits or the youngest
query is encoded again: it costs time, not the process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.errors import ModelTooLarge

Floats = NDArray[np.float64]

KV_SDS = 4.0  # a normal pool passes mean + 4 sd in 3 of 100,000 cycles
KV_GRANULE_TOKENS = 64  # the arena's extents are whole granules


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """What one worker's device has, and what of it is not for weights and KV."""

    device_bytes: int
    reserve_bytes: int = 0
    holds_activations: bool = True  # the reserve does; else they are counted as a schedule has them

    def inputs(self) -> dict[str, int]:
        """What a plan depends on."""
        sizes = {"device_bytes": self.device_bytes, "reserve_bytes": self.reserve_bytes}
        return sizes if self.holds_activations else sizes | {"activations_apart": 1}

    def kv_tokens(self, *, weight_bytes: int, kv_bytes_per_token: int) -> int:
        """KV tokens that fit beside the weights; raises `ModelTooLarge` if not even the weights do."""
        free = self.device_bytes - self.reserve_bytes - weight_bytes
        if free < kv_bytes_per_token:
            raise ModelTooLarge(
                f"the weights take {_size(weight_bytes)}, but the device has {_size(self.device_bytes)}, of which "
                f"{_size(self.reserve_bytes)} are kept free: "
                "no room for KV. Use a device with more memory, a smaller dtype or a smaller model."
            )
        return free // kv_bytes_per_token


def too_large(weight_bytes: int, budget: MemoryBudget, devices: int) -> ModelTooLarge:
    """The error of a model that no layout on these devices holds."""
    each = _size(budget.device_bytes - budget.reserve_bytes)
    return ModelTooLarge(
        f"the weights take {_size(weight_bytes)}, and {devices} devices have {each} each for them and KV: no layout "
        "holds both. Use more devices, or ones with more memory, a smaller dtype or a smaller model."
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def needs(tokens: Floats, tokens_var: Floats, queries: Floats) -> Floats:
    """KV tokens to hold ready for pools with these laws, elementwise."""
    slack = (KV_GRANULE_TOKENS - 1) / 2
    slack_var = (KV_GRANULE_TOKENS**2 - 1) / 12
    sd = np.sqrt(tokens_var + queries * slack_var)
    return np.asarray(tokens + queries * slack + KV_SDS * sd)


def need(tokens: Floats, tokens_var: Floats, queries: Floats) -> float:
    """The largest of them: that of a pool whose law changes from iteration to iteration."""
    return float(np.max(needs(tokens, tokens_var, queries)))
