"""Does run-time adjustment keep stages steady, and at what price? One saturated run, on and off in turns.

    python benchmarks/adjustment.py [--model random] [--task T] [--turn 30] [--rounds 3]

RRA at the plan's B_E and N_D. From the step log, after the first quarter of each turn: standard
deviation over mean of an encode's time and of a decode iteration's mean time in a cycle (as
exegpt_stage_time_variation_ratio), of the encodes' tokens and of the pool an encode finds, and
tokens/s.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from bench_worker import profiled
from exegpt_cli.foresee import foresee
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.step_log import Steps
from exegpt_planner.schedule import RraSchedule, Schedule
from points import workload
from turns import Floats, Turn, in_turns, options, plan_of, times_s, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """One turn."""

    encode: float  # sd / mean of its time
    decode: float
    encode_tokens: float
    pool: float  # sd / mean, as an encode finds it
    batch: float  # mean
    pool_mean: float
    tokens_per_s: float


def main() -> None:
    parser = options(__doc__, turn_s=30.0, rounds=3)
    parser.add_argument("--b-e", type=int, help="instead of the plan's")
    parser.add_argument("--n-d", type=int, help="instead of the plan's")
    given = parser.parse_args()
    load = workload(given.task)
    with profiled(given.model, [load]) as ready:
        plan = plan_of(ready, load, given.bound, "RRA")
        knobs = plan.schedule
        assert isinstance(knobs, RraSchedule), knobs
        off = RraSchedule(
            encode_batch=given.b_e or knobs.encode_batch,
            encode_interval=given.n_d or knobs.encode_interval,
        )
        adjusted = foresee(plan.model_copy(update={"schedule": off}), ready.table, load)
        on = adjusted.plan.schedule
        print(f"{off}\n{on}")
        if on == off:
            raise SystemExit("this plan has no adjustment: choose other --b-e and --n-d")

        async def change(conductor: Conductor, schedule: Schedule) -> int:
            conductor.reschedule(schedule, adjusted.promise)
            return conductor.num_iterations

        turns = [pair for _ in range(given.rounds) for pair in (("off", off), ("on", on))]
        steps, taken = in_turns(ready, load, plan, turns, given.turn, change)
    _report({name: _steady(steps, taken, name, ready.table.kernel_s) for name in ("off", "on")})


def _steady(steps: Steps, taken: list[Turn], name: str, kernel_s: float) -> list[Steadiness]:
    seconds, _ = times_s(steps, kernel_s)
    made, log = tokens(steps), steps.iterations
    ends = [*(turn.first for turn in taken[1:]), len(log)]
    found = []
    for turn, end in zip(taken, ends, strict=True):
        if turn.name != name:
            continue
        first = turn.first + (end - turn.first) // 4
        encodes = [i for i in range(first, end) if log[i].shape.encode_chunks]
        cycles = list(itertools.pairwise(encodes))
        whole = slice(encodes[0], encodes[-1])
        found.append(
            Steadiness(
                encode=_variation(np.array([seconds[i] for i, _ in cycles])),
                decode=_variation(np.array([seconds[i + 1 : j].mean() for i, j in cycles])),
                encode_tokens=_variation(np.array([log[i].shape.tokens for i, _ in cycles])),
                pool=_variation(np.array([log[i - 1].active for i, _ in cycles])),
                batch=statistics.fmean(log[i].shape.encode_chunks for i, _ in cycles),
                pool_mean=statistics.fmean(log[i - 1].active for i, _ in cycles),
                tokens_per_s=float(made[whole].sum() / seconds[whole].sum()),
            )
        )
    return found


def _variation(values: Floats) -> float:
    return float(values.std() / values.mean())


def _report(found: dict[str, list[Steadiness]]) -> None:
    table = Table(title="Mean over the turns, and their range")
    for column in ("", "off", "on", "on / off"):
        table.add_column(column)
    for field in Steadiness.__dataclass_fields__:
        values = {name: [getattr(each, field) for each in found[name]] for name in found}
        means = {name: statistics.fmean(each) for name, each in values.items()}
        cells = [
            f"{means[name]:.4g} ({min(values[name]):.4g} to {max(values[name]):.4g})"
            for name in ("off", "on")
        ]
        table.add_row(field, *cells, f"{means['on'] / means['off']:.3f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
