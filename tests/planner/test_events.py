"""The event simulation on one worker: two simulations written apart agree to the last digit, and with the closed forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog, Draw, Ints
from exegpt_planner.events.records import Run, Until
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    OrcaSchedule,
    RraSchedule,
    Schedule,
    StaticSchedule,
    WaaSchedule,
)
from exegpt_planner.simulator import simulate
from exegpt_planner.workload import Workload
from planner import monte_carlo
from planner.builders import bell, independent, point, summarization_like, table
from planner.observing import TILED, probed

MACHINE = table(queries=TILED)


def ration(workload: Workload, seed: int = 7, num: int = 40_000) -> Callable[[], Draw]:
    """Draws that hand out the same queries in the same order, however many are asked for at a time."""
    inputs, outputs = workload.sample(np.random.default_rng(seed), num)

    def begin() -> Draw:
        given = 0

        def draw(n: int) -> tuple[Ints, Ints]:
            nonlocal given
            given += n
            assert given <= num
            return inputs[given - n : given], outputs[given - n : given]

        return draw

    return begin


def observed(schedule: Schedule, draw: Draw) -> monte_carlo.Observed:
    match schedule:
        case RraSchedule(encode_batch=batch, encode_interval=interval):
            return monte_carlo.run_rra(
                MACHINE, draw, batch=batch, interval=interval, cycles=200, warm_up=0
            )
        case CraSchedule(pool=pool, chunk_tokens=chunk):
            return monte_carlo.run_cra(
                MACHINE, draw, pool=pool, chunk=chunk, iterations=2000, warm_up=0
            )
        case WaaSchedule():
            return monte_carlo.run_waa(MACHINE, draw, schedule, iterations=2000, warm_up=0)


@pytest.mark.parametrize(
    "schedule",
    [
        RraSchedule(encode_batch=6, encode_interval=7),
        RraSchedule(encode_batch=1, encode_interval=30),
        CraSchedule(pool=12, chunk_tokens=64),
        WaaSchedule(encoders=1, decoders=1, encode_batch=4, pool=16),
        WaaSchedule(encoders=2, decoders=1, encode_batch=8, pool=64),
        WaaSchedule(encoders=1, decoders=2, encode_batch=8, pool=50),
    ],
)
def test_every_latency_is_that_of_a_simulation_written_apart(schedule: Schedule) -> None:
    begin = ration(independent(bell(32, 17, 64), bell(9, 6, 30)))
    apart = observed(schedule, begin())
    ours = run(schedule, MACHINE, Backlog(begin()), Until(queries=apart.completed + 50, warm_up=0))
    for length, latencies_s in apart.latencies.items():
        seen = [each.latency_s for each in ours.ended if each.output == length]
        assert seen[: len(latencies_s)] == pytest.approx(latencies_s, rel=1e-9)
