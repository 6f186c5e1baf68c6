"""What `exegpt plan` and `explain` take on their lines. Imports nothing heavy, for `--help` reads it.

Annotations are not put off here: options that extend these are read from another module.
"""

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from exegpt_cli.options import OptionalFile, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """A manifest, planned for on this machine; or a model on devices that are not here."""

    file: OptionalFile = None
    strategy: Strategy = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FOLDER",
            help="Instead of a manifest: a built-in model (opt-13b, llama-3.1-8b, ...) or a folder with its "
            "config.json, planned on --device from published figures.",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help="a40, a100-40, a100-80, l4, l40s, h100, h200 or b200."),
    ] = None
    gpus: Annotated[int | None, typer.Option(min=1, help="How many of them.")] = None
    task: Annotated[
        str | None, typer.Option(help="Request lengths of the paper's tasks: S, T, G, C1 or C2.")
    ] = None
    input_lengths: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTHS", help="Instead of a task: prompt lengths, mean=128,std=62,max=256."
        ),
    ] = None
    output_lengths: Annotated[
        str | None,
        typer.Option(metavar="LENGTHS", help="And answer lengths, mean=128,std=68,max=320."),
    ] = None
    bound: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="On an answer of the percentile's length; inf for none."
        ),
    ] = None
    percentile: Annotated[
        float, typer.Option(help="Of answer lengths: what length the bound is about.")
    ] = 99.0
    mean: Annotated[
        bool, typer.Option("--mean", help="Bound the mean latency, as the paper does.")
    ] = False
    all_answers: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Bound 99 % of all answers too, whatever their length."
        ),
    ] = None
    first_token: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Bound the time to the first token too.")
    ] = None
    gap: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Bound the longest gap between two tokens too."),
    ] = None
    token_time: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Bound the mean time of a token after the first too."),
    ] = None
    arrivals: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Queries/s that arrive and must all be served; answers then count from arrival.",
        ),
    ] = None
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16.")] = "float16"
    calibration: Annotated[
        str, typer.Option(help="datasheet, or paper: A40s as fast as the paper's.")
    ] = "datasheet"

    @property
    def imagined(self) -> list[str]:
        """Options given that are of devices that are not here."""
        about_manifests = ("file", "strategy")
        return [
            f"--{each.name.replace('_', '-')}"
            for each in fields(PlanOptions)
            if each.name not in about_manifests and getattr(self, each.name) != each.default
        ]
