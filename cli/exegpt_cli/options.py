"""What commands take on their lines: options that several share, and those of `serve`.

A command with many options has them as the fields of one dataclass, each annotated with its help; `unfolded` shows
them to Typer one by one. Imports nothing heavy, for `--help` reads all of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from exegpt_cli.output import Format, PageFormat

File = Annotated[
    Path, typer.Option("-f", "--file", help="The ExeGPTDeployment manifest (YAML).", metavar="FILE")
]
OptionalFile = Annotated[
    Path | None,
    typer.Option("-f", "--file", help="The ExeGPTDeployment manifest (YAML).", metavar="FILE"),
]
Output = Annotated[
    Format, typer.Option("-o", "--output", help="How to answer on stdout; progress is on stderr.")
]
PageOutput = Annotated[
    PageFormat,
    typer.Option(
        "-o", "--output", help="How to answer on stdout: html is one page that needs nothing else."
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        help="Force one strategy: RRA, WAA (two devices or more) or CRA. Default: those of the manifest."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `exegpt serve`, as given."""

    file: File
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")
    ] = 8000
    strategy: Strategy = None
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Queries that may wait before new ones get 503.")
    ] = 1024
    report_every_s: Annotated[
        float,
        typer.Option(
            "--report-every", min=1.0, help="Seconds between predicted-beside-measured lines."
        ),
    ] = 60.0
    step_log: Annotated[
        Path | None, typer.Option(help="Write every iteration's clocks and shape to this file.")
    ] = None
    control: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Let `exegpt update` change the schedule from here: unix:///path, yours alone, or host:port "
            "with --control-token. Default: nobody can.",
        ),
    ] = None
    control_token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token that calls to --control must carry."),
    ] = None
    # Tell a parent process there, and end when it ends.
    announce_fd: Annotated[int | None, typer.Option(hidden=True)] = None
    # Share of probes in the workload planned for.
    probes: Annotated[float, typer.Option(hidden=True, min=0.0, max=0.9)] = 0.0


def unfolded(run: Callable[..., None]) -> Callable[..., None]:
    """`run` as a command: the fields of its first parameter, a dataclass, are options of their own."""
    first, *others = inspect.signature(run, eval_str=True).parameters.values()
    fields = inspect.signature(first.annotation, eval_str=True).parameters

    @functools.wraps(run)
    def command(**given: Any) -> None:
        run(first.annotation(**{name: given.pop(name) for name in fields}), **given)

    vars(command)["__signature__"] = inspect.Signature([*fields.values(), *others])
    return command
