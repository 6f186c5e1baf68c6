"""exegpt's side of the comparison: the bounds, and one `exegpt serve` that is replanned for each by its manifest.

A bound lies a share of the way (geometrically) from the fastest schedule's promise to that of the schedule with most
throughput, as in points.py. Unbounded means: the most throughput within POOL queries, the room every peer has too.
The server follows its manifest in place; a plan is in force once /metrics shows its bound and its knobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from engines_load import Law
from engines_serving import end, on_cores
from exegpt_cli.bench.client import Target
from exegpt_cli.cache import Cache
from exegpt_cli.local import coverage_for, planning
from exegpt_cli.own_server import Announcement
from exegpt_cli.placement import Placement
from exegpt_cli.simulated import Simulated
from exegpt_cli.wanted import Wanted, read_wanted
from exegpt_planner.bound import Bound
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import NEAR_EDGE, Plan, make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import CraSchedule, RraSchedule
from exegpt_planner.strict import parse
from peers import PeerUnavailable
from points import PROBE_SHARE, SCALE, STRATEGIES, TASKS, UNBOUNDED_S, between, reach

POOL = 128  # queries that every server has room for
PLENTY = MemoryBudget(device_bytes=4 << 30, reserve_bytes=0)  # far above what these pools need
IN_FORCE_S = 120.0
EASING = 0.92  # of the way to the most throughput, until the schedule is well inside the profile; 4 s a plan


def write_manifest(
    path: Path, *, folder: Path, task: str, bound_s: float, strategies: tuple[str, ...] = STRATEGIES
) -> None:
    """A manifest for `task` at 1/8 of its lengths under `bound_s`; a server that follows it sees it whole."""
    lengths = {
        side: {"mean": mean / SCALE, "std": std / SCALE, "max": longest // SCALE}
        for side, (mean, std, longest) in zip(("input", "output"), TASKS[task], strict=True)
    }
    manifest = {
        "apiVersion": "exegpt.dev/v1alpha1",
        "kind": "ExeGPTDeployment",
        "metadata": {"name": "engines"},
        "spec": {
            "model": {"uri": f"file://{folder}", "servedName": "model", "dtype": "bfloat16"},
            "cluster": {"gpus": 1, "resourceName": "cpu"},
            "latencyBound": {"seconds": bound_s},
            "workload": lengths,
            "scheduling": {"strategies": list(strategies)},
        },
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(manifest))
    partial.rename(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is served, and the bounds it is served under."""

    wanted: Wanted
    table: ProfileTable
    bounds_s: dict[str, float]
    unbounded_s: float  # the promise of the most throughput

    @property
    def law(self) -> Law:
        load = self.wanted.workload
        return Law(workload=load, s99=load.s99, vocab=self.wanted.model.vocab)

    @property
    def context(self) -> int:
        """Tokens of the longest query."""
        return self.wanted.workload.input.max + self.wanted.workload.output.max

    def plan(self, bound_s: float, memory: MemoryBudget, strategies: tuple[str, ...]) -> Plan:
        return make_plan(
            table=self.table,
            model=self.wanted.model,
            workload=self.wanted.workload,
            bound=Bound(seconds=bound_s),
            memory=memory,
            strategies=strategies,
        )


def ask(manifest: Path, folder: Path, task: str, shares: dict[str, float]) -> Question:
    """Profiles the model, if need be, and sets the bounds."""
    cache = Cache.of_user()
    write_manifest(manifest, folder=folder, task=task, bound_s=UNBOUNDED_S)
    wanted = read_wanted(manifest, cache, probes=PROBE_SHARE)
    with planning(wanted, cache) as profiler:
        table = profiler.table(coverage_for(wanted.workload, wanted.model.context, POOL))
    capacity = PLENTY.kv_tokens(
        weight_bytes=wanted.model.weight_bytes("bfloat16"),
        kv_bytes_per_token=wanted.model.kv_bytes_per_token("bfloat16"),
    )
    fastest_s, most_s = reach(table, wanted.workload, capacity)
    bounds_s = {name: between(fastest_s, most_s, share) for name, share in shares.items()}
    question = Question(wanted=wanted, table=table, bounds_s=bounds_s, unbounded_s=most_s)
    share = 1.0
    while True:  # a plan at the profile's edge would make `exegpt serve` measure a larger one
        bound_s = between(fastest_s, most_s, share)
        plan = question.plan(bound_s, PLENTY, STRATEGIES)
        if Simulated(plan, table, wanted.workload).edge < NEAR_EDGE:
            return Question(wanted=wanted, table=table, bounds_s=bounds_s, unbounded_s=bound_s)
        share *= EASING


