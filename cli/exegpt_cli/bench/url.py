"""Loads any OpenAI endpoint: standard fields only unless asked otherwise, timed from sending."""

from __future__ import annotations

import asyncio

from exegpt_cli.bench.client import Target
from exegpt_cli.bench.load import Limits
from exegpt_cli.bench.options import BenchOptions
from exegpt_cli.bench.report import BenchReport, measured, write_csv
from exegpt_cli.bench.run import LoadPlan, run_load
from exegpt_cli.lifetime import open_many_files
from exegpt_cli.output import progress
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import WorkloadSpec, read_manifest
from exegpt_planner.strict import parse
from exegpt_planner.workload import Workload, read_workload

DEFAULT_IN_FLIGHT = 32  # the server's pool is unknown
DEFAULT_WARM_UP_S = 5.0  # so are its latencies
ANY_CONTEXT = 1 << 30  # tokens


def bench_url(options: BenchOptions) -> BenchReport:
    """The report of a load on `options.url`."""
    url, model = options.url, options.model
    assert url is not None, options
    assert model is not None, options
    law = _workload(options)
    s99 = law.percentile_length(99)
    target = Target(url=url.rstrip("/"), model=model, extensions=options.extensions)
    warm_up_s = DEFAULT_WARM_UP_S if options.warm_up_s is None else options.warm_up_s
    plan = LoadPlan(
        target=target,
        metrics_url=None,
        workload=law.with_probes(options.probes) if options.probes else law,
        vocab=options.vocab,
        seed=options.seed,
        in_flight=options.in_flight or DEFAULT_IN_FLIGHT,
        rate_per_s=options.rate_per_s,
        warm_up_s=warm_up_s,
        limits=Limits(duration_s=warm_up_s + options.duration_s, num_queries=options.num_queries),
    )
    open_many_files()
    with progress(f"loading {target.url}") as report:
        outcome = asyncio.run(run_load(plan, report))
    if options.csv is not None:
        write_csv(options.csv, outcome.load, s99)
    return measured(
        outcome.load,
        warm_up_s=warm_up_s,
        s99=s99,
        bound_s=options.bound_s,
        target=f"{target.model} at {target.url}",
        arrivals=plan.arrivals,
        saturated=plan.rate_per_s is None,
    )


def _workload(options: BenchOptions) -> Workload:
    """The lengths to send to --url; its context is not known, so none is held against them."""
    if options.file is not None:
        return read_workload(read_manifest(options.file).spec.workload, ANY_CONTEXT)
    laws = {"input": _law(options.input_law or ""), "output": _law(options.output_law or "")}
    return read_workload(parse(WorkloadSpec, laws, source="exegpt bench"), ANY_CONTEXT)


def _law(text: str) -> dict[str, float]:
    """MEAN,STD,MAX as the manifest writes them."""
    parts = text.split(",")
    try:
        mean, std, longest = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        raise InvalidSpec(
            "exegpt bench", [f"lengths {text!r} are not MEAN,STD,MAX, such as 64,24,128"]
        ) from None
    return {"mean": mean, "std": std, "max": longest}
