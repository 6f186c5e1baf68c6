"""The plots of an explanation, each with the table of its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exegpt_cli.page.drawing import Bar, Bars, Curve, Mark, Rule, Segment
from exegpt_cli.page.model import Cell, Figure, Legend, Table, number, share, text
from exegpt_planner.explanation.record import (
    Frontier,
    FrontierPoint,
    Margin,
    MarginPoint,
    Ranked,
    SlicePoint,
    StageHolds,
    Trend,
    Use,
)
from exegpt_planner.explanation.sentences import GIB, gib, stage_words
from exegpt_planner.in_words import words

PHASES = {
    "encode": "encode",
    "send": "send KV",
    "decode": "decode",
    "dispatch": "dispatch",
    "idle": "idle",
}
HELD = {
    "weights": "weights",
    "kv": "held ready for the schedule (KV, and activations where they are counted)",
    "kept": "kept free",
    "free": "left",
}
KINDS = ("matrices", "attention", "all-reduces", "sends")
REST = "idle and all else"
STYLES = {REST: "rest"}
SHOWN_RANKS = 12  # bars; the table has all


def frontier_figure(found: Frontier, asked_s: float) -> Figure:
    """Throughput by bound; no bound at all is in the table, and in the plot where it was asked for."""
    finite = [each for each in found.points if not math.isinf(each.bound_s)]
    marks = [
        Mark(
            x=each.bound_s,
            y=each.queries_per_s,
            title=f"{each.bound_s:.4g} s: {each.queries_per_s:.4g} queries/s; {words(each.schedule)}",
            is_chosen=each.is_chosen or (math.isinf(asked_s) and each.bound_s == found.saturated_s),
        )
        for each in finite
    ]
    rules = []
    if not math.isinf(asked_s):
        rules.append(Rule(at=asked_s, label=f"asked: {asked_s:g} s", is_vertical=True))
    return Figure(
        caption="Throughput against the bound. Every point is the best schedule within that bound.",
        plot=Curve(
            name="frontier",
            x_title="bound, s",
            y_title="throughput, queries/s",
            marks=marks,
            rules=rules,
            can_be_log=True,
        ),
        table=Table(
            columns=("Bound, s", "Throughput, queries/s", "Promised, s", "Schedule"),
            rows=[_frontier_row(each) for each in found.points],
            marked=_index([each.is_chosen for each in found.points]),
        ),
    )


def _frontier_row(each: FrontierPoint) -> list[Cell]:
    bound = text("none") if math.isinf(each.bound_s) else number(each.bound_s)
    return [bound, number(each.queries_per_s), number(each.promised_s), text(words(each.schedule))]


def time_figures(uses: Sequence[Use]) -> list[Figure]:
    """Bars of a cycle by phase, and by kind of work where that is known."""
    known = [use for use in uses if any(each.parts for each in use.spent)]
    return [_phases(uses), *([_kinds(known)] if known else [])]


def _kinds(uses: Sequence[Use]) -> Figure:
    taken = [_by_kind(use) for use in uses]
    seen = [kind for kind in (*KINDS, REST) if any(kind in each for each in taken)]
    return Figure(
        caption="The same by kind of work.",
        plot=Bars(
            name="work",
            title="time of one cycle, s",
            bars=[
                Bar(
                    label=use.who,
                    segments=[
                        Segment(
                            style=STYLES.get(kind, kind),
                            value=seconds,
                            title=f"{kind}: {seconds:.4g} s, {seconds / use.cycle_s:.1%}",
                        )
                        for kind, seconds in each.items()
                    ],
                )
                for use, each in zip(uses, taken, strict=True)
            ],
            shows_shares=True,
        ),
        table=Table(
            columns=("Where", "Kind of work", "Seconds", "Of the cycle"),
            rows=[
                [text(use.who), text(kind), number(seconds), share(seconds / use.cycle_s)]
                for use, each in zip(uses, taken, strict=True)
                for kind, seconds in each.items()
            ],
        ),
        legend=[Legend(style=STYLES.get(kind, kind), words=kind) for kind in seen],
    )


def _by_kind(use: Use) -> dict[str, float]:
    """Seconds of a cycle by kind of work, all phases together; what is little, or not told, in one."""
    found = dict.fromkeys(KINDS, 0.0)
    for part in (part for spent in use.spent for part in spent.parts):
        if part.name in found:
            found[part.name] += part.seconds
    rest_s = use.cycle_s - sum(found.values())
    return {kind: seconds for kind, seconds in {**found, REST: rest_s}.items() if seconds > 0}


def _phases(uses: Sequence[Use]) -> Figure:
    seen = [
        phase for phase in PHASES if any(each.phase == phase for use in uses for each in use.spent)
    ]
    return Figure(
        caption="Where the time of one cycle goes.",
        plot=Bars(
            name="time",
            title="time of one cycle, s",
            bars=[
                Bar(
                    label=use.who,
                    segments=[
                        Segment(
                            style=each.phase,
                            value=each.seconds,
                            title=f"{PHASES[each.phase]}: {each.seconds:.4g} s, {each.share:.1%}",
                        )
                        for each in use.spent
                    ],
                )
                for use in uses
            ],
            shows_shares=True,
        ),
        table=Table(
            columns=("Where", "Phase", "Kind of work", "Seconds", "Of the cycle"),
            rows=[row for use in uses for row in _time_rows(use)],
        ),
        legend=[Legend(style=phase, words=PHASES[phase]) for phase in seen],
    )


def _time_rows(use: Use) -> list[list[Cell]]:
    rows = []
    for each in use.spent:
        phase = PHASES[each.phase]
        rows.append(
            [text(use.who), text(phase), text("all"), number(each.seconds), share(each.share)]
        )
        rows += [
            [text(use.who), text(phase), text(part.name), number(part.seconds), share(part.share)]
            for part in each.parts
        ]
    return rows


def memory_figure(stages: Sequence[StageHolds]) -> Figure:
    """Bars of a device's memory by stage."""
    return Figure(
        caption="What each device holds. The KV capacity comes from the stage with least room for it.",
        plot=Bars(
            name="memory",
            title="memory of one device, GiB",
            bars=[
                Bar(
                    label=stage_words(each, stages),
                    segments=[
                        Segment(style=style, value=held / GIB, title=f"{HELD[style]}: {gib(held)}")
                        for style, held in _held(each).items()
                        if held > 0
                    ],
                )
                for each in stages
            ],
            shows_shares=True,
        ),
        table=Table(
            columns=("Stages", "Weights, bytes", "Held ready", "Kept free", "Left", "Tightest"),
            rows=[
                [
                    text(stage_words(each, stages)),
                    *(Cell(text=gib(held), value=held) for held in _held(each).values()),
                    text("yes" if each.is_tightest else "no"),
                ]
                for each in stages
            ],
        ),
        legend=[Legend(style=style, words=label) for style, label in HELD.items()],
    )