class Own:
    """`exegpt serve`, replanned in place."""

    def __init__(self, manifest: Path, question: Question, task: str, placement: Placement) -> None:
        self._manifest, self._question, self._task = manifest, question, task
        self._placement = placement
        self._process: subprocess.Popen[bytes] | None = None
        self._announced: Announcement | None = None
        self._plans: dict[tuple[float, tuple[str, ...]], Plan] = {}  # they take seconds

    @property
    def target(self) -> Target:
        """For `exegpt bench`'s client."""
        assert self._announced is not None
        return Target(url=self._announced.url, model=self._announced.model, extensions=True)

    def start(self, log: Path) -> None:
        """Serves under the tightest bound first: its plan lies well inside the profile."""
        self._write(min(self._question.bounds_s.values()), STRATEGIES)
        reading, writing = os.pipe()
        every = self._placement.worker_cores[0] + self._placement.other_cores
        serve = [sys.executable, "-m", "exegpt_cli.main", "serve", "-f", str(self._manifest)]
        options = ["--port", "0", "--probes", str(PROBE_SHARE), "--max-waiting", "100000"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*on_cores(every), *serve, *options, "--announce-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            line = pipe.readline()
        if not line:
            raise PeerUnavailable(f"exegpt serve did not start: {log.read_text()[-600:]}")
        self._announced = parse(Announcement, json.loads(line), source="exegpt serve")

    def follow(self, bound_s: float, strategies: tuple[str, ...] = STRATEGIES) -> Plan:
        """The plan for another bound, once it is in force."""
        assert self._announced is not None
        asked = (bound_s, strategies)
        plan = self._plans.get(asked) or self._planned(*asked)
        self._plans[asked] = plan
        self._write(bound_s, strategies)
        until = time.monotonic() + IN_FORCE_S
        while not _in_force(self._announced.metrics_url, plan):
            if time.monotonic() > until:
                raise PeerUnavailable(
                    f"exegpt serve has not followed its manifest to {plan.schedule}"
                )
            time.sleep(0.1)
        return plan

    def _planned(self, bound_s: float, strategies: tuple[str, ...]) -> Plan:
        """As the server itself will, with the KV that its worker holds already."""
        assert self._announced is not None
        model = self._question.wanted.model
        kv_bytes = self._announced.plan.kv_tokens_capacity * model.kv_bytes_per_token("bfloat16")
        held = MemoryBudget(device_bytes=model.weight_bytes("bfloat16") + kv_bytes)
        return self._question.plan(bound_s, held, strategies)

    def end(self) -> None:
        """The server, which ends its worker."""
        if self._process is not None:
            end(self._process)

    def _write(self, bound_s: float, strategies: tuple[str, ...]) -> None:
        write_manifest(
            self._manifest,
            folder=self._question.wanted.folder,
            task=self._task,
            bound_s=bound_s,
            strategies=strategies,
        )


def knobs(plan: Plan) -> str:
    """The schedule in a word."""
    match plan.schedule:
        case RraSchedule(encode_batch=batch, encode_interval=interval):
            return f"RRA {batch}/{interval}"
        case CraSchedule(pool=pool, chunk_tokens=chunk):
            return f"CRA {pool}/{chunk}"


def _in_force(metrics_url: str, plan: Plan) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(metrics_url, timeout=5.0) as reply:
        shown = {
            sample.name: sample.value
            for family in text_string_to_metric_families(reply.read().decode())
            for sample in family.samples
            if not sample.labels
        }
        wanted = {"exegpt_bound_seconds": plan.bound.seconds}
        match plan.schedule:
            case RraSchedule(encode_batch=batch, encode_interval=interval):
                wanted |= {"exegpt_schedule_encode_batch_queries": batch}
                wanted |= {"exegpt_schedule_encode_interval_iterations": interval}
            case CraSchedule(pool=pool, chunk_tokens=chunk):
                wanted |= {"exegpt_schedule_decode_batch_queries": pool}
                wanted |= {"exegpt_schedule_chunk_tokens": chunk}
        return all(shown.get(name) == value for name, value in wanted.items())
    return False
