"""How an answer of any length compares with the bound, which is for answers of one length.

normaliser(L) = predicted mean latency of the bound's length / predicted mean latency of L
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from exegpt_cli.local import Ready
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.schedule import CraSchedule, RraSchedule
from exegpt_planner.simulator.cra import CraModel
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.strategies import model_of

MOST_LENGTHS = 64  # predicted; the others by interpolation between their neighbours


def normaliser(ready: Ready) -> Callable[[int], float | None]:
    """By output length in tokens; None beyond the lengths that were planned for."""
    plan, law = ready.plan, CompletionLaw(ready.wanted.workload)
    model = model_of(plan.schedule.strategy, ready.table, law)
    longest = ready.wanted.workload.output.max

    def predicted_s(length: int) -> float:
        match plan.schedule, model:
            case RraSchedule(encode_batch=batch, encode_interval=interval), RraModel():
                return model.latency_mean_s(batch, interval, length)
            case CraSchedule(pool=pool, chunk_tokens=chunk), CraModel():
                return model.latency_mean_s(pool, chunk, length)
        raise AssertionError(plan.schedule)

    lengths = np.unique(np.linspace(1, longest, min(longest, MOST_LENGTHS)).round().astype(int))
    predictions_s = [predicted_s(int(length)) for length in lengths]
    bound_length_s = predicted_s(plan.length_tokens)

    def ratio(output_tokens: int) -> float | None:
        if not 1 <= output_tokens <= longest:
            return None
        return bound_length_s / float(np.interp(output_tokens, lengths, predictions_s))

    return ratio
