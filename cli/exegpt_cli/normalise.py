"""How an answer of any length compares with the bound, which is for answers of one length.

normaliser(L) = predicted mean latency of the bound's length / predicted mean latency of L
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from exegpt_cli.local import Ready, placed


def normaliser(ready: Ready) -> Callable[[int], float | None]:
    """By output length in tokens; None beyond the lengths that were planned for."""
    plan, wanted = ready.plan, ready.wanted
    space, point = placed(plan.schedule, wanted, ready.table, plan.kv_tokens_capacity)
    bound_length_s = space.promised_for(point, plan.length_tokens)

    @cache
    def ratio(output_tokens: int) -> float | None:
        if not 1 <= output_tokens <= wanted.workload.output.max:
            return None
        return bound_length_s / space.promised_for(point, output_tokens)

    return ratio
