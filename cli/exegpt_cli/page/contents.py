"""What the page of an explanation says, section by section."""

from __future__ import annotations

import math
from collections.abc import Iterator

from exegpt_cli.page.figures import (
    frontier_figure,
    margin_figures,
    memory_figure,
    ranking_figure,
    time_figures,
    trend_figures,
)
from exegpt_cli.page.model import Cell, Fact, Page, Section, Table, number, share, text
from exegpt_planner.explanation.record import TOLERANCES, Explanation, NoPlan
from exegpt_planner.explanation.sentences import (
    binding_words,
    capitalised,
    change_words,
    cluster_words,
    expected_words,
    frontier_words,
    layer_words,
    margin_words,
    no_plan_words,
    proof_words,
    question_words,
    sensitivity_words,
)
from exegpt_planner.in_words import words


def page_of(found: Explanation | NoPlan) -> Page:
    """The page."""
    if isinstance(found, NoPlan):
        return _no_plan(found)
    return Page(
        title=words(found.plan.schedule),
        lead=question_words(found),
        facts=list(_facts(found)),
        sections=list(_sections(found)),
        is_feasible=True,
    )


def _facts(found: Explanation) -> Iterator[Fact]:
    expected, bound_s = found.plan.prediction, found.asked.bound.seconds
    yield Fact(
        name="Throughput",
        value=f"{expected.queries_per_s:.4g} queries/s",
        note=f"{expected.tokens_per_s:,.0f} output tokens/s under a backlog",
    )
    of = "no bound was asked for" if math.isinf(bound_s) else f"of a bound of {bound_s:g} s"
    yield Fact(name="Promised", value=f"{expected.promised_s:.3g} s", note=of)
    yield Fact(
        name="KV held ready",
        value=f"{found.binding.memory_used:.1%}",
        note=f"of {found.plan.kv_tokens_capacity:,} tokens that fit",
    )
    yield Fact(name="What binds", value=capitalised(found.binding.kind), note=found.binding.words)


def _sections(found: Explanation) -> Iterator[Section]:
    plan = found.plan
    yield Section(name="schedule", title="The schedule", tables=[_prediction(found)])
    yield Section(
        name="binding",
        title="What binds",
        sentences=[*binding_words(found.binding), *(f"{capitalised(w)}." for w in plan.warnings)],
    )
    yield Section(
        name="frontier",
        title="Throughput against the bound",
        sentences=frontier_words(found.frontier),
        figures=[frontier_figure(found.frontier, found.asked.bound.seconds)],
    )
    yield Section(name="time", title="Where a cycle's time goes", figures=time_figures(found.uses))
    yield Section(name="memory", title="What lies in memory", figures=[memory_figure(found.stages)])
    yield Section(
        name="ranking",
        title="What else there was, and why it lost",
        figures=[ranking_figure(found.ranking)],
    )
    yield Section(
        name="changes",
        title="What would change it",
        points=[
            *(capitalised(change_words(each, plan)) for each in found.changes),
            *(capitalised(sensitivity_words(each, plan)) for each in plan.sensitivity),
        ],
    )
    planned = next(each for each in found.margin.points if each.factor == 1)
    yield Section(
        name="margin",
        title="If answers are longer than planned",
        sentences=margin_words(found.margin, planned.output_mean),
        figures=margin_figures(found.margin, found.asked.bound.seconds),
    )
    yield Section(
        name="trends",
        title="How monotone this table is",
        sentences=[f"{expected_words(each)}." for each in found.trends],
        tables=[_against(found)],
        figures=[figure for trend in found.trends for figure in trend_figures(trend)],
    )
    yield Section(name="proof", title="The proof", points=proof_words(plan))


def _prediction(found: Explanation) -> Table:
    plan, expected = found.plan, found.plan.prediction
    layers = layer_words(plan.schedule)
    rows = [
        [text("Layers"), text("all on each device" if layers is None else layers)],
        [text("Throughput, queries/s"), number(expected.queries_per_s)],
        [text("Output tokens/s"), number(expected.tokens_per_s)],
        [text("Cycle, s"), number(expected.cycle_s)],
        [text("Encoding, of the cycle"), share(expected.encode_share)],
        [text("Encode until the first token, s"), number(expected.first_token_s)],
        [text("Queries in decode, mean"), number(expected.pool_mean)],
        [text("Queries in decode, standard deviation"), number(expected.pool_sd)],
        [text(f"Latency of {plan.length_tokens} tokens, mean, s"), number(expected.latency_mean_s)],
        [text("with the pool's fluctuation, 99 %, s"), number(expected.latency_p99_s)],
        [
            text(f"with the profile's error margin of {plan.error_margin:.1%}, promised, s"),
            number(expected.promised_s),
        ],
        [text("KV at the fullest, tokens, mean"), number(expected.kv_tokens)],
        [text("KV held ready, tokens"), number(expected.kv_tokens_reserved)],
        [text("KV that fits, tokens"), number(plan.kv_tokens_capacity)],
    ]
    return Table(columns=("", "One unit or worker; throughput of all"), rows=rows)


def _against(found: Explanation) -> Table:
    rows = []
    for trend in found.trends:
        counts = (("throughput", trend.throughput_against), ("promise", trend.promise_against))
        for what, against in counts:
            cells = [Cell(text=_part(count, trend.num_pairs), value=count) for count in against]
            rows.append([text(f"{trend.knob}: {what}"), number(trend.num_pairs), *cells])
    limits = [f"Against, by more than {each:.0%}" for each in TOLERANCES]
    return Table(columns=("Knob", "Steps looked at", *limits), rows=rows)


def _part(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else str(count)


def _no_plan(found: NoPlan) -> Page:
    sections = [
        Section(name="binding", title="What binds", sentences=no_plan_words(found)),
        Section(name="cluster", title="What would do", sentences=[cluster_words(found)]),
    ]
    memory = memory_figure(found.stages)
    if found.binds == "memory":  # more than there is: no bar shows that
        held = Section(name="memory", title="What would lie in memory", tables=[memory.table])
    else:
        held = Section(name="memory", title="What lies in memory", figures=[memory])
    sections.append(held)
    facts = []
    if found.reached is not None:
        facts.append(
            Fact(
                name="Best reachable bound",
                value=f"{found.reached.prediction.promised_s:.4g} s",
                note=f"asked for: {found.asked.bound.seconds:g} s",
            )
        )
    facts.append(Fact(name="What binds", value=capitalised(found.binds), note=""))
    return Page(
        title="No schedule keeps this bound" if found.reached else "Memory holds no schedule",
        lead=question_words(found),
        facts=facts,
        sections=sections,
        is_feasible=False,
    )
