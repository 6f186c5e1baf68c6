"""An explanation from a question: of its plan, or of why it has none."""

from __future__ import annotations

from exegpt_planner.completion import law_on
from exegpt_planner.errors import InfeasibleBound
from exegpt_planner.explanation.binding import edge_of, what_binds
from exegpt_planner.explanation.changes import changes, smallest_cluster
from exegpt_planner.explanation.frontier import ROUNDING, frontier, least_bound
from exegpt_planner.explanation.margin import margin
from exegpt_planner.explanation.memory_held import holds, nearest_to_fitting
from exegpt_planner.explanation.question import Grow, Question, Step
from exegpt_planner.explanation.ranking import ranking
from exegpt_planner.explanation.record import Asked, Explanation, NoPlan
from exegpt_planner.explanation.time_spent import uses
from exegpt_planner.explanation.trends import trends
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import Reached

POINTS = 10  # bounds of the frontier, beside the one asked for and none


def explanation_of(
    question: Question, plan: Plan, *, grow: Grow, step: Step, points: int = POINTS
) -> Explanation:
    """Why `plan` is the answer to `question`. `step` hears of every search before it begins: 20 to 50 of them."""
    sites = question.sites()
    site = question.site(plan.schedule)
    promise = plan.bound.promise(site.law, question.table)
    step("how monotone the table is, and the margin")
    return Explanation(
        asked=_asked(question),
        plan=plan,
        stages=holds(question, plan.schedule, plan.prediction),
        uses=uses(site, plan.schedule, plan.prediction),
        binding=what_binds(plan, edge_of(plan, question.table, question.workload)),
        trends=trends(site.space(promise), plan),
        margin=margin(question, plan, site),
        frontier=frontier(question, plan, points, step),
        ranking=ranking(question, plan, sites, step),
        changes=changes(question, plan, grow, step),
    )


def no_plan(question: Question, error: InfeasibleBound, *, grow: Grow, step: Step) -> NoPlan:
    """Why there is no answer to `question`, whose planning ended with `error`."""
    reached, refuted_s = error.reached, None
    if reached is None:
        stages = nearest_to_fitting(question)
    else:
        step("the best reachable bound")
        reached, refuted_s = _least(question, reached)
        stages = holds(question, reached.schedule, reached.prediction)
    # a measured profile says nothing of other machines, and more workers of this one shorten no answer
    is_known = question.table.source == "analytic"
    return NoPlan(
        asked=_asked(question),
        binds="memory" if reached is None else "latency",
        error=str(error),
        reached=reached,
        refuted_s=refuted_s,
        stages=stages,
        cluster=smallest_cluster(grow, step) if is_known else None,
    )


def _least(question: Question, reached: Reached) -> tuple[Reached, float]:
    """(the least promise, a bound at most 1 % below it that no schedule keeps)."""
    least_s, refuted_s = least_bound(question, reached.prediction.promised_s)
    if least_s < reached.prediction.promised_s:
        best = question.within(least_s * (1 + ROUNDING)).plan(with_sensitivity=False)
        expected = best.prediction
        with_pool_s = expected.promised_s / (1 + _error(best))
        reached = Reached(
            schedule=best.schedule,
            prediction=expected,
            length_tokens=reached.length_tokens,
            mean_s=expected.latency_mean_s,
            fluctuation_s=with_pool_s - expected.latency_mean_s,
            margin_s=expected.promised_s - with_pool_s,
            fits_tokens=reached.fits_tokens,
        )
    return reached, refuted_s


def _error(plan: Plan) -> float:
    return 0.0 if plan.bound.mode == "mean" else plan.error_margin


def _asked(question: Question) -> Asked:
    table, bound = question.table, question.bound
    law = law_on(table, question.workload)
    return Asked(
        model=question.name,
        dtype=table.key.dtype,
        devices=question.devices,
        device=table.key.device,
        source=table.source,
        workload=question.workload.source,
        bound=bound,
        length_tokens=bound.length(law) - law.workload.delay,
        strategies=question.strategies,
    )
