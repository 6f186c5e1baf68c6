"""`exegpt explain`: why the plan is what it is, as text, JSON or one page; or why there is none."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.imagined import imagine
from exegpt_cli.lifetime import ending_cleanly
from exegpt_cli.local import memory_budget, plan_on_profile, planning
from exegpt_cli.output import PageFormat, answer, progress
from exegpt_cli.plan import file_of
from exegpt_cli.plan_options import PlanOptions
from exegpt_cli.wanted import read_wanted
from exegpt_planner.errors import InfeasibleBound
from exegpt_planner.explain import explanation_text
from exegpt_planner.explanation.build import explanation_of, no_plan
from exegpt_planner.explanation.question import Grow, Question
from exegpt_planner.explanation.record import Explanation, NoPlan
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import ProfileTable


def run_explain(options: PlanOptions, *, points: int, output: PageFormat) -> None:
    """Print the explanation; raises `InfeasibleBound` behind it where there is no plan."""
    question, grow = _asked(options)
    failed: InfeasibleBound | None = None
    found: Explanation | NoPlan
    with progress("Explaining") as report:

        def step(doing: str) -> None:
            report(0, 0, doing)

        try:
            plan = question.plan()
        except InfeasibleBound as error:
            if question.bound.limits is not None:
                raise  # it says which limits break, and what would do
            failed = error
            found = no_plan(question, error, grow=grow, step=step)
        else:
            found = explanation_of(question, plan, grow=grow, step=step, points=points)
    answer(_written(found, output))
    if failed is not None:
        raise failed


def _written(found: Explanation | NoPlan, output: PageFormat) -> str:
    match output:
        case PageFormat.TEXT:
            return explanation_text(found)
        case PageFormat.JSON:
            return found.model_dump_json(indent=2)
        case PageFormat.HTML:
            from exegpt_cli.page import page

            return page(found)


def _asked(options: PlanOptions) -> tuple[Question, Grow]:
    """What is to be planned, and the same on other numbers of devices."""
    if options.imagined:
        return imagine(options), lambda devices: imagine(replace(options, gpus=devices))
    question = _measured(file_of(options), options.strategy)
    return question, lambda devices: replace(question, devices=devices)


def _measured(file: Path, strategy: str | None) -> Question:
    """What a manifest asks for, on the profile that its plan rests on, which is measured if it is not cached."""
    tables: list[ProfileTable] = []
    with ending_cleanly():
        cache = Cache.of_user()
        wanted = read_wanted(file, cache, strategy=strategy)
        with planning(wanted, cache) as profiler:

            def table_of(coverage: Coverage) -> ProfileTable:
                tables.append(profiler.table(coverage))
                return tables[-1]

            with contextlib.suppress(InfeasibleBound):  # it is met again, and explained
                plan_on_profile(wanted, table_of)
    return Question(
        name=wanted.deployment.spec.model.served_name,
        table=tables[-1],
        model=wanted.model,
        workload=wanted.workload,
        bound=wanted.bound,
        memory=memory_budget(wanted.num_workers),
        strategies=wanted.strategies,
        devices=wanted.num_workers,
    )
