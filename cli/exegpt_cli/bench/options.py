"""The options of `exegpt bench`, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The command's options, as given."""

    file: Path | None
    url: str | None
    model: str | None
    input_law: str | None
    output_law: str | None
    rate_per_s: float | None
    in_flight: int | None
    duration_s: float
    num_queries: int | None
    warm_up_s: float | None
    probes: float
    bound_s: float | None
    vocab: int
    extensions: bool
    seed: int
    strategy: str | None
    csv: Path | None


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
