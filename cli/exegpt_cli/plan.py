"""`exegpt plan` and `profile`: the schedule, and the step times it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from exegpt_cli.cache import Cache
from exegpt_cli.imagined import imagine
from exegpt_cli.lifetime import ending_cleanly
from exegpt_cli.local import plan_on_profile, planning
from exegpt_cli.output import Format, answer, progress
from exegpt_cli.plan_options import PlanOptions
from exegpt_cli.summary import plan_text, profile_text
from exegpt_cli.wanted import Wanted, read_wanted
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.workload import Workload


class Asked(NamedTuple):
    """A plan and what it rests on."""

    workload: Workload
    table: ProfileTable
    plan: Plan


def show_plan(options: PlanOptions, *, output: Format) -> None:
    """Print the plan that the options ask for."""
    plan = asked(options).plan
    answer(plan.model_dump_json(indent=2) if output is Format.JSON else plan_text(plan))


def asked(options: PlanOptions) -> Asked:
    """What the options ask for, planned."""
    if options.imagined:
        with progress("Planning"):
            imagined = imagine(options)
            return Asked(imagined.workload, imagined.table, imagined.plan())
    wanted, table, plan = planned(file_of(options), options.strategy)
    return Asked(wanted.workload, table, plan)


def file_of(options: PlanOptions) -> Path:
    """The manifest; raises `InvalidSpec` where neither it nor anything in its place is given."""
    if options.file is None:
        raise InvalidSpec(
            "the command line",
            ["-f FILE is missing; or --model, --device, --gpus, --task and --bound in its place"],
        )
    return options.file


def show_profile(file: Path, *, again: bool, output: Format) -> None:
    """Print the profile that planning `file` rests on; measures what is not cached, or all of it `again`."""
    _, table, _ = planned(file, None, again=again)
    answer(table.model_dump_json(indent=2) if output is Format.JSON else profile_text(table))


def planned(
    file: Path, strategy: str | None, *, again: bool = False
) -> tuple[Wanted, ProfileTable, Plan]:
    """What `file` asks for, its profile, measured if it is not cached, and the plan on it."""
    with ending_cleanly():
        cache = Cache.of_user()
        wanted = read_wanted(file, cache, strategy=strategy)
        with planning(wanted, cache) as profiler:
            if again:
                profiler.forget()
            return wanted, *plan_on_profile(wanted, profiler.table)
