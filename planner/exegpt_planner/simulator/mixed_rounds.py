"""Rounds of a pipeline whose micro-batches are refilled every iteration, as CRA's and ORCA's are.

With t what the slowest stage spends on all M micro-batches, w the time of one micro-batch's pass with its message, an
iteration of a micro-batch lasts max(t, w) where steps are alike. They are not: none overtakes another, so a long step
holds up those behind it. What lasts, the number of queries in decode, holds them up by how much the longest of M is
longer than the mean (as in RRA's pool, pipeline.py). What is drawn anew in each step, its encode tokens, does so as far
as micro-batches meet: in a full pipeline by e, by which the largest of about 3/4 of the micro-batches that are near it
exceeds the mean; where w > t gaps between micro-batches are random walks, that of sd a step meets at a rate

    (M - 1) sd**2 / (w - t),   and holds up by   1 / (1 / e + (w - t) / ((M - 1) sd**2))

The iteration is the mean of max(t, w + that) as the largest varies. One stage is w alone. (Steps of any law simulated
on 2 to 16 stages; docs/theory.md.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from exegpt_planner.expectation import hinge
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.simulator.costs import StepCosts
from exegpt_planner.simulator.cra_steps import Decoding, Steps, StepTimes, step_times
from exegpt_planner.simulator.pipeline import Pipeline, Times

Floats = NDArray[np.float64]

REACH, POINTS = 8.0, 1601  # of normal values
TINY = 1e-300  # a variance of zero, without a special case


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """How passes differ from micro-batch to micro-batch, s; arrays over pools."""

    lasting_sd_s: Floats
    fresh_sd_s: Floats
    fresh_longer_s: Floats  # the largest that is met, over the mean
    fresh_largest_sd_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounds:
    """From one iteration of a micro-batch to its next; arrays over pools."""

    mean_s: Floats
    wait_var: Floats  # of what longer steps of others add, drawn anew in each


class MixedRounds:
    """Step times of one workload on a pipeline."""

    def __init__(
        self, pipeline: Pipeline, prompts: PromptMoments, decoding: Decoding, most: int | None
    ) -> None:
        """`most` is the largest pool of interest, of a micro-batch."""
        self.pipeline = pipeline
        reach = None if most is None else 1 << max(most - 1, 1).bit_length()  # shared by others
        self._by_costs = {
            costs: step_times(costs, prompts, decoding, reach)
            for costs in (pipeline.whole, *pipeline.stages)
        }
        self.whole = self._by_costs[pipeline.whole]
        number = pipeline.micro_batches
        self._longest_sds, self._longest_sd = _largest(number)
        self._met = (2 + 3 * min(number, pipeline.num_stages + 1)) / 4

    def times(self, steps: Steps, *, own: int, beside: tuple[float, int] | None = None) -> Times:
        """Mean times of a micro-batch's steps; `beside` is one's own (input, output), where `own` is 1."""

        def time_s(costs: StepCosts) -> Floats:
            return self._by_costs[costs].mean_s(steps, own=own, beside=beside)

        return self.pipeline.times(time_s)

    def spread(self, steps: Steps) -> Spread:
        """Of steps like these; zero where nothing differs or nobody waits for it."""
        if self.pipeline.num_stages == 1 or self.pipeline.micro_batches == 1:
            nothing = np.zeros(1)
            return Spread(
                lasting_sd_s=nothing,
                fresh_sd_s=nothing,
                fresh_longer_s=nothing,
                fresh_largest_sd_s=nothing,
            )
        mean_s, sd_s = self.whole.encode_moments(steps, 1.0)
        largest_s, largest_sd_s = self.whole.encode_moments(steps, self._met)
        return Spread(
            lasting_sd_s=np.sqrt(self.whole.decode_var(steps)),
            fresh_sd_s=sd_s,
            fresh_longer_s=np.maximum(largest_s - mean_s, 0.0),
            fresh_largest_sd_s=largest_sd_s,
        )

    def rounds(self, own: Times, others: Times, spread: Spread) -> Rounds:
        """Those of a micro-batch whose own steps are like `own`, the others' like `others`; their message included."""
        pipeline, way_s = self.pipeline, own.pass_s + self.pipeline.whole.dispatch_s
        number = pipeline.micro_batches
        if pipeline.num_stages == 1 or number == 1:
            return Rounds(mean_s=np.asarray(way_s), wait_var=np.zeros(1))
        slowest_s = own.slowest_s + (number - 1) * others.slowest_s
        slack_s = np.maximum(way_s - slowest_s, 0.0)
        square = (number - 1) * np.maximum(spread.fresh_sd_s**2, TINY)
        met = 1 / (1 + spread.fresh_longer_s * slack_s / square)
        longer_s = np.hypot(self._longest_sds * spread.lasting_sd_s, met * spread.fresh_longer_s)
        wait_var = (met * spread.fresh_largest_sd_s) ** 2
        over_s = way_s + longer_s - slowest_s
        if number <= pipeline.num_stages:  # the longest way takes as long as M of its stages
            waits = over_s > 0
            return Rounds(mean_s=slowest_s + np.maximum(over_s, 0.0), wait_var=waits * wait_var)
        # of the longest way less what the slowest stage spends on all, each of them the same work
        largest = (self._longest_sd * spread.lasting_sd_s) ** 2 + spread.fresh_largest_sd_s**2
        all_var = spread.lasting_sd_s**2 + spread.fresh_sd_s**2
        share = others.slowest_s / others.pass_s
        sd_s = np.sqrt(np.maximum(largest + all_var * share * (number * share - 2), TINY))
        return Rounds(
            mean_s=slowest_s + hinge(over_s, sd_s), wait_var=ndtr(over_s / sd_s) * wait_var
        )

    def pace(self, steps: Steps, times: Times) -> tuple[StepTimes, int]:
        """Whose times a query adds to, and of how many micro-batches the queries add to one's own iteration."""
        pipeline = self.pipeline
        number = pipeline.micro_batches
        if number * float(times.slowest_s.sum()) <= float(times.pass_s.sum()):
            return self.whole, 1
        stages = [self._by_costs[costs] for costs in pipeline.stages]
        found = max(
            stages,
            key=lambda each: float(each.mean_s(steps, own=0).sum()),
        )
        return found, number


def _largest(number: int) -> tuple[float, float]:
    """(mean, standard deviation) of the largest of so many standard normal values."""
    x = np.linspace(-REACH, REACH, POINTS)
    chances, middle = np.diff(ndtr(x) ** number), (x[1:] + x[:-1]) / 2
    mean = float(middle @ chances)
    return mean, float(np.sqrt((middle - mean) ** 2 @ chances))
