"""The `exegpt` command: what each subcommand takes and says; the work is in the modules it calls.

Everything heavy is imported when a command runs, so that `--help` answers at once. An `ExeGPTError` becomes one message
on stderr and its exit code, never a stack trace; a bug keeps its stack trace.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from exegpt_cli.output import Format, fail
from exegpt_planner.errors import ExeGPTError

app = typer.Typer(
    name="exegpt",
    help="Serve a language model under one latency bound: profile, plan exactly, run, keep the promise.",
    epilog="Start with: exegpt serve -f examples/laptop.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
Strategy = Annotated[
    str | None,
    typer.Option(help="Force one strategy: RRA or CRA. Default: those of the manifest."),
]


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"exegpt {version('exegpt')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
) -> None:
    pass


@app.command()
def plan(file: File, output: Output = Format.TEXT, strategy: Strategy = None) -> None:
    """Choose the schedule with the most throughput that keeps the bound.

    Profiles this machine first when no profile of the model is cached.

        exegpt plan -f examples/laptop.yaml

        exegpt plan -f examples/laptop.yaml -o json | jq .schedule

        exegpt plan -f examples/laptop.yaml --strategy RRA
    """
    from exegpt_cli.plan import show_plan

    show_plan(file, output=output, strategy=strategy)


@app.command()
def explain(file: File, strategy: Strategy = None) -> None:
    """Say in words why the plan is what it is, and what the next best would cost.

    exegpt explain -f examples/laptop.yaml
    """
    from exegpt_cli.plan import show_explanation

    show_explanation(file, strategy=strategy)


@app.command()
def profile(
    file: File,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Measure anew, for instance because the machine changed speed."
        ),
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Measure the model's step times on this machine; a second run measures nothing.

    exegpt profile -f examples/laptop.yaml

    exegpt profile -f examples/laptop.yaml -o json > table.json

    exegpt profile -f examples/laptop.yaml --again
    """
    from exegpt_cli.plan import show_profile

    show_profile(file, again=again, output=output)


@app.command()
def serve(  # noqa: PLR0913 - a command's options
    file: File,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")
    ] = 8000,
    strategy: Strategy = None,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Queries that may wait before new ones get 503.")
    ] = 1024,
    report_every: Annotated[
        float, typer.Option(min=1.0, help="Seconds between predicted-beside-measured lines.")
    ] = 60.0,
    step_log: Annotated[
        Path | None, typer.Option(help="Write every iteration's clocks and shape to this file.")
    ] = None,
    announce_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    probes: Annotated[float, typer.Option(hidden=True, min=0.0, max=0.9)] = 0.0,
) -> None:
    """Serve the manifest's model on this machine, OpenAI-compatible, until Ctrl-C.

    Ctrl-C lets running answers finish; a second one ends at once.

        exegpt serve -f examples/laptop.yaml

        exegpt serve -f examples/laptop.yaml --port 9000 --strategy CRA
    """
    from exegpt_cli.serve import ServeOptions, run_serve

    options = ServeOptions(
        host=host,
        port=port,
        strategy=strategy,
        max_waiting=max_waiting,
        report_every_s=report_every,
        step_log=step_log,
        announce_fd=announce_fd,
        probes=probes,
    )
    run_serve(file, options)


@app.command()
def bench(  # noqa: PLR0913 - a command's options
    file: OptionalFile = None,
    url: Annotated[
        str | None,
        typer.Option(help="An OpenAI endpoint to load instead, e.g. http://127.0.0.1:8080/v1."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at --url.")] = None,
    input_law: Annotated[
        str | None,
        typer.Option(
            "--input-lengths", metavar="MEAN,STD,MAX", help="Input lengths for --url, tokens."
        ),
    ] = None,
    output_law: Annotated[
        str | None,
        typer.Option(
            "--output-lengths", metavar="MEAN,STD,MAX", help="Output lengths for --url, tokens."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Poisson arrivals a second. Default: saturation."),
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(min=1, help="Queries held in flight at saturation.")
    ] = None,
    duration: Annotated[float, typer.Option(min=1, help="Seconds measured.")] = 60.0,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many queries, warm-up included.")
    ] = None,
    warm_up: Annotated[
        float | None, typer.Option(min=0, help="Seconds left out at the start.")
    ] = None,
    probes: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of answers of length s99 mixed in.")
    ] = 0.2,
    bound: Annotated[
        float | None, typer.Option(min=0.001, help="Latency bound in seconds for --url.")
    ] = None,
    vocab: Annotated[
        int, typer.Option(min=2, help="Token ids of prompts for --url are below this.")
    ] = 16_000,
    extensions: Annotated[
        bool, typer.Option(help="Send min_tokens and ignore_eos to --url, to enforce lengths.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of lengths, prompts and arrivals.")] = 0,
    strategy: Strategy = None,
    csv: Annotated[Path | None, typer.Option(help="Write one line per query here.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Load a server with a workload and report what it achieved, beside what was predicted.

    With -f it starts its own server, planned for the same mixture of lengths; an answer's time counts from the start of
    its encode. With --url it loads any OpenAI endpoint with standard fields only; times count from sending.

        exegpt bench -f examples/laptop.yaml

        exegpt bench -f examples/laptop.yaml --rate 2 --duration 120 --csv answers.csv

        exegpt bench --url http://127.0.0.1:8080/v1 --model m --input-lengths 64,24,128 --output-lengths 48,24,120
    """
    from exegpt_cli.bench.command import run_bench
    from exegpt_cli.bench.options import BenchOptions

    options = BenchOptions(
        file=file,
        url=url,
        model=model,
        input_law=input_law,
        output_law=output_law,
        rate_per_s=rate,
        in_flight=in_flight,
        duration_s=duration,
        num_queries=queries,
        warm_up_s=warm_up,
        probes=probes,
        bound_s=bound,
        vocab=vocab,
        extensions=extensions,
        seed=seed,
        strategy=strategy,
        csv=csv,
    )
    run_bench(options, output=output)


@app.command()
def demo(
    file: OptionalFile = None,
    duration: Annotated[float, typer.Option(min=5, help="Seconds of saturated load.")] = 45.0,
) -> None:
    """Show the whole path on this machine: profile, plan, serve, stream, load, compare; then end it all.

    exegpt demo

    exegpt demo -f my-deployment.yaml --duration 60
    """
    from exegpt_cli.demo import run_demo

    run_demo(file, duration_s=duration)


def main() -> None:
    """Run the command line; exits with the error's own code."""
    try:
        app()
    except ExeGPTError as error:
        sys.exit(fail(error))


if __name__ == "__main__":
    main()
