"""From a profile, a workload, a bound and a memory to a plan: the best schedule of every strategy asked for, and the
proof.

Where no schedule keeps the bound there is no plan: `InfeasibleBound` says the best reachable promise, by which
schedule, what binds and the smallest change that would do. Never the nearest configuration in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from pydantic import Field

from exegpt_planner.certificate import Certificate, InputHashes, certify
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.diagnosis import infeasible
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import Prediction, Schedule
from exegpt_planner.search import Candidate, Found, search
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.strategies import PLANNED, Model, StrategySpace, model_of, space_of
from exegpt_planner.strict import StrictModel
from exegpt_planner.workload import Workload

NEAR_EDGE = 0.9  # of the profile's reach: a larger profile might allow a better schedule
KNOWN = ("RRA", "WAA", "CRA")

Change = Literal["bound_less", "bound_more", "fluctuation_ignored", "error_ignored"]


class Bound(StrictModel):
    """On the 99th percentile of the latency of an answer of the percentile's length."""

    seconds: float = Field(gt=0)
    percentile_length: float = Field(default=99, gt=0, le=100)
    mode: Literal["p99", "mean"] = "p99"  # mean: the paper's; fluctuation and table error ignored


class Alternative(StrictModel):
    """The best that a strategy can do, and why it was or was not chosen."""

    strategy: str
    schedule: Schedule | None = None
    prediction: Prediction | None = None
    reason: str


class Sensitivity(StrictModel):
    """The best schedule under a changed question: what the bound and its margins cost."""

    change: Change
    bound_s: float
    schedule: Schedule | None  # None: no schedule keeps that bound
    queries_per_s: float


class Plan(StrictModel):
    """A schedule, what it promises, and the proof that none within the bound promises more (docs/formats.md)."""

    version: Literal["exegpt.plan/v1"] = "exegpt.plan/v1"
    schedule: Schedule
    prediction: Prediction
    bound: Bound
    length_tokens: int  # the output length that the bound is about
    error_margin: float  # the table's, counted in unless mode is mean
    alternatives: tuple[Alternative, ...]
    sensitivity: tuple[Sensitivity, ...]
    kv_tokens_capacity: int
    workload: str  # in words
    source: Literal["measured", "analytic"]  # of the step times
    certificate: Certificate
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """What a search needs, prepared once and asked again with changes."""

    models: tuple[Model, ...]
    promise: Promise
    bound_s: float
    kv_capacity: int

    def spaces(self) -> list[StrategySpace]:
        return [space_of(model, self.promise, self.kv_capacity) for model in self.models]


def make_plan(
    *,
    table: ProfileTable,
    model: ModelSpec,
    workload: Workload,
    bound: Bound,
    memory: MemoryBudget,
    strategies: Sequence[str] = KNOWN,
) -> Plan:
    """The plan with the most throughput within the bound; raises `InfeasibleBound` or `IncompleteProfile`."""
    question = _ask(table, model, workload, bound, memory, strategies)
    spaces = question.spaces()
    found = [search(space, bound.seconds) for space in spaces]
    winner = _winner(found)
    if winner is None:
        raise infeasible(spaces, bound_s=bound.seconds, promise=question.promise)
    index, best = winner
    space = spaces[index]
    return Plan(
        schedule=space.schedule(best.point),
        prediction=space.predict(best.point),
        bound=bound,
        length_tokens=question.promise.length,
        error_margin=table.error_p95,
        alternatives=(*_alternatives(spaces, found, index, bound), *_left_out(strategies)),
        sensitivity=_sensitivity(question),
        kv_tokens_capacity=question.kv_capacity,
        workload=workload.source,
        source=table.source,
        certificate=Certificate(
            spaces=tuple(certify(s, f) for s, f in zip(spaces, found, strict=True)),
            inputs=InputHashes.of(table, workload, bound, asdict(memory)),
        ),
        warnings=_warnings(space, best, table),
    )


