"""What drift does to a plan and what to do about it: distance, broken bounds, moves, the cliff, how far it carries.

Pure, and apart from serving: lengths are laws, whoever observed them. Laws and their distance are in drift_laws.py, the
broken share in drift_broken.py, moves in drift_moves.py and cliffs in cliffs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from exegpt_planner.cliffs import Cliff, cliff
from exegpt_planner.drift_broken import BrokenShare, broken_share
from exegpt_planner.drift_laws import Distance, distance, shifted
from exegpt_planner.drift_moves import (
    NO_PLAN,
    Kind,
    MoreDevices,
    Move,
    Setting,
    Worth,
    choice,
    keep,
    moves,
)
from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.plan import Plan
from exegpt_planner.strict import StrictModel
from exegpt_planner.workload import Workload

FACTORS = (0.7, 0.85, 1.15, 1.3)  # of the mean or of the deviation, the other as planned


class Robustness(StrictModel):
    """The old schedule and a new plan under lengths that might come."""

    mean_factor: float  # of output lengths
    std_factor: float
    of_bound: (
        float | None
    )  # promised by the old schedule, a share of the bound; None: it cannot run
    queries_per_s: float | None  # of the old schedule
    replanned_queries_per_s: float | None  # None: no schedule keeps the bound on these devices


class DriftReport(StrictModel):
    """A plan under lengths other than planned (docs/formats.md)."""

    version: Literal["exegpt.drift/v1"] = "exegpt.drift/v1"
    distance: Distance
    broken: BrokenShare | None  # under the old schedule; None: beyond the profile
    moves: tuple[Move, ...]  # keep, knobs, layout, pods
    choice: Kind | None  # None: nothing keeps the bound
    cliff: Cliff | None  # of the old schedule and the planned lengths
    robustness: tuple[Robustness, ...]


def drift_report(  # noqa: PLR0913 - the whole question, each part by its name
    plan: Plan,
    setting: Setting,
    planned: Workload,
    observed: Workload,
    *,
    worth: Worth | None = None,
    more: MoreDevices | None = None,
    most_devices: int = 0,
    factors: Sequence[float] = FACTORS,
) -> DriftReport:
    """All of it, for a plan of `setting` that was made for `planned`."""
    found = moves(plan, setting, observed, more=more, most_devices=most_devices)
    chosen = choice(found, worth)
    return DriftReport(
        distance=distance(planned, observed, percentile=setting.bound.percentile_length),
        broken=_broken(plan, setting, observed),
        moves=found,
        choice=None if chosen is None else chosen.kind,
        cliff=cliff(setting.site(plan.schedule, planned), plan.schedule, setting.held(planned)),
        robustness=robustness(plan, setting, planned, factors),
    )


def robustness(
    plan: Plan, setting: Setting, planned: Workload, factors: Sequence[float] = FACTORS
) -> tuple[Robustness, ...]:
    """The plan under each factor of the outputs' mean and of their deviation; those that no law meets are left out."""
    pairs = [(factor, 1.0) for factor in factors] + [(1.0, factor) for factor in factors]
    rows = []
    for mean, std in pairs:
        try:
            law = shifted(planned, mean=mean, std=std)
        except InvalidSpec:  # no answer may be longer than the longest planned
            continue
        rows.append(_row(plan, setting, law, (mean, std)))
    return tuple(rows)


def _row(plan: Plan, setting: Setting, law: Workload, factors: tuple[float, float]) -> Robustness:
    expected = keep(plan, setting, law).prediction
    try:
        again = setting.plan(law).prediction.queries_per_s
    except NO_PLAN:
        again = None
    return Robustness(
        mean_factor=factors[0],
        std_factor=factors[1],
        of_bound=None if expected is None else expected.promised_s / setting.bound.seconds,
        queries_per_s=None if expected is None else expected.queries_per_s,
        replanned_queries_per_s=again,
    )


def _broken(plan: Plan, setting: Setting, observed: Workload) -> BrokenShare | None:
    bound = setting.bound
    try:
        return broken_share(
            plan.schedule,
            setting.table,
            observed,
            bound.seconds,
            percentile=bound.percentile_length,
        )
    except IncompleteProfile:
        return None
