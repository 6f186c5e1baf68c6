"""A time that fluctuates: its mean and standard deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Of an answer of one length, from the start of its encode; or of a part of one."""

    mean_s: float
    sd_s: float

    def after(self, other: Latency) -> Latency:
        """This one and `other` before it, independent of each other."""
        return Latency(mean_s=self.mean_s + other.mean_s, sd_s=math.hypot(self.sd_s, other.sd_s))
