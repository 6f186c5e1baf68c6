"""`exegpt plan`, `explain` and `profile`: the schedule, why it is that one, and the step times it rests on."""

from __future__ import annotations

from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.lifetime import ending_cleanly
from exegpt_cli.local import plan_on_profile, planning
from exegpt_cli.output import Format, answer
from exegpt_cli.summary import plan_text, profile_text
from exegpt_cli.wanted import Wanted, read_wanted
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable


def show_plan(file: Path, *, output: Format, strategy: str | None) -> None:
    """Print the plan for `file`."""
    _, _, plan = planned(file, strategy)
    answer(plan.model_dump_json(indent=2) if output is Format.JSON else plan_text(plan))


def show_explanation(file: Path, *, strategy: str | None) -> None:
    """Print why the plan for `file` is what it is."""
    from exegpt_planner.explain import explain

    answer(explain(planned(file, strategy)[2]))


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