def _ask(
    table: ProfileTable,
    model: ModelSpec,
    workload: Workload,
    bound: Bound,
    memory: MemoryBudget,
    strategies: Sequence[str],
) -> _Question:
    unknown = [name for name in strategies if name not in KNOWN]
    planned = tuple(name for name in PLANNED if name in strategies)
    if unknown:
        raise InvalidSpec(
            "scheduling.strategies",
            [f"{name!r} is not one of {', '.join(KNOWN)}" for name in unknown],
        )
    if not planned:
        raise InvalidSpec(
            "scheduling.strategies",
            [f"none of {', '.join(PLANNED)} is allowed, and WAA needs at least two workers"],
        )
    law = CompletionLaw(workload)
    length = workload.output.quantile(bound.percentile_length / 100)
    return _Question(
        models=tuple(model_of(name, table, law) for name in planned),
        promise=Promise.of_mean(length=length)
        if bound.mode == "mean"
        else Promise.full(length=length, error=table.error_p95),
        bound_s=bound.seconds,
        kv_capacity=memory.kv_tokens(
            weight_bytes=model.weight_bytes(table.key.dtype),
            kv_bytes_per_token=model.kv_bytes_per_token(table.key.dtype),
        ),
    )


def _winner(found: Sequence[Found]) -> tuple[int, Candidate] | None:
    """(index, candidate) of the best; on a tie the strategy named first."""
    reached = [(i, each.best) for i, each in enumerate(found) if each.best is not None]
    return max(reached, key=lambda pair: (pair[1].throughput, -pair[0]), default=None)


def _alternatives(
    spaces: Sequence[StrategySpace], found: Sequence[Found], winner: int, bound: Bound
) -> tuple[Alternative, ...]:
    top = found[winner].best
    assert top is not None, winner
    rows = []
    for i, (space, each) in enumerate(zip(spaces, found, strict=True)):
        if each.best is None:
            reason = f"no schedule keeps {bound.seconds:g} s"
            rows.append(Alternative(strategy=space.strategy, reason=reason))
            continue
        less = 1 - each.best.throughput / top.throughput
        others = "the only strategy within the bound" if len(spaces) == 1 else "the most throughput"
        rows.append(
            Alternative(
                strategy=space.strategy,
                schedule=space.schedule(each.best.point),
                prediction=space.predict(each.best.point),
                reason=f"chosen: {others}" if i == winner else f"{less:.1%} less throughput",
            )
        )
    return tuple(rows)


def _left_out(strategies: Sequence[str]) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(strategy=name, reason="needs at least two workers; this plan is for one")
        for name in strategies
        if name not in PLANNED
    )


def _sensitivity(question: _Question) -> tuple[Sensitivity, ...]:
    promise, bound_s = question.promise, question.bound_s
    changed: list[tuple[Change, _Question]] = [
        ("bound_less", replace(question, bound_s=0.8 * bound_s)),
        ("bound_more", replace(question, bound_s=1.2 * bound_s)),
    ]
    if promise.sds > 0:
        changed.append(
            ("fluctuation_ignored", replace(question, promise=replace(promise, sds=0.0)))
        )
    if promise.error > 0:
        changed.append(("error_ignored", replace(question, promise=replace(promise, error=0.0))))
    return tuple(_resolve(change, each) for change, each in changed)


def _resolve(change: Change, question: _Question) -> Sensitivity:
    spaces = question.spaces()
    winner = _winner([search(space, question.bound_s) for space in spaces])
    return Sensitivity(
        change=change,
        bound_s=question.bound_s,
        schedule=None if winner is None else spaces[winner[0]].schedule(winner[1].point),
        queries_per_s=0.0 if winner is None else winner[1].throughput,
    )


def _warnings(space: StrategySpace, best: Candidate, table: ProfileTable) -> tuple[str, ...]:
    warnings = []
    edge = space.edge(best.point)
    if edge > NEAR_EDGE:
        warnings.append(
            f"the schedule uses {edge:.0%} of what the profile covers: a larger profile might allow more throughput"
        )
    if table.source == "analytic":
        warnings.append("step times are analytic, from published figures, not measured")
    return tuple(warnings)
