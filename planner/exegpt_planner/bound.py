"""The latency bound that a plan keeps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from exegpt_planner.strict import StrictModel


class Bound(StrictModel):
    """On the 99th percentile of the latency of an answer of the percentile's length."""

    seconds: float = Field(gt=0, allow_inf_nan=True)  # inf: none
    percentile_length: float = Field(default=99, gt=0, le=100)
    mode: Literal["p99", "mean"] = "p99"  # mean: the paper's; fluctuation and table error ignored
