"""What a plan must keep: a latency bound on whole answers, and whatever else is asked beside it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.simulator.promise import Limits, Promise
from exegpt_planner.strict import StrictModel

Limit = Annotated[float | None, Field(gt=0, exclude_if=lambda value: value is None)]


class Bound(StrictModel):
    """On the 99th percentile of the latency of an answer of the percentile's length, from the start of its encode.

    The others are kept too, each in the same mode. With an arrival rate all that counts from a query's beginning counts
    from its arrival, and the throughput must not be less.
    """

    seconds: float = Field(gt=0, allow_inf_nan=True)  # inf: none
    percentile_length: float = Field(default=99, gt=0, le=100)
    mode: Literal["p99", "mean"] = "p99"  # mean: the paper's; fluctuation and table error ignored
    all_answers_s: Limit = None  # 99 % of all answers, whatever their length
    first_token_s: Limit = None
    gap_s: Limit = None  # the longest between two tokens of an answer
    token_s: Limit = None  # a token after the first, mean over an answer
    arrivals_per_s: Limit = None

    @property
    def limits(self) -> Limits | None:
        """All of them; None where only whole answers of the percentile's length are bounded."""
        others = (self.all_answers_s, self.first_token_s, self.gap_s, self.token_s)
        if all(each is None for each in (*others, self.arrivals_per_s)):
            return None
        finite = (math.inf if each is None else each for each in others)
        names = ("all_answers_s", "first_token_s", "gap_s", "token_s")
        return Limits(
            answer_s=self.seconds,
            arrivals_per_s=self.arrivals_per_s or 0.0,
            **dict(zip(names, finite, strict=True)),
        )

    @property
    def reference_s(self) -> float:
        """What the search holds schedules against."""
        limits = self.limits
        return self.seconds if limits is None else limits.reference_s

    @property
    def in_words(self) -> str:
        """As in "no schedule keeps ..."."""
        return f"{self.seconds:g} s" if self.limits is None else "all limits"

    def promise(self, law: CompletionLaw, table: ProfileTable) -> Promise:
        """How schedules are held against it."""
        is_mean = self.mode == "mean"
        full = Promise.full(length=self.length(law), error=table.error_p95)
        return Promise(
            length=full.length,
            sds=0.0 if is_mean else full.sds,
            error=0.0 if is_mean else full.error,
            bound_s=self.reference_s,
            limits=self.limits,
        )

    def length(self, law: CompletionLaw) -> int:
        """Of the answers that it is about: tokens, and one more where a model's encode samples none."""
        return law.workload.output.quantile(self.percentile_length / 100)
