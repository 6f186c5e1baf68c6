"""What the simulator says of a plan's own schedule beyond the plan: its reach into the profile, other lengths.

    ratio(L) = predicted mean latency of the bound's length / predicted mean latency of L

makes a measured answer of L tokens comparable with the bound, which is for answers of one length.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule, WaaSchedule
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.models import model_for
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.workload import Workload

MOST_LENGTHS = 64  # predicted; the others by interpolation between their neighbours


class Simulated:
    """The simulator at one schedule."""

    def __init__(self, plan: Plan, table: ProfileTable, workload: Workload) -> None:
        self._plan, self._workload = plan, workload
        self._model = model_for(plan.schedule, table, CompletionLaw(workload))

    @property
    def edge(self) -> float:
        """How far the schedule reaches into the profile; 1 is its end."""
        match self._plan.schedule, self._model:
            case RraSchedule(encode_batch=batch, encode_interval=interval), RraModel() as rra:
                return max(batch / max(1, rra.max_batch), rra.edge(batch, interval))
            case CraSchedule(pool=pool, chunk_tokens=chunk), CraModel() as cra:
                return cra.edge(pool, chunk)
            case WaaSchedule(encode_batch=batch, pool=pool), WaaModel() as waa:
                return waa.edge(batch, pool)
        raise AssertionError(self._plan.schedule)

    def latency_s(self, length: int) -> float:
        """Mean latency of an answer of `length` tokens, from the start of its encode."""
        match self._plan.schedule, self._model:
            case RraSchedule(encode_batch=batch, encode_interval=interval), RraModel() as rra:
                return rra.latency_mean_s(batch, interval, length)
            case CraSchedule(pool=pool, chunk_tokens=chunk), CraModel() as cra:
                return cra.latency_mean_s(pool, chunk, length)
            case WaaSchedule(encode_batch=batch, pool=pool), WaaModel() as waa:
                return waa.latency_mean_s(batch, pool, length)
        raise AssertionError(self._plan.schedule)

    def normaliser(self) -> Callable[[int], float | None]:
        """The ratio by output length in tokens; None beyond the lengths that were planned for."""
        longest = self._workload.output.max
        lengths = np.unique(np.linspace(1, longest, min(longest, MOST_LENGTHS)).round())
        latencies_s = [self.latency_s(int(length)) for length in lengths]
        bound_length_s = self.latency_s(self._plan.length_tokens)

        def ratio(output_tokens: int) -> float | None:
            if not 1 <= output_tokens <= longest:
                return None
            return bound_length_s / float(np.interp(output_tokens, lengths, latencies_s))

        return ratio
