"""Searches of exegpt and AIConfigurator beside each other, for Llama 3.1 on eight H100.

    python benchmarks/search_beside.py --aiconfigurator /path/to/its/environment/bin/aiconfigurator

Prompts of 512 tokens, answers of 256, 5 s for a request. AIConfigurator (`pip install aiconfigurator`, in an
environment of its own) looks at tensor parallelism, batches, and aggregated or disaggregated serving, from measured
kernels; exegpt at shapes and schedules, from published figures. So the times are comparable, the throughputs of two
models of the machine are not. Times are of the whole command, and what each says its search took.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import time

from rich.console import Console
from rich.table import Table

from exegpt_planner.lengths import point
from exegpt_planner.workload import Workload
from paper_points import scenario

INPUT, OUTPUT, BOUND_S, DEVICES = 512, 256, 5.0, 8
MODELS = (
    ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B"),
    ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aiconfigurator", help="its command")
    command = parser.parse_args().aiconfigurator
    table = Table(title=f"{INPUT} in, {OUTPUT} out, {BOUND_S:g} s, {DEVICES} H100")
    for column in ("model", "search", "search, s", "command, CPU s", "evaluated", "requests/s"):
        table.add_column(column)
    for ours, theirs in MODELS:
        table.add_row(ours, "exegpt", *_exegpt(ours))
        if command is not None:
            table.add_row(ours, "AIConfigurator", *_aiconfigurator(command, theirs))
    Console(width=120).print(table)


def _exegpt(name: str) -> tuple[str, str, str, str]:
    lengths = Workload.independent(point(INPUT), point(OUTPUT), source="fixed")
    where = scenario(name, "h100", DEVICES, lengths)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    plan = where.plan(BOUND_S)
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    evaluated = sum(space.num_evaluations for space in plan.certificate.spaces)
    return (
        f"{took_s:.2f}",
        f"{cpu_s:.2f} (the search)",
        f"{evaluated:,} of {sum(space.num_schedules for space in plan.certificate.spaces):,}",
        f"{plan.prediction.queries_per_s:.0f} ({plan.schedule.strategy})",
    )


def _aiconfigurator(command: str, model: str) -> tuple[str, str, str, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            *(command, "cli", "default", "--no-color", "--model-path", model),
            *("--total-gpus", str(DEVICES), "--system", "h100_sxm", "--backend", "trtllm"),
            *("--isl", str(INPUT), "--osl", str(OUTPUT)),
            *("--request-latency", str(int(1000 * BOUND_S))),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = done.stdout + done.stderr
    took_s = _one(r"All experiments completed in ([\d.]+) seconds", text)
    results = sum(int(each) for each in re.findall(r"completed with (\d+) results", text))
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, f"{cpu_s:.2f}", f"{results} results", _one(r"Request Rate: ([\d.]+) req/s", text)


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"AIConfigurator's output does not say {pattern!r}:\n{text[-2000:]}")
    return found[1]


if __name__ == "__main__":
    main()
