"""What the operator costs and how quick it is: 50 deployments on a real API server, with fake nodes and pods.

    python benchmarks/operator_fleet.py [--size 50] [--rest 60] [--strategies RRA WAA CRA]

The file is not called operator.py: Python's own module of that name would be hidden from all benchmarks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "planner", "runner", "cli", "operator")]

from cluster import binaries, steps  # noqa: E402 - from the tests
from cluster.control_plane import ControlPlane  # noqa: E402 - from the tests
from cluster.fake_node import FakeNodes  # noqa: E402 - from the tests
from cluster.fleet import Fleet  # noqa: E402 - from the tests
from cluster.steps import OperatorProcess, Site  # noqa: E402 - from the tests

ONE_BY_ONE = 50  # deployments applied while the operator has nothing else to do


def main() -> None:
    parser = argparse.ArgumentParser(description="The operator with many deployments.")
    parser.add_argument("--size", type=int, default=50)
    parser.add_argument("--rest", type=float, default=60.0, help="seconds watched at rest")
    parser.add_argument("--strategies", nargs="+", default=["RRA"], help="planned for each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane.started(
            Path(folder) / "run", binaries.build(binaries.CONTROL_PLANE), for_nodes=False
        )
        try:
            plane.define(sorted((ROOT / "crds").glob("*.yaml")))
            _measure(plane, Path(folder), options)
        finally:
            plane.stop()


def _measure(plane: ControlPlane, folder: Path, options: argparse.Namespace) -> None:
    size, strategies = options.size, tuple(options.strategies)
    nodes = FakeNodes(plane)
    nodes.add("fake-0", {steps.DEVICE: 10_000})
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": steps.HOME}}
    plane.apply(home)
    operator = OperatorProcess(steps.operator_kubeconfig(plane), folder / "log", "--cluster-wide")
    operator.start()
    try:
        print(f"python {' '.join(sys.argv)}: {psutil.cpu_count()} cores, all on one machine\n")
        print(f"| {size} deployments of two worker pods | p50 | p99 |\n|---|---|---|")
        alone = Fleet(
            Site.made(plane, nodes, "alone"), min(size, ONE_BY_ONE), strategies=strategies
        )
        alone.profile()
        _row("apply -> worker pods, s: one at a time", _applied_in_turn(alone))
        for name in alone.names():
            alone.site.delete(name)
        fleet = Fleet(Site.made(plane, nodes, "fleet"), size, strategies=strategies)
        fleet.profile()
        for name in fleet.names():
            fleet.apply(name)
        fleet.until_ready()
        _row("apply -> worker pods, s: all at once", fleet.made_after_s())
        _row("annotation -> gateway has its plan, s: one at a time", _steered_in_turn(fleet))
        for name in fleet.names():
            fleet.annotate(name)
        fleet.until_steered(since=0)
        fleet.until_ready()
        _rest(operator, fleet, options.rest)
    finally:
        operator.kill()
        nodes.stop()


def _applied_in_turn(fleet: Fleet) -> list[float]:
    for name in fleet.names():
        fleet.apply(name)
        fleet.site.until_ready(name)
    return fleet.made_after_s()


def _steered_in_turn(fleet: Fleet) -> list[float]:
    found = []
    for index, name in enumerate(fleet.names()[:ONE_BY_ONE]):
        fleet.annotate(name)
        one = fleet.one(index)
        one.until_steered(since=0)
        found += one.steered_after_s()
        fleet.site.until_ready(name)
    return found


def _rest(operator: OperatorProcess, fleet: Fleet, rest_s: float) -> None:
    """Memory and writes when nothing is to be done."""
    before, process = len(fleet.site.plane.writes()), psutil.Process(operator.pid)
    cpu = sum(process.cpu_times()[:2])
    time.sleep(rest_s)
    used = sum(process.cpu_times()[:2]) - cpu
    planner = [child.memory_info().rss for child in process.children()]
    print(f"| memory of the operator, MB | {process.memory_info().rss / 1e6:.0f} | |")
    print(f"| memory of its planner's processes, MB | {sum(planner) / 1e6:.0f} | |")
    print(
        f"| writes a minute at rest, beside its Lease | {fleet.writes(before) * 60 / rest_s:g} | |"
    )
    print(f"| CPU at rest, of one core | {used / rest_s:.2f} | |")


def _row(what: str, seconds: Sequence[float]) -> None:
    p50, p99 = np.quantile(seconds, (0.5, 0.99))
    print(f"| {what} | {p50:.2f} | {p99:.2f} |", flush=True)


if __name__ == "__main__":
    main()
