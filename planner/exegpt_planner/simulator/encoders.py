"""WAA's encoders by B_E: how often an encode begins, how long it takes, and what a prompt more or less changes.

An encoder is a pipeline of P stages with at most P encodes underway. With the slowest stage's time t and a pass w, the
sending of the KV included,

    tau_E = max(t, w / P + held up) + dispatch

and an encode takes between w, where it is alone, and P tau_E - dispatch, where encoders never wait.

Encodes differ and none overtakes another, so the longest of those underway holds the others up: by HELD_UP times the
mean excess of the largest of P normal values. (Lines of 2 to 8 alike stages, encodes of 10 % and 30 % deviation: within
2 % of what a simulation shows.) One stage is P = 1, w = t, held up = 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from exegpt_planner.expectation import Hinges, add
from exegpt_planner.profile_table import HandOverCurves
from exegpt_planner.prompts import PromptMoments
from exegpt_planner.simulator.costs import COVERED_SDS
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]

HELD_UP = 0.87


class Encoders:
    """One of them, for every B_E; arrays are by B_E, [0] is unused."""

    def __init__(
        self,
        pipeline: Pipeline,
        hand_over: HandOverCurves,
        workload: Workload,
        prompts: PromptMoments,
        most: int | None,
        decoder: Pipeline,
    ) -> None:
        """`most` is the largest B_E of interest, where the profile covers more."""
        self.pipeline, self._prompts = pipeline, prompts
        self._encodes = EncodeTimes(pipeline, workload, prompts, most)
        self._sent, joined, exposed = (
            add([(1.0, curve)]) for curve in (hand_over.sent, hand_over.joined, hand_over.exposed)
        )
        self.hand_over_limit = min(self._sent.limit, joined.limit, exposed.limit)
        sent_s, self.exposed_s = self._by_batch(self._sent), self._by_batch(exposed)
        self.joined_s = self._joined_s(joined, decoder)
        times, end = self._encodes.times, len(sent_s)
        self._sent_s = sent_s
        self.pass_s = times.pass_s[:end] + sent_s
        number = pipeline.num_stages
        slowest_s = times.slowest_s[:end] + sent_s / number
        batches = np.arange(float(end))
        slopes = [self._encodes.slopes(costs, batches) for costs in pipeline.stages]
        token_s = np.max([each.token_s for each in slopes], axis=0)
        residual = np.max([each.residual_var for each in slopes], axis=0)
        each_var = (token_s + self._sent_slopes(batches) / number) ** 2 * prompts.tokens_var
        sds = np.sqrt(batches * (each_var + residual))
        held_up_s = HELD_UP * float(ndtri((number - 0.375) / (number + 0.25))) * sds
        # where one stage is slower than the others, these make up for a longer encode
        mean_s = self.pass_s / number + held_up_s
        self.interval_s = np.maximum(slowest_s, mean_s) + pipeline.whole.dispatch_s
        if number == 1:
            self.interval_s = self.pass_s + pipeline.whole.dispatch_s
        with np.errstate(divide="ignore"):
            self.spread = batches**2 * (each_var + residual) / self.interval_s**2

    @property
    def max_batch(self) -> int:
        """The largest B_E whose encode and hand-over the profile covers."""
        return len(self.pass_s) - 1

    @property
    def covers_an_encode(self) -> bool:
        """Whether the profile covers the encode of a prompt, handed over or not."""
        return self._encodes.max_batch > 0

    def taken_s(self, batch: int, busy: Floats | float) -> Floats:
        """Mean time of an encode and its sending, by the share of the time in which encoders encode."""
        alone_s = float(self.pass_s[batch])
        pipeline = self.pipeline
        in_line_s = pipeline.num_stages * float(self.interval_s[batch]) - pipeline.whole.dispatch_s
        return np.asarray(alone_s + busy * max(in_line_s - alone_s, 0.0))

    def own_excess_s(self, batch: int, length: int) -> float:
        """By how much longer the encode of an answer of `length` tokens takes than the mean."""
        excess = self.own_input(length)[0] - self._prompts.tokens
        more_s = float(self._encodes.own(length).pass_s[batch - 1])
        more_s -= float(self._encodes.times.pass_s[batch])
        return more_s + excess * self._sent_slope(batch)

    def own_passes_s(self, length: int) -> Floats:
        """A pass of the encode that an answer of `length` tokens is in, by B_E from 1 on."""
        excess = self.own_input(length)[0] - self._prompts.tokens
        batches = np.arange(1.0, self.max_batch + 1)
        own_s = self._encodes.own(length).pass_s[: self.max_batch]
        return np.asarray(own_s + self._sent_s[1:] + excess * self._sent_slopes(batches))

    def own_input(self, length: int) -> tuple[float, float]:
        """(mean, variance) of the prompt of an answer of `length` tokens."""
        return self._encodes.own_input(length)

    def token_cost(self, batch: int) -> tuple[float, float]:
        """(s per prompt token of an encode, variance of a prompt's cost beside that, s**2)."""
        slopes = self._encodes.slopes(self.pipeline.whole, np.array([float(batch)]))
        return float(slopes.token_s[0]) + self._sent_slope(batch), float(slopes.residual_var[0])

    def _sent_slope(self, batch: int) -> float:
        return float(self._sent_slopes(np.array([float(batch)]))[0])

    def _sent_slopes(self, batches: Floats) -> Floats:
        prompts = self._prompts
        sds = np.sqrt(batches * prompts.tokens_var)
        return self._sent.slope_mean(batches * prompts.tokens, sds)

    def _by_batch(self, curve: Hinges, parts: int = 1) -> Floats:
        """Mean seconds of a batch's KV, or of a part of it, as far as the hand-over was measured."""
        prompts = self._prompts
        b = np.arange(self._encodes.max_batch + 1, dtype=np.float64)
        sds = np.sqrt(b * prompts.tokens_var)
        covered = b * prompts.tokens + COVERED_SDS * sds <= self.hand_over_limit
        some = np.maximum(b[covered] / parts, np.minimum(b[covered], 1.0))
        return curve.mean(some * prompts.tokens, np.sqrt(some * prompts.tokens_var))

    def _joined_s(self, curve: Hinges, decoder: Pipeline) -> Floats:
        """What a batch that is dealt to a decoder's micro-batches adds to a round."""
        number = decoder.micro_batches
        each_s = self._by_batch(curve, number)
        if not decoder.is_filled:
            return each_s
        return each_s * np.minimum(np.arange(len(each_s)), number) / decoder.num_stages
