"""What a load achieved, from its answers: a versioned document, a table for eyes, a line per query as CSV.

Only answers completed inside the window count for latencies (in a steady state those are a fair sample, short and
long); tokens count when they arrived, so throughput does not depend on where answers begin and end.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from exegpt_cli.bench.client import Answer
from exegpt_cli.bench.load import Load
from exegpt_cli.bench.stats import Summary, share_within, summarise
from exegpt_planner.errors import Unavailable
from exegpt_planner.schedule import AnySchedule, Prediction
from exegpt_planner.strict import StrictModel


class Spread(StrictModel):
    """How a measured time is spread, seconds."""

    num: int
    mean: float
    p50: float
    p90: float
    p99: float


class BoundKept(StrictModel):
    """Answers of length s99 that completed within the bound, with the 95 % Clopper-Pearson interval."""

    bound_s: float
    num: int
    kept: int
    share: float
    low: float
    high: float


class Speed(StrictModel):
    """The worker's iterations over the window beside the profile, by the server's metrics."""

    slowdown: float  # time for the same work / while profiling, by the calibration kernel
    beside_profile: float  # time of the iterations without that slowdown / by the profile


class StageVariation(StrictModel):
    """Standard deviation over mean of the latest stages' times, by the server's metrics; null where there are few."""

    encode: float | None
    decode: float | None
    mixed: float | None  # iterations that do both


class BenchReport(StrictModel):
    """What one load achieved (docs/formats.md)."""

    version: Literal["exegpt.bench/v1"] = "exegpt.bench/v1"
    target: str
    arrivals: str  # "saturated, 40 in flight" or "Poisson, 2 per second"
    saturated: bool  # a backlog at all times: what throughput is predicted for
    clock: Literal["encode start", "sending"]  # where completion times start
    window_s: float
    num_queries: int  # completed inside the window
    num_failed: int  # in the whole run
    first_error: str | None
    s99_tokens: int
    queries_per_s: float
    tokens_per_s: float
    first_token_s: Spread | None  # from sending
    gap_s: Spread | None
    completion_s: Spread | None
    s99_completion_s: Spread | None
    s99_within_bound: BoundKept | None
    cycle_s: float | None  # as the server's metrics say, over the window
    speed: Speed | None
    stage_variation: StageVariation | None
    schedule: AnySchedule | None
    predicted: Prediction | None


def _spread(values: Sequence[float]) -> Spread | None:
    summary: Summary | None = summarise(values)
    return None if summary is None else Spread(**asdict(summary))


def measured(  # noqa: PLR0913 - the report's own parts
    load: Load,
    *,
    warm_up_s: float,
    s99: int,
    bound_s: float | None,
    target: str,
    arrivals: str,
    saturated: bool,
    cycle_s: float | None = None,
    speed: Speed | None = None,
    stage_variation: StageVariation | None = None,
    schedule: AnySchedule | None = None,
    predicted: Prediction | None = None,
) -> BenchReport:
    """The report on `load` without its first `warm_up_s` seconds."""
    begin, end = load.started_s + warm_up_s, load.stopped_s
    if end <= begin:
        raise Unavailable(
            f"nothing was measured: the load lasted {end - load.started_s:.1f} s, the warm-up "
            f"{warm_up_s:.1f} s. Raise --duration or --queries, or lower --warm-up."
        )
    window_s = end - begin
    done = [
        a
        for a in load.answers
        if a.error is None and a.finished_s is not None and begin <= a.finished_s <= end
    ]
    failed = [a.error for a in load.answers if a.error is not None]
    longest = [a.completion_s for a in done if a.query.output_tokens == s99]
    share = None if bound_s is None else share_within(longest, bound_s)
    return BenchReport(
        target=target,
        arrivals=arrivals,
        saturated=saturated,
        clock="encode start" if _server_clock(done) else "sending",
        window_s=window_s,
        num_queries=len(done),
        num_failed=len(failed),
        first_error=failed[0] if failed else None,
        s99_tokens=s99,
        queries_per_s=len(done) / window_s,
        tokens_per_s=tokens_between(load.answers, begin, end) / window_s,
        first_token_s=_spread([a.first_token_s for a in done]),
        gap_s=_spread([gap for a in done for gap in a.gaps_s]),
        completion_s=_spread([a.completion_s for a in done]),
        s99_completion_s=_spread(longest),
        s99_within_bound=None
        if share is None or bound_s is None
        else BoundKept(bound_s=bound_s, **asdict(share)),
        cycle_s=cycle_s,
        speed=speed,
        stage_variation=stage_variation,
        schedule=schedule,
        predicted=predicted,
    )


def _server_clock(done: Sequence[Answer]) -> bool:
    return bool(done) and all(a.server_completion_s is not None for a in done)


def tokens_between(answers: Sequence[Answer], begin_s: float, end_s: float) -> float:
    """Output tokens that arrived in the window; an answer's tokens spread evenly over its texts."""
    total = 0.0
    for answer in answers:
        arrivals = answer.arrivals_s
        inside = sum(begin_s <= at <= end_s for at in arrivals)
        if inside:
            total += inside * (answer.completion_tokens or len(arrivals)) / len(arrivals)
    return total


CSV_FIELDS = (
    "index",
    "sent_s",
    "input_tokens",
    "output_tokens",
    "completion_tokens",
    "is_s99",
    "first_token_s",
    "completion_s",
    "server_queued_s",
    "server_completion_s",
    "gap_mean_s",
    "gap_max_s",
    "error",
)


def write_csv(path: Path, load: Load, s99: int) -> None:
    """One line per query, in the order sent; times in seconds, `sent_s` from the load's start."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, CSV_FIELDS)
            writer.writeheader()
            for answer in sorted(load.answers, key=lambda a: a.query.index):
                writer.writerow(_row(answer, load.started_s, s99))
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}. Choose another --csv.") from None


def _row(answer: Answer, started_s: float, s99: int) -> dict[str, object]:
    gaps = answer.gaps_s
    return {
        "index": answer.query.index,
        "sent_s": f"{answer.sent_s - started_s:.6f}",
        "input_tokens": len(answer.query.prompt),
        "output_tokens": answer.query.output_tokens,
        "completion_tokens": answer.completion_tokens,
        "is_s99": int(answer.query.output_tokens == s99),
        "first_token_s": f"{answer.first_token_s:.6f}" if answer.arrivals_s else None,
        "completion_s": f"{answer.completion_s:.6f}" if answer.ok else None,
        "server_queued_s": answer.server_queued_s,
        "server_completion_s": answer.server_completion_s,
        "gap_mean_s": f"{sum(gaps) / len(gaps):.6f}" if gaps else None,
        "gap_max_s": f"{max(gaps):.6f}" if gaps else None,
        "error": answer.error,
    }