def _held(stage: StageHolds) -> dict[str, float]:
    return {
        "weights": stage.weight_bytes,
        "kv": stage.kv_bytes,
        "kept": stage.kept_bytes,
        "free": stage.free_bytes,
    }


def ranking_figure(ranking: Sequence[Ranked]) -> Figure:
    """Bars of throughput, best first."""
    planned = [each for each in ranking if each.prediction is not None]
    return Figure(
        caption="The best schedule of each strategy, for each way of sharing out the devices.",
        plot=Bars(
            name="ranking",
            title="throughput, queries/s",
            bars=[_rank_bar(each) for each in planned[:SHOWN_RANKS]],
        ),
        table=Table(
            columns=("", "Schedule", "Throughput, queries/s", "Promised, s", "Why"),
            rows=[_rank_row(each) for each in ranking],
            marked=_index([each.is_chosen for each in ranking]),
        ),
        is_wide=True,
    )


def _rank_bar(each: Ranked) -> Bar:
    assert each.prediction is not None, each
    rate = each.prediction.queries_per_s
    return Bar(
        label=f"{_kind(each)}: {rate:.3g}",
        segments=[Segment(style="bar", value=rate, title=each.reason)],
        is_chosen=each.is_chosen,
    )


def _rank_row(each: Ranked) -> list[Cell]:
    expected = each.prediction
    return [
        text(_kind(each)),
        text("–" if each.schedule is None else words(each.schedule)),
        number(None if expected is None else expected.queries_per_s),
        number(None if expected is None else expected.promised_s),
        text(each.reason),
    ]


