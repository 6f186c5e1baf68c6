"""What a plan's own schedule will do here, by this gateway's profile and workload: for edits and for calls alike.

A schedule set by hand comes with the prediction of the one before, and perhaps with no adjustment; both are made anew.
"""

from __future__ import annotations

from exegpt_cli.simulated import Simulated
from exegpt_gateway.metrics import Promise
from exegpt_gateway.steering import Foreseen
from exegpt_planner.adjustment import adjusted
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.simulator import simulate
from exegpt_planner.workload import Workload


def foresee(plan: Plan, table: ProfileTable, workload: Workload) -> Foreseen:
    """`plan` with its schedule predicted anew; raises `IncompleteProfile` beyond the table."""
    prediction = simulate(
        plan.schedule, table, workload, percentile_length=plan.bound.percentile_length
    )
    if plan.bound.mode == "mean":
        prediction = prediction.model_copy(update={"promised_s": prediction.latency_mean_s})
    schedule = adjusted(plan.schedule, prediction, workload, reach=table.layer.encode_chunks.x[-1])
    changed = plan.model_copy(update={"schedule": schedule, "prediction": prediction})
    return Foreseen(plan=changed, promise=promise(changed, table, workload))


def promise(plan: Plan, table: ProfileTable, workload: Workload) -> Promise:
    """The same of any plan on `table` for `workload`."""
    return Promise(
        bound_s=plan.bound.seconds,
        prediction=plan.prediction,
        table=table,
        normalise=Simulated(plan, table, workload).normaliser(),
    )
