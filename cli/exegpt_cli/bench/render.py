"""A bench report as tables for eyes: what was achieved, and predicted beside measured."""

from __future__ import annotations

from exegpt_cli.bench.report import BenchReport, Speed, Spread, StageVariation
from exegpt_cli.output import answer, print_table


def render(report: BenchReport) -> None:
    """Print `report` on stdout."""
    answer(
        f"{report.target}: {report.arrivals}; {report.num_queries} answers in {report.window_s:.1f} s"
        + (f", {report.num_failed} failed ({report.first_error})" if report.num_failed else "")
    )
    rows = [
        _times("first token", report.first_token_s),
        _times("gap between tokens", report.gap_s),
        _times("completion", report.completion_s),
        _times(f"of {report.s99_tokens} tokens (s99)", report.s99_completion_s),
    ]
    print_table(
        f"Seconds: first token from sending, completion from {report.clock}",
        ["", "n", "mean", "p50", "p90", "p99"],
        rows,
    )
    side_by_side(report)
    if report.clock == "sending":
        answer("Completion is timed from sending: this server does not say when an encode starts.")


def side_by_side(report: BenchReport) -> None:
    """Print predicted beside measured; only measured when nothing was predicted."""
    s99, predicted, speed = report.s99_completion_s, report.predicted, report.speed
    rows: list[tuple[str, float | None, str]] = [
        ("tokens/s", report.tokens_per_s, ".1f"),
        ("queries/s", report.queries_per_s, ".3f"),
        ("cycle, s", report.cycle_s, ".4f"),
        ("s99 mean, s", None if s99 is None else s99.mean, ".3f"),
        ("s99 p99, s", None if s99 is None else s99.p99, ".3f"),
    ]
    if predicted is None:
        cells = [[name, _figure(value, form)] for name, value, form in rows if value is not None]
        print_table("Measured", ["", "measured"], cells)
    else:
        expected = (
            predicted.tokens_per_s,
            predicted.queries_per_s,
            predicted.cycle_s,
            predicted.latency_mean_s,
            predicted.latency_p99_s,
        )
        cells = [
            [name, _figure(hoped, form), _figure(value, form), _ratio(value, hoped)]
            for (name, value, form), hoped in zip(rows, expected, strict=True)
        ]
        columns = ["", "predicted", "measured", "ratio"]
        if speed is not None and report.saturated:  # otherwise the clients set the pace
            columns.append("unslowed")
            factors = (speed.slowdown, speed.slowdown, *[1 / speed.slowdown] * 3)
            for cell, (_, value, _), hoped, factor in zip(
                cells, rows, expected, factors, strict=True
            ):
                cell.append(_ratio(None if value is None else value * factor, hoped))
        print_table("Predicted and measured", columns, cells)
    answer(bound_line(report))
    if speed is not None:
        answer(speed_line(speed))
    if report.stage_variation is not None:
        answer(
            f"Stage times: {variation_text(report.stage_variation)} (standard deviation / mean)."
        )


def speed_line(speed: Speed) -> str:
    """In words, how fast the machine was, and how right the profile apart from that."""
    return (
        f"Machine: the same work took {speed.slowdown:.2f} times as long as while profiling, by the calibration "
        f"kernel; apart from that, iterations took {speed.beside_profile:.2f} times what the profile says."
    )


def variation_text(strays: StageVariation) -> str:
    """In words, how much stages' times stray."""
    by_kind = strays.model_dump(exclude_none=True)
    return ", ".join(f"{kind} ± {value:.1%}" for kind, value in by_kind.items())


def bound_line(report: BenchReport) -> str:
    """In words, how many s99 answers kept the bound."""
    kept = report.s99_within_bound
    if kept is None:
        return f"No answer of {report.s99_tokens} tokens (s99) was measured against a bound."
    promise = (
        ""
        if report.predicted is None
        else f" (promised with margin: {report.predicted.promised_s:.3f} s)"
    )
    return (
        f"{kept.kept} of {kept.num} answers of {report.s99_tokens} tokens (s99) completed within the bound of "
        f"{kept.bound_s:g} s{promise}: {kept.share:.1%}, 95 % interval {kept.low:.1%} to {kept.high:.1%}."
    )


def _times(name: str, spread: Spread | None) -> list[str]:
    if spread is None:
        return [name, "0", "-", "-", "-", "-"]
    figures = (spread.mean, spread.p50, spread.p90, spread.p99)
    return [name, str(spread.num), *(f"{value:.4f}" for value in figures)]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ratio(value: float | None, expected: float | None) -> str:
    return "-" if value is None or not expected else f"{value / expected:.3f}"
