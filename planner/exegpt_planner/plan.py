"""From a profile, a workload, a bound and a memory to a plan: the best schedule of every strategy asked for, and the
proof.

Where no schedule keeps the bound there is no plan: `InfeasibleBound` says the best reachable promise, by which
schedule, what binds and the smallest change that would do. Never the nearest configuration in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from exegpt_planner.alternatives import Alternative, alternatives, winner
from exegpt_planner.bound import Bound
from exegpt_planner.certificate import certify
from exegpt_planner.cliffs import Held, cliff_warnings
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.cra_relaxation import PoolRelaxation
from exegpt_planner.diagnosis import infeasible
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.layout import Typical
from exegpt_planner.memory import MemoryBudget, too_large
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import PromptMoments, prompt_moments
from exegpt_planner.proof import Certificate, InputHashes, Relaxed
from exegpt_planner.relaxation import Relaxation
from exegpt_planner.schedule import Prediction, Schedule, beyond_workers
from exegpt_planner.search import Candidate, Found, search_together
from exegpt_planner.shapes import Shape, shapes
from exegpt_planner.simulator.limits import Use
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.strategies import (
    STRATEGIES,
    Site,
    StrategySpace,
    nowhere,
    sites_of,
    unplannable,
)
from exegpt_planner.strict import StrictModel
from exegpt_planner.waa_search import search_waa
from exegpt_planner.waa_sites import WaaSite, WaaSites
from exegpt_planner.workload import Workload

PROFILE_USED = "of what the profile covers"
NEAR_EDGE = 0.9  # of the profile's reach: a larger profile might allow a better schedule
KNOWN = ("RRA", "WAA", "CRA")
NEAREST = 4  # spaces that are searched for the least latency where none keeps the bound

Floats = NDArray[np.float64]
Sites = Sequence[Site | WaaSite]
R = TypeVar("R", Relaxation, PoolRelaxation)

Change = Literal["bound_less", "bound_more", "fluctuation_ignored", "error_ignored"]


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
    limits: tuple[Use, ...] = Field(  # where more than whole answers are bounded
        default=(), exclude_if=lambda value: value == ()
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """What a search needs, prepared once and asked again with changes."""

    sites: dict[str, Sites]  # by strategy
    relaxation: Relaxation | None  # None: there is one shape; as below
    pools: PoolRelaxation | None
    promise: Promise
    bound_s: float

    def searched(self) -> Searches:
        """The best of every strategy, over all its sites."""
        done: list[Search] = []
        relaxed: list[Relaxed] = []
        for strategy, sites in self.sites.items():
            if isinstance(sites, WaaSites):
                searched, left = search_waa(sites, self.promise, self.bound_s)
                done += [Search(site=site, space=space, found=f) for site, space, f in searched]
                relaxed += left
                continue
            uppers = self._uppers(strategy, sites)
            openers = [partial(site.space, self.promise) for site in sites]
            opened = search_together(openers, uppers.tolist(), self.bound_s)
            done += [
                Search(site=sites[at], space=space, found=found)
                for at, (space, found) in opened.items()
            ]
            relaxed += [
                Relaxed(strategy=strategy, shape=site.number, throughput=float(uppers[at]))
                for at, site in enumerate(sites)
                if at not in opened
            ]
        return Searches(done=done, relaxed=relaxed)

    def scaled(self, factor: float) -> _Question:
        """The same with every limit on times so many times as long."""
        limits = self.promise.limits
        bound_s = factor * self.bound_s
        if limits is not None:
            limits = limits.scaled(factor)
            bound_s = limits.reference_s
        promise = replace(self.promise, limits=limits, bound_s=bound_s)
        return replace(self, promise=promise, bound_s=bound_s)

    def _uppers(self, strategy: str, sites: Sequence[Site | WaaSite]) -> Floats:
        """What no schedule of each site can exceed, queries/s."""
        limits = self.promise.limits
        answer_s = self.bound_s if limits is None else limits.answer_s
        mean_s, found = answer_s / (1 + self.promise.error), [site.shape for site in sites]
        if strategy == "RRA" and self.relaxation is not None:
            return np.asarray(self.relaxation.rra(found, mean_s).max(axis=1))
        if strategy == "CRA" and self.pools is not None:
            return self.pools.cra(found, mean_s)
        return np.full(len(sites), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search:
    """A space that was searched."""

    site: Site | WaaSite
    space: StrategySpace
    found: Found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Searches:
    """What was searched, and where nothing could be won, with the bound that says so."""

    done: list[Search]
    relaxed: list[Relaxed]

    @property
    def spaces(self) -> list[StrategySpace]:
        return [each.space for each in self.done]

    @property
    def found(self) -> list[Found]:
        return [each.found for each in self.done]

    def certificate(self, num_shapes: int, inputs: InputHashes) -> Certificate:
        """The proof that nothing better is among all the shapes there are."""
        return Certificate(
            spaces=tuple(certify(each.space, each.found, each.site.number) for each in self.done),
            relaxed=tuple(self.relaxed),
            num_shapes=num_shapes,
            inputs=inputs,
        )


def make_plan(  # noqa: PLR0913 - the whole question, each part by its name
    *,
    table: ProfileTable,
    model: ModelSpec,
    workload: Workload,
    bound: Bound,
    memory: MemoryBudget,
    strategies: Sequence[str] = KNOWN,
    workers: int = 1,
    with_sensitivity: bool = True,
    allowed: Callable[[Site | WaaSite], bool] | None = None,
) -> Plan:
    """The plan with the most throughput within the bound; raises `InfeasibleBound` or `IncompleteProfile`.

    `memory` is of one of the `workers`, that is devices. Where the table does not say what sharing a model costs, each
    holds the whole of it. The sensitivity takes four more searches, an offer off a cliff that is near another.
    `allowed` leaves only some of the sites.
    """
    law = law_on(table, workload)
    promise = bound.promise(law, table)
    some = _shapes(table, model, memory, law, workers)
    sites, left_out = _sites(strategies, some, table, law, (workers, model, memory))
    if allowed is not None:
        kept = {name: list(filter(allowed, each)) for name, each in sites.items()}
        sites = {name: each for name, each in kept.items() if each}
    question = _Question(
        sites=sites,
        relaxation=_relaxation(Relaxation, some, table, law, promise),
        pools=_relaxation(PoolRelaxation, some, table, law, promise),
        promise=promise,
        bound_s=bound.reference_s,
    )
    searches = question.searched()
    spaces, found = searches.spaces, searches.found
    best_of_all = winner(found)
    if best_of_all is None:
        raise infeasible(_nearest(question), bound_s=bound.reference_s, promise=promise)
    index, best = best_of_all
    space, site = spaces[index], searches.done[index].site
    return Plan(
        schedule=space.schedule(best.point),
        prediction=space.predict(best.point),
        bound=bound,
        length_tokens=promise.length - law.workload.delay,
        error_margin=table.error_p95,
        alternatives=(
            *alternatives(spaces, found, bound.in_words),
            *(Alternative(strategy=name, reason=why) for name, why in left_out.items()),
        ),
        sensitivity=_sensitivity(question) if with_sensitivity else (),
        kv_tokens_capacity=site.shape.room.kv_tokens,
        workload=workload.source,
        source=table.source,
        certificate=searches.certificate(
            len(some),
            InputHashes.of(table, workload, bound, memory.inputs() | {"workers": workers}),
        ),
        warnings=(
            *_warnings(space, best, table),
            *cliff_warnings(
                site,
                space.schedule(best.point),
                Held.of(workload, promise, bound),
                with_offer=with_sensitivity,
            ),
        ),
        limits=tuple(space.uses(best.point)),
    )


def _shapes(
    table: ProfileTable, model: ModelSpec, memory: MemoryBudget, law: CompletionLaw, devices: int
) -> list[Shape]:
    """All there are; where there is none, raises what is missing."""
    found = list(shapes(table, model, memory, Typical.of(law, table), devices))
    if not found:
        weight_bytes = model.weight_bytes(table.key.dtype)
        if table.parallel is not None:
            raise too_large(weight_bytes, memory, devices)
        memory.kv_tokens(
            weight_bytes=weight_bytes, kv_bytes_per_token=model.kv_bytes_per_token(table.key.dtype)
        )
    return found


def _relaxation(
    kind: Callable[[ProfileTable, CompletionLaw, PromptMoments, int], R],
    some: Sequence[Shape],
    table: ProfileTable,
    law: CompletionLaw,
    promise: Promise,
) -> R | None:
    if len(some) == 1:
        return None
    return kind(table, law, prompt_moments(law.workload), promise.length)


def _nearest(question: _Question) -> list[StrategySpace]:
    """The spaces that promise least latency by their smallest schedule: a few of them."""
    every: list[StrategySpace] = []
    for sites in question.sites.values():
        if isinstance(sites, WaaSites):
            some = sites.nearest(question.promise, NEAREST)
            every += [site.space(question.promise) for site in some]
            continue
        every += [site.space(question.promise) for site in sites if site.shape.micro_batches == 1]

    def least_s(space: StrategySpace) -> float:
        blocked = space.blocked(space.smallest) is not None
        return np.inf if blocked else space.promised_s(space.smallest)

    return sorted(every, key=least_s)[:NEAREST]


def _sites(
    strategies: Sequence[str],
    some: Sequence[Shape],
    table: ProfileTable,
    law: CompletionLaw,
    devices: tuple[int, ModelSpec, MemoryBudget],
) -> tuple[dict[str, Sites], dict[str, str]]:
    """(where each strategy is planned, why others asked for cannot be); refuses if that is all of them."""
    unknown = [name for name in strategies if name not in KNOWN]
    if unknown:
        raise InvalidSpec(
            "scheduling.strategies",
            [f"{name!r} is not one of {', '.join(KNOWN)}" for name in unknown],
        )
    workers, model, memory = devices
    sites: dict[str, Sites] = {}
    left_out = {}
    for name in (each for each in STRATEGIES if each in strategies):
        why = unplannable(name, table, law, workers)
        if why is None and name == "WAA" and table.parallel is not None:
            sites[name] = WaaSites.all(table, law, workers, (model, memory))
        else:
            sites[name] = [] if why is not None else sites_of(name, some, table, law)
        if not sites[name]:
            left_out[name] = nowhere(name) if why is None else why
    if not any(map(len, sites.values())):
        problems = [f"{name} {why}" for name, why in left_out.items()]
        raise InvalidSpec("scheduling.strategies", problems or ["names no strategy"])
    return sites, left_out


def _sensitivity(question: _Question) -> tuple[Sensitivity, ...]:
    promise, bound_s = question.promise, question.bound_s
    if np.isinf(bound_s):
        return ()
    changed: list[tuple[Change, _Question]] = [
        ("bound_less", question.scaled(0.8)),
        ("bound_more", question.scaled(1.2)),
    ]
    if promise.sds > 0:
        changed.append(
            ("fluctuation_ignored", replace(question, promise=replace(promise, sds=0.0)))
        )
    if promise.error > 0:
        changed.append(("error_ignored", replace(question, promise=replace(promise, error=0.0))))
    return tuple(_resolve(change, each) for change, each in changed)


def _resolve(change: Change, question: _Question) -> Sensitivity:
    searches = question.searched()
    best = winner(searches.found)
    return Sensitivity(
        change=change,
        bound_s=question.bound_s,
        schedule=None if best is None else searches.spaces[best[0]].schedule(best[1].point),
        queries_per_s=0.0 if best is None else best[1].throughput,
    )


def _warnings(space: StrategySpace, best: Candidate, table: ProfileTable) -> tuple[str, ...]:
    warnings = []
    edge = space.edge(best.point)
    if edge > NEAR_EDGE:
        warnings.append(
            f"the schedule uses {edge:.0%} {PROFILE_USED}: a larger profile might allow more throughput"
        )
    if (beyond := beyond_workers(space.schedule(best.point))) is not None:
        warnings.append(f"planned only: workers do not run {beyond} yet")
    if table.source == "analytic":
        warnings.append("step times are analytic, from published figures, not measured")
    return tuple(warnings)
