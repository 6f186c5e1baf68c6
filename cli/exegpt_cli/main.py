"""The `exegpt` command: what each subcommand takes and says; the work is in the modules it calls.

Everything heavy is imported when a command runs, so that `--help` answers at once. An `ExeGPTError` becomes one message
on stderr and its exit code, never a stack trace; a bug keeps its stack trace.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from exegpt_cli.bench.options import BenchOptions
from exegpt_cli.options import File, OptionalFile, Output, PageOutput, ServeOptions, unfolded
from exegpt_cli.output import Format, PageFormat, fail
from exegpt_cli.plan_options import PlanOptions
from exegpt_cli.simulate_options import SimulateOptions
from exegpt_cli.update_options import UpdateOptions
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
@unfolded
def plan(
    options: PlanOptions,
    *,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write the proof that no other schedule is better, for check-certificate.",
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Choose the schedule with the most throughput that keeps the bound.

    Of a manifest on this machine, profiled first when no profile of the model is cached; or of a model on devices that
    are not here, from published figures.

        exegpt plan -f examples/laptop.yaml

        exegpt plan -f examples/laptop.yaml -o json | jq .schedule

        exegpt plan --model opt-13b --device a40 --gpus 4 --task S --bound 5.9 --certificate proof.json
    """
    from exegpt_cli.plan import show_plan

    show_plan(options, certificate=certificate, output=output)


@app.command()
def check_certificate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What plan --certificate has written.")
    ],
    output: Output = Format.TEXT,
) -> None:
    """Prove anew that no schedule within the bound is better than the plan's, without the search's code.

    Every part of the certificate is computed again from the profile table that is in it. A changed byte fails.

        exegpt plan --model opt-13b --device a40 --gpus 4 --task S --bound 5.9 --certificate proof.json

        exegpt check-certificate proof.json
    """
    from exegpt_cli.check_certificate import run_check

    run_check(file, output=output)


@app.command()
@unfolded
def explain(
    options: PlanOptions,
    *,
    points: Annotated[
        int, typer.Option(min=3, max=40, help="Bounds to search for the frontier, each anew.")
    ] = 10,
    output: PageOutput = PageFormat.TEXT,
) -> None:
    """Say why the plan is what it is: what binds, where time goes, what else there was, and what a change would bring.

    Where no schedule keeps the bound: the best reachable one, what binds, and the smallest cluster that would do. Every
    figure is the answer of a search or a simulation: seconds for a few devices, a minute or more for dozens.

        exegpt explain -f examples/laptop.yaml

        exegpt explain -f examples/laptop.yaml -o html > plan.html

        exegpt explain --model opt-13b --device a40 --gpus 4 --task S --bound 5.9 -o json | jq .frontier
    """
    from exegpt_cli.explain import run_explain

    run_explain(options, points=points, output=output)


@app.command()
@unfolded
def simulate(options: SimulateOptions, *, output: Output = Format.TEXT) -> None:
    """Play the plan's schedule query by query: predicted beside simulated, and a timeline of what each stage does.

    The simulation shares no formula with the planner, only the profile.

        exegpt simulate -f examples/laptop.yaml

        exegpt simulate -f examples/laptop.yaml --strategy RRA --timeline rra.svg

        exegpt simulate --model opt-13b --device a40 --gpus 4 --task S --bound 5.9 --strategy RRA --timeline rra.svg
    """
    from exegpt_cli.simulate import run_simulate

    run_simulate(options, output=output)


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
@unfolded
def serve(options: ServeOptions) -> None:
    """Serve the manifest's model on this machine, OpenAI-compatible, until Ctrl-C.

    Ctrl-C lets running answers finish; a second one ends at once.

        exegpt serve -f examples/laptop.yaml

        exegpt serve -f examples/laptop.yaml --port 9000 --strategy CRA
    """
    from exegpt_cli.serve import run_serve

    run_serve(options)


@app.command()
@unfolded
def update(options: UpdateOptions, *, output: Output = Format.TEXT) -> None:
    """Change the schedule of a running server: in force at each worker's next step, nothing pauses.

    Give a plan, or knobs of the schedule in force. The server must have been started with --control.

        exegpt serve -f examples/laptop.yaml --control unix:///tmp/exegpt.sock

        exegpt update --control unix:///tmp/exegpt.sock --n-d 13

        exegpt update --control unix:///tmp/exegpt.sock --strategy CRA --b-d 24 --c 128 -o json

        exegpt plan -f examples/laptop.yaml --strategy RRA -o json > plan.json

        exegpt update --control unix:///tmp/exegpt.sock --plan plan.json
    """
    from exegpt_cli.update import run_update

    run_update(options, output=output)


@app.command()
@unfolded
def bench(options: BenchOptions, *, output: Output = Format.TEXT) -> None:
    """Load a server with a workload and report what it achieved, beside what was predicted.

    With -f it starts its own server, planned for the same mixture of lengths; an answer's time counts from the start of
    its encode. With --url it loads any OpenAI endpoint with standard fields only; times count from sending.

        exegpt bench -f examples/laptop.yaml

        exegpt bench -f examples/laptop.yaml --rate 2 --duration 120 --csv answers.csv

        exegpt bench --url http://127.0.0.1:8080/v1 --model m --input-lengths 64,24,128 --output-lengths 48,24,120
    """
    from exegpt_cli.bench.command import run_bench

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
