"""`exegpt bench`: a server of one's own or any other endpoint, a load, a report."""

from __future__ import annotations

from exegpt_cli.bench.options import BenchOptions, problems_of
from exegpt_cli.bench.render import render
from exegpt_cli.output import Format, answer, check_writable
from exegpt_planner.errors import InvalidSpec


def run_bench(options: BenchOptions, *, output: Format) -> None:
    """Run the load that `options` ask for and print its report on stdout."""
    problems = problems_of(options)
    if problems:
        raise InvalidSpec("exegpt bench", problems)
    if options.csv is not None:
        check_writable(options.csv, "--csv")
    if options.url is not None:
        from exegpt_cli.bench.url import bench_url as load
    else:
        from exegpt_cli.bench.own import bench_own as load
    report = load(options)
    if output is Format.JSON:
        answer(report.model_dump_json(indent=2))
    else:
        render(report)
