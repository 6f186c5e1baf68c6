"""The options of `exegpt bench`, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from exegpt_cli.options import OptionalFile, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of `exegpt bench`, as given; its report's format is an argument beside them."""

    file: OptionalFile = None
    url: Annotated[
        str | None,
        typer.Option(help="An OpenAI endpoint to load instead, e.g. http://127.0.0.1:8080/v1."),
    ] = None
    model: Annotated[str | None, typer.Option(help="The model's name at --url.")] = None
    input_law: Annotated[
        str | None,
        typer.Option(
            "--input-lengths", metavar="MEAN,STD,MAX", help="Input lengths for --url, tokens."
        ),
    ] = None
    output_law: Annotated[
        str | None,
        typer.Option(
            "--output-lengths", metavar="MEAN,STD,MAX", help="Output lengths for --url, tokens."
        ),
    ] = None
    rate_per_s: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Poisson arrivals a second. Default: saturation."),
    ] = None
    in_flight: Annotated[
        int | None, typer.Option(min=1, help="Queries held in flight at saturation.")
    ] = None
    duration_s: Annotated[float, typer.Option("--duration", min=1, help="Seconds measured.")] = 60.0
    num_queries: Annotated[
        int | None,
        typer.Option("--queries", min=1, help="Stop after this many queries, warm-up included."),
    ] = None
    warm_up_s: Annotated[
        float | None, typer.Option("--warm-up", min=0, help="Seconds left out at the start.")
    ] = None
    probes: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of answers of length s99 mixed in.")
    ] = 0.2
    bound_s: Annotated[
        float | None, typer.Option("--bound", min=0.001, help="Latency bound in seconds for --url.")
    ] = None
    vocab: Annotated[
        int, typer.Option(min=2, help="Token ids of prompts for --url are below this.")
    ] = 16_000
    extensions: Annotated[
        bool, typer.Option(help="Send min_tokens and ignore_eos to --url, to enforce lengths.")
    ] = False
    seed: Annotated[int, typer.Option(help="Seed of lengths, prompts and arrivals.")] = 0
    strategy: Strategy = None
    csv: Annotated[Path | None, typer.Option(help="Write one line per query here.")] = None


def problems_of(options: BenchOptions) -> list[str]:
    """Every reason for which the options do not fit together."""
    problems = []
    laws = (options.input_law, options.output_law)
    if options.url is None:
        if options.file is None:
            problems.append("give -f FILE to load a server of its own, or --url to load another")
        for_url = {"--model": options.model, "--bound": options.bound_s}
        for_url |= {"--input-lengths": laws[0], "--output-lengths": laws[1]}
        problems += [
            f"{name} goes with --url; a manifest says it itself"
            for name, value in for_url.items()
            if value is not None
        ]
        return problems
    if not options.url.startswith(("http://", "https://")):
        problems.append(f"--url {options.url} must start with http:// or https://")
    if options.model is None:
        problems.append("--url needs --model, the name the server knows its model by")
    if options.file is None and None in laws:
        problems.append("--url needs the lengths: --input-lengths and --output-lengths, or -f FILE")
    if options.file is not None and laws != (None, None):
        problems.append("give the lengths either by -f or by --input-lengths and --output-lengths")
    if options.strategy is not None:
        problems.append("--strategy goes with -f alone: another server has its own schedule")
    return problems
