"""Monte-Carlo runs of any schedule, on the workloads and tables that predictions are held against."""

from __future__ import annotations

import numpy as np

from exegpt_planner.profile_table import Curve, ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.workload import Workload
from planner.monte_carlo import Ints, Observed, run_cra, run_rra, run_waa

# Steps at 32 and 64 queries, as measured tables have them.
TILED = Curve(
    x=(0, 1, 2, 4, 8, 16, 24, 32, 33, 48, 64, 65, 96, 128, 256, 512),
    seconds=tuple(1e-4 * v for v in (0, 6, 6.2, 7, 8, 9, 11, 12, 15, 16, 17, 21, 23, 26, 40, 75)),
)
PROBES = 0.2  # enough answers of length s99 for a percentile of their latency
SEED = 20_26


def probed(workload: Workload) -> Workload:
    """The workload with probes of length s99, so that s99 answers are many."""
    return workload.with_probes(PROBES)


def observe(
    schedule: Schedule, machine: ProfileTable, workload: Workload, cycles: int, *, joint: bool
) -> Observed:
    rng = np.random.default_rng(SEED)

    def draw(n: int) -> tuple[Ints, Ints]:
        outputs = rng.choice(len(workload.output.pmf), size=n, p=workload.output.pmf)
        if not joint:
            return rng.choice(len(workload.input.pmf), size=n, p=workload.input.pmf), outputs
        return np.round(1.5 * outputs).astype(np.int64) + rng.integers(1, 14, n), outputs

    match schedule:
        case RraSchedule():
            return run_rra(
                machine,
                draw,
                batch=schedule.encode_batch,
                interval=schedule.encode_interval,
                cycles=cycles,
                warm_up=50,
            )
        case CraSchedule():
            return run_cra(
                machine,
                draw,
                pool=schedule.pool,
                chunk=schedule.chunk_tokens,
                iterations=cycles,
                warm_up=300,
            )
        case WaaSchedule():
            return run_waa(machine, draw, schedule, iterations=cycles, warm_up=500)
