"""What `exegpt simulate` takes on its line. Imports nothing heavy, for `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from exegpt_cli.plan_options import PlanOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions(PlanOptions):
    """The options of `exegpt simulate`, as given: those of `plan`, and how to simulate."""

    queries: Annotated[
        int, typer.Option(min=100, help="Queries to simulate after a warm-up of a quarter as many.")
    ] = 20_000
    seed: Annotated[int, typer.Option(help="Of the queries' lengths; equal seeds, equal runs.")] = 0
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write what each stage does just after the warm-up: a drawing (.svg) or a trace for ui.perfetto.dev "
            "(.json).",
        ),
    ] = None
