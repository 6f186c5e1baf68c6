"""What `exegpt update` takes on its line. Imports nothing heavy, for `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

KNOB = "Knobs"


def _knob(flag: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, min=1, help=text, rich_help_panel=KNOB)
    return option


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """The options of `exegpt update`, as given."""

    control: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where the gateway listens, as in exegpt serve --control: unix:///path or host:port.",
        ),
    ]
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A plan, as exegpt plan -o json prints it."),
    ] = None
    token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Holds the gateway's token (exegpt serve --control-token)."
        ),
    ] = None
    beyond_bound: Annotated[
        bool, typer.Option("--beyond-bound", help="Even if the promise is beyond the bound.")
    ] = False
    strategy: Annotated[
        str | None,
        typer.Option(help="RRA, CRA or WAA; as in force by default.", rich_help_panel=KNOB),
    ] = None
    encode_batch: Annotated[
        int | None, _knob("--b-e", "B_E of RRA and WAA, queries an encode.")
    ] = None
    encode_interval: Annotated[
        int | None, _knob("--n-d", "N_D of RRA, decode iterations between encodes.")
    ] = None
    pool: Annotated[int | None, _knob("--b-d", "B_D of CRA, and of a decoder in WAA, queries.")] = (
        None
    )
    chunk_tokens: Annotated[
        int | None, _knob("--c", "C of CRA, encode tokens an iteration at most.")
    ] = None
    encoders: Annotated[int | None, _knob("--encoders", "Workers that encode, in WAA.")] = None
    decoders: Annotated[int | None, _knob("--decoders", "Workers that decode, in WAA.")] = None

    @property
    def knobs(self) -> dict[str, int]:
        """Those that are given, by their names in a schedule."""
        names = ("encode_batch", "encode_interval", "pool", "chunk_tokens", "encoders", "decoders")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}
