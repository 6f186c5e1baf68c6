"""What does a change of schedule cost? One saturated run, knobs turned through the gateway's RPC.

    python benchmarks/live_change.py [--model random] [--task T] [--turn 20] [--rounds 3]

N_D, B_E, and RRA to CRA and back, then CRA's B_D and C: the plan's own schedule A and another B in
turns (A B A B ...), and A to A as a control. From the step log: how many cycles begin by the old
knobs after the one under way when the change is made (0: the next one is new), and the tokens/s in
a window around each change over the mean of A's and B's own, taken from the other half of each
turn, all of whole cycles. The goal is for the minute around a change; the window here is as long as
a turn, half of it before the change and half after, and what is lost is scaled to a minute.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence

import numpy as np
from grpc import aio
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench_worker import Profiled, profiled
from exegpt_cli.foresee import foresee
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.control import listening
from exegpt_gateway.steering import Steering
from exegpt_gateway.step_log import Steps
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule
from exegpt_planner.workload import Workload
from exegpt_wire import gateway_pb2
from exegpt_wire.gateway_pb2_grpc import GatewayStub
from points import workload
from turns import Turn, in_turns, options, plan_of, times_s, tokens

MINUTE_S = 60.0


def main() -> None:
    parser = options(__doc__, turn_s=20.0, rounds=3)
    parser.add_argument("--only", default="", help="changes whose names hold this")
    given = parser.parse_args()
    load = workload(given.task)
    console = Console(width=160)
    with profiled(given.model, [load]) as ready:
        rra, cra = (plan_of(ready, load, given.bound, name) for name in ("RRA", "CRA"))
        table = Table(title=f"{given.model}, task {given.task}, turns of {given.turn:g} s")
        for column in ("change", "changes", "old cycles after", "tokens/s A, B",
                       "around / expected", "95 %", "lost in a minute"):  # fmt: skip
            table.add_column(column)
        for name, plan, a, b in _pairs(rra, cra):
            if given.only not in name:
                continue
            turns = [
                (label, each) for _ in range(given.rounds) for label, each in (("A", a), ("B", b))
            ]
            steps, taken = _run(ready, load, plan, turns, given.turn)
            row = _row(steps, taken, ready.table.kernel_s, given.turn)
            table.add_row(name, *row)
            console.print(name, *row, sep=" | ")
        console.print(table)


def _pairs(rra: Plan, cra: Plan) -> list[tuple[str, Plan, Schedule, Schedule]]:
    a, c = rra.schedule, cra.schedule
    assert isinstance(a, RraSchedule), a
    assert isinstance(c, CraSchedule), c
    interval, batch = a.encode_interval, a.encode_batch
    plain = RraSchedule(encode_batch=batch, encode_interval=interval)
    other = max(1, round(0.6 * interval))  # not beyond the longest answer, where cycles end early
    fewer = max(1, round(0.7 * batch))
    return [
        (f"control: N_D {interval} to {interval}", rra, plain, plain),
        (f"N_D {interval} to {other}", rra, plain,
         RraSchedule(encode_batch=batch, encode_interval=other)),
        (f"B_E {batch} to {fewer}", rra, plain,
         RraSchedule(encode_batch=fewer, encode_interval=interval)),
        (f"RRA to CRA ({c.pool}, {c.chunk_tokens})", rra, plain, c),
        (f"B_D {c.pool} to {max(1, round(0.7 * c.pool))}", cra, c,
         CraSchedule(pool=max(1, round(0.7 * c.pool)), chunk_tokens=c.chunk_tokens)),
        (f"C {c.chunk_tokens} to {c.chunk_tokens // 2}", cra, c,
         CraSchedule(pool=c.pool, chunk_tokens=c.chunk_tokens // 2)),
    ]  # fmt: skip


def _run(
    ready: Profiled,
    load: Workload,
    plan: Plan,
    turns: Sequence[tuple[str, Schedule]],
    turn_s: float,
) -> tuple[Steps, list[Turn]]:
    gateway: list[Steering] = []

    async def change(conductor: Conductor, schedule: Schedule) -> int:
        if not gateway:
            gateway.append(
                Steering(
                    conductor,
                    plan,
                    model_fingerprint=ready.spec.fingerprint,
                    foresee=lambda wanted, _: foresee(wanted, ready.table, load),
                )
            )
        with tempfile.TemporaryDirectory() as folder:
            address = f"unix://{folder}/control.sock"
            async with (
                listening(gateway[0], address, token=None),
                aio.insecure_channel(address) as channel,
            ):
                reply = await GatewayStub(channel).UpdateSchedule(
                    gateway_pb2.UpdateScheduleRequest(
                        schedule_json=schedule.model_dump_json(), beyond_bound=True
                    )
                )
        return reply.after_iterations

    return in_turns(ready, load, plan, turns, turn_s, change)


def _row(steps: Steps, taken: list[Turn], kernel_s: float, turn_s: float) -> list[str]:
    normalised, _ = times_s(steps, kernel_s)
    until, made = np.cumsum(normalised), np.cumsum(tokens(steps))

    whole = _cycles(steps)  # where one begins: part of a cycle has more, or fewer, tokens a second

    def rate(first_s: float, last_s: float) -> float:
        i, j = np.searchsorted(until[whole], (first_s, last_s))
        if j - i < 2:
            raise SystemExit("a window without a whole cycle: give a longer --turn")
        i, j = whole[i], whole[j - 1]
        return float((made[j] - made[i]) / (until[j] - until[i]))

    at = [float(until[max(turn.first - 1, 0)]) for turn in taken]
    ends = [*at[1:], float(until[-1])]
    own = {
        name: statistics.fmean(
            rate(begin + (end - begin) / 2, end - (end - begin) / 8)
            for turn, begin, end in zip(taken, at, ends, strict=True)
            if turn.name == name
        )
        for name in ("A", "B")
    }
    half_s = turn_s / 2
    ratios = []
    for before, turn, begin in zip(taken, taken[1:], at[1:], strict=False):
        expected = (own[before.name] + own[turn.name]) / 2
        ratios.append(rate(begin - half_s, min(begin + half_s, float(until[-1]))) / expected)
    mean, sd = statistics.fmean(ratios), statistics.stdev(ratios)
    margin = 2 * sd / len(ratios) ** 0.5
    lost = (1 - mean) * turn_s / MINUTE_S
    late = [_old_cycles(steps, turn) for turn in taken]
    return [
        str(len(ratios)),
        f"{max(late)} (largest of {len(late)})",
        f"{own['A']:.0f}, {own['B']:.0f}",
        f"{mean:.4f}",
        f"± {margin:.4f}",
        f"{lost:+.2%} ± {margin * turn_s / MINUTE_S:.2%}",
    ]


def _cycles(steps: Steps) -> NDArray[np.int64]:
    """The iterations before those that begin a step: as many tokens and as much time are then of whole cycles."""
    log = steps.iterations
    return np.array([i for i in range(len(log) - 1) if log[i].last and log[i].sequence])


def _old_cycles(steps: Steps, turn: Turn) -> int:
    """Steps decided after the change that are not by its schedule, before the first that is."""
    log = steps.iterations
    # The step of the next iteration had been sent when the change was made: under a backlog one always is.
    under_way = log[turn.first].sequence
    first = next(i for i in range(turn.first, len(log)) if log[i].sequence != under_way)
    count, i = 0, first
    while i < len(log):
        end = next((j for j in range(i, len(log)) if log[j].last), len(log) - 1)
        if _is_by(turn.schedule, log[i : end + 1]):
            return count
        count, i = count + 1, end + 1
    return count


def _is_by(schedule: Schedule, step: Sequence) -> bool:
    match schedule:
        case RraSchedule(encode_interval=interval):
            # Fewer iterations only where nobody is left to decode.
            return len(step) == 1 + interval or (len(step) <= interval and not step[-1].active)
        case CraSchedule(pool=pool, chunk_tokens=chunk):
            shape = step[0].shape
            encoded = shape.tokens - shape.decode_queries
            return len(step) == 1 and encoded <= chunk and (not encoded or step[0].active <= pool)
    return False


if __name__ == "__main__":
    main()
