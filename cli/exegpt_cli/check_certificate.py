"""`exegpt check-certificate`: a plan's proof checked from its file alone."""

from __future__ import annotations

import math
import time
from pathlib import Path

from exegpt_cli.output import Format, answer, progress
from exegpt_cli.summary import knobs
from exegpt_planner.bound import Bound
from exegpt_planner.certificate_check import check
from exegpt_planner.certificate_file import Checked, read_certificate
from exegpt_planner.errors import InvalidSpec


def run_check(path: Path, *, output: Format) -> None:
    """Print what was proved; raises `InvalidSpec` with everything that was not."""
    file = read_certificate(path)
    start_s = time.monotonic()
    with progress("Checking") as report:
        found = check(file, report)
    if output is Format.JSON:
        answer(found.model_dump_json(indent=2))
    if found.problems:
        raise InvalidSpec(str(path), found.problems)
    if output is Format.TEXT:
        answer(checked_text(found, file.bound, time.monotonic() - start_s))


def checked_text(found: Checked, bound: Bound, took_s: float) -> str:
    """What was proved, in a few lines."""
    within = "no schedule"
    if bound.limits is not None:
        within += " that keeps all limits"
    elif math.isfinite(bound.seconds):
        within += f" within {bound.seconds:g} s"
    lines = [
        f"Proved    {within} has more throughput than {found.queries_per_s:.2f} queries/s",
        f"Schedule  {knobs(found.schedule)}",
        f"Covered   {found.shapes:,} shapes, {found.spaces:,} spaces of a strategy on one or on a pair of sides: "
        f"{found.searched:,} that were searched, {found.spaces - found.searched:,} bounded as a whole",
        f"Checked   {found.leaves:,} leaves; {found.simulated:,} schedules simulated; {took_s:.1f} s",
    ]
    return "\n".join(lines + [f"Flag      {flag}" for flag in found.flags]) + "\n"