def _kind(each: Ranked) -> str:
    if each.units is None:
        return each.strategy
    units = "1 unit" if each.units == 1 else f"{each.units} units"
    degree = f", groups of {each.degree}" if (each.degree or 1) > 1 else ""
    return f"{each.strategy}, {units}{degree}"


def margin_figures(margin: Margin, bound_s: float) -> list[Figure]:
    """What the schedule promises, and does, when answers are longer or shorter than planned."""
    known = [each for each in margin.points if each.promised_s is not None]
    rules = []
    if not math.isinf(bound_s):
        rules.append(Rule(at=bound_s, label=f"bound: {bound_s:g} s", is_vertical=False))
    if margin.breaks_at is not None:
        rules.append(
            Rule(at=margin.breaks_at, label=f"breaks at {margin.breaks_at:.3f}", is_vertical=True)
        )
    table = Table(
        columns=(
            "True mean over planned",
            "Mean, tokens",
            "Percentile, tokens",
            "Promised, s",
            "Throughput, queries/s",
            "KV held ready, of capacity",
            "Bound",
        ),
        rows=[_margin_row(each) for each in margin.points],
        marked=_index([each.factor == 1 for each in margin.points]),
    )
    return [
        Figure(
            caption="What the chosen schedule promises when answers are longer or shorter.",
            plot=Curve(
                name="margin",
                x_title="true mean of output lengths / planned",
                y_title="promised, s",
                marks=[_margin_mark(each, each.promised_s, "s") for each in known],
                rules=rules,
            ),
            table=table,
        ),
        Figure(
            caption="And its throughput.",
            plot=Curve(
                name="margin-throughput",
                x_title="true mean of output lengths / planned",
                y_title="throughput, queries/s",
                marks=[_margin_mark(each, each.queries_per_s, "queries/s") for each in known],
            ),
            table=table,
        ),
    ]


def _margin_mark(each: MarginPoint, value: float | None, unit: str) -> Mark:
    assert value is not None, each
    title = f"{each.factor:g} times ({each.output_mean:.3g} tokens): {value:.4g} {unit}"
    return Mark(x=each.factor, y=value, title=title, is_chosen=each.factor == 1)


def _margin_row(each: MarginPoint) -> list[Cell]:
    kept = {True: "kept", False: "broken", None: "not predicted"}[each.keeps_bound]
    return [
        number(each.factor),
        number(each.output_mean),
        number(each.length_tokens),
        number(each.promised_s),
        number(each.queries_per_s),
        share(each.memory_used),
        text(kept),
    ]


def trend_figures(trend: Trend) -> list[Figure]:
    """Throughput and promise along one knob, the other knob as chosen."""
    return [
        _slice(
            trend,
            "throughput, queries/s",
            "throughput",
            [p.queries_per_s for p in trend.through_chosen],
        ),
        _slice(trend, "promised, s", "promise", [p.promised_s for p in trend.through_chosen]),
    ]


def _slice(trend: Trend, y_title: str, name: str, values: Sequence[float]) -> Figure:
    points: Sequence[SlicePoint] = trend.through_chosen
    pairs = list(zip(points, values, strict=True))
    return Figure(
        caption=f"{y_title.split(',')[0].capitalize()} along {trend.knob}",
        plot=Curve(
            name=f"{trend.knob}-{name}",
            x_title=f"{trend.knob}{_unit(trend.knob)}",
            y_title=y_title,
            marks=[
                Mark(
                    x=each.value,
                    y=value,
                    title=f"{trend.knob} {each.value}: {value:.4g}",
                    is_chosen=each.is_chosen,
                )
                for each, value in pairs
            ],
            can_be_log=True,
        ),
        table=Table(
            columns=(trend.knob, y_title.capitalize()),
            rows=[[number(each.value), number(value)] for each, value in pairs],
            marked=_index([each.is_chosen for each in points]),
        ),
    )


def _unit(knob: str) -> str:
    return {
        "encode_batch": ", queries",
        "encode_interval": ", decode iterations",
        "pool": ", queries",
        "chunk_tokens": ", tokens",
    }[knob]


def _index(flags: Sequence[bool]) -> int | None:
    return flags.index(True) if True in flags else None
