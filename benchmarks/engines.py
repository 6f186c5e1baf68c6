"""exegpt beside today's engines: the same weights, cores, lengths and load; tokens/s, and at an equal bound.

    python benchmarks/engines.py [--quick] [--model demo|random] [--task T] [--engines a,b] [--out FILE.json]

Every engine serves the same bf16 weights (ctranslate2 has none: float32, int8) over HTTP, on the cores that
`exegpt serve` gives its worker; HTTP and the load (`exegpt bench`'s client, lengths enforced, 20 % probes of length
s99) run on the others. All servers stay up and take turns, level by level of queries in flight, so that an hour's
speed is everyone's. A peer's figure at a bound is its best level whose s99 answers (99th percentile) keep it. exegpt
is measured twice: as planned for the bound, under a backlog; and as its peers are, in a closed loop.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from engines_fleet import Fleet, noted
from engines_load import Loader, Run
from engines_model import served_folder
from engines_own import POOL, Own, Question, ask, knobs
from engines_peers import PEERS, Peer, Room
from engines_report import Planned, Report, show, write
from engines_tuning import Tuned
from exegpt_cli.bench.own import backlog
from exegpt_cli.cache import Cache
from exegpt_cli.lifetime import open_many_files
from exegpt_cli.output import say
from exegpt_cli.own_server import NICENESS
from exegpt_cli.placement import leave_to_workers, this_machine
from peers import PeerUnavailable
from points import BOUND_SHARES, STRATEGIES

OWN = "exegpt"  # in the closed loop
LEVELS = (8, 16, 32, 64)  # queries in flight
QUICK_LEVELS = (8, 32)
UNKNOWN_S = 2.0  # what an s99 answer may take before anything is known
LONGEST_S = 45.0  # an s99 answer beyond is not waited for
HAIR_S = 0.001  # tells the closed loop's plan from the unbounded one in /metrics


def main() -> None:
    given = options()
    placement = this_machine()  # before this process leaves the worker's cores
    open_many_files()
    with tempfile.TemporaryDirectory(prefix="exegpt-engines-") as work, ExitStack() as stack:
        folder = served_folder(given.model, Cache.of_user())
        manifest = Path(work) / "manifest.json"
        shares = {"loose": BOUND_SHARES["loose"]} if given.quick else BOUND_SHARES
        question = ask(manifest, folder, given.task, shares)
        say(
            f"bounds: {question.bounds_s}, unbounded {question.unbounded_s:.3f} s, s99 {question.law.s99}"
        )
        room = Room(folder=folder, placement=placement, queries=POOL, context=question.context)
        tuned = {name: Tuned(name) for name in (OWN, *given.engines)}
        fleet = stack.enter_context(Fleet(given.engines, room, Path(work), tuned))
        own = Own(manifest, question, given.task, placement)
        stack.callback(own.end)
        own.start(Path(work) / "exegpt.log")
        leave_to_workers(placement)
        os.nice(NICENESS)  # once every server is started: the load yields to their HTTP side
        loader = Loader(question.law, placement)
        contest = Contest(given, question, own, fleet, tuned, loader)
        try:
            contest.run()
        finally:  # what was measured before an interruption is shown too
            report = Report(
                model=given.model,
                task=given.task,
                question=question,
                tuned=tuned,
                planned=contest.planned,
            )
            show(report)
            if given.out:
                write(report, given.out)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="two levels, one bound, some 5 minutes"
    )
    parser.add_argument("--model", default="demo", help="demo, random, or a folder")
    parser.add_argument("--task", default="T", choices=("S", "T", "G"))
    parser.add_argument("--engines", default=",".join(PEERS), help="peers, by name")
    parser.add_argument("--levels", help="queries in flight, ascending")
    parser.add_argument("--window", type=float, help="seconds measured a run")
    parser.add_argument(
        "--minutes", type=float, default=22.0, help="after which nothing is repeated"
    )
    parser.add_argument("--out", type=Path, help="write all figures as JSON here")
    given = parser.parse_args()
    given.engines = [name for name in given.engines.split(",") if name]
    if unknown := [name for name in given.engines if name not in PEERS]:
        parser.error(f"no engine is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    levels = QUICK_LEVELS if given.quick else LEVELS
    given.levels = tuple(map(int, given.levels.split(","))) if given.levels else levels
    given.window = given.window or (5.0 if given.quick else 12.0)
    return given


class Contest:
    """All runs, in turns."""

    def __init__(
        self,
        given: argparse.Namespace,
        question: Question,
        own: Own,
        fleet: Fleet,
        tuned: dict[str, Tuned],
        loader: Loader,
    ) -> None:
        self._given, self._question, self._own = given, question, own
        self._fleet, self._tuned, self._loader = fleet, tuned, loader
        self._until = time.monotonic() + 60 * given.minutes
        self.planned: list[Planned] = []

    def run(self) -> None:
        """Plans and levels in turn, then finer levels, then, while there is time, the best again."""
        self._plans()
        self._close_loop()
        for in_flight in self._given.levels:
            for name in self._engines():
                if not self._tuned[name].is_full(self._loosest_s):
                    self._run(name, in_flight)
        if self._given.quick:
            return
        for bound_s in self._question.bounds_s.values():
            for name in self._engines():
                finer = self._tuned[name].finer(_clock(name), bound_s)
                if finer is not None and self._has_time():
                    self._run(name, finer)
        self._again()

    @property
    def _loosest_s(self) -> float:
        return max(self._question.bounds_s.values())

    def _again(self) -> None:
        bounds_s = list(self._question.bounds_s.values())
        for name in reversed(list(self._engines())):
            for in_flight in self._tuned[name].winners(_clock(name), bounds_s):
                if self._has_time():
                    self._run(name, in_flight)
        if self._has_time():
            self._plans()

    def _engines(self) -> Iterator[str]:
        yield OWN
        yield from self._fleet.running

    def _has_time(self) -> bool:
        return time.monotonic() < self._until

    def _plans(self) -> None:
        """exegpt as planned for each bound, and for none, with a backlog."""
        bounds = self._question.bounds_s | {"unbounded": self._question.unbounded_s}
        for bound, bound_s in bounds.items():
            plan = self._own.follow(bound_s)
            run = self._loader.run(
                f"{OWN}, {bound}",
                self._own.target,
                in_flight=backlog(plan),
                settle_s=plan.prediction.latency_mean_s,
                window_s=self._given.window,
            )
            self.planned.append(
                Planned(bound=bound, bound_s=bound_s, knobs=knobs(plan), plan=plan, run=run)
            )
            say(
                f"{_line(run)}  {knobs(plan)}, predicted {plan.prediction.tokens_per_s:.0f} tokens/s"
            )

    def _close_loop(self) -> None:
        """From now on exegpt admits whatever is in flight, in chunks, as its peers do."""
        chunked = tuple(name for name in STRATEGIES if name == "CRA")
        self._own.follow(self._question.unbounded_s + HAIR_S, chunked)

    def _run(self, name: str, in_flight: int) -> None:
        tuned = self._tuned[name]
        settle_s = tuned.expected_s(in_flight, UNKNOWN_S)
        if settle_s > LONGEST_S:
            return
        with noted(tuned):
            target = self._own.target if name == OWN else self._fleet.target(name, in_flight)
            run = self._loader.run(
                name, target, in_flight=in_flight, settle_s=settle_s, window_s=self._given.window
            )
            if run.num_failed or run.wrong_lengths:
                raise PeerUnavailable(
                    f"{run.num_failed} of its answers failed ({run.first_error}), "
                    f"{run.wrong_lengths} were of another length than asked for"
                )
            tuned.runs.append(run)
            say(_line(run))


def _clock(name: str) -> str:
    """By which an engine is tuned: its own where it tells, else the client's."""
    peer: Peer | None = PEERS.get(name)
    return "start" if peer is not None and peer.tells_start else "sending"


def _line(run: Run) -> str:
    latency = f"{run.settled_s:.2f}" if run.from_sending_s else "-"
    return (
        f"{run.engine:20s} {run.in_flight:4d} in flight {run.tokens_per_s:7.1f} tokens/s, "
        f"{len(run.from_sending_s):3d} s99 answers of {latency} s from sending; kernel {1e3 * run.kernel_s:.2f} ms, "
        f"busy {run.engine_busy:.2f}/{run.front_busy:.2f}, stolen {run.stolen:.2f}"
    )


if __name__ == "__main__":
    main()
