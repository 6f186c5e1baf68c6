"""A profile table from what was measured: fitted curves, their error on held-out steps, and the costs beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exegpt_cli.profile_overheads import Overheads
from exegpt_cli.profile_samples import MeasuredStep, samples, spread, typical_kernel_s
from exegpt_planner.profile_fit import error_p95, fit
from exegpt_planner.profile_table import Curve, ProfileKey, ProfileTable, StepShape


def table_from(
    key: ProfileKey,
    num_layers: int,
    steps: Sequence[MeasuredStep],
    largest: StepShape,
    beside: Overheads,
) -> ProfileTable:
    """The fitted table with its error on the held-out steps."""
    used = samples(steps, threads=key.threads)
    fitted = fit(used, num_layers=num_layers, largest=largest)
    spreads = [spread(s.timings, threads=key.threads) for s in steps if len(s.timings) > 1]
    table = ProfileTable(
        source="measured",
        key=key,
        num_layers=num_layers,
        layer=fitted.layer,
        outside=fitted.outside,
        step_overhead_s=fitted.step_overhead_s,
        dispatch_s=beside.dispatch_s,
        error_p95=0.0,
        kernel_s=typical_kernel_s(steps),
        num_samples=len(used),
        spread=float(np.median(spreads)) if spreads else 0.0,
    )
    held_out = [sample for sample in used if sample.held_out]
    predicted_s = [table.step_s(sample.shape) for sample in held_out]
    return table.model_copy(
        update={
            "error_p95": error_p95(predicted_s, held_out),
            "outside": fitted.outside.model_copy(
                update={"sampled": _steeper(fitted.outside.sampled, beside.sampled_s)}
            ),
            "step_overhead_s": fitted.step_overhead_s + beside.step_s,
        }
    )


def _steeper(curve: Curve, slope_s: float) -> Curve:
    seconds = tuple(value + slope_s * x for x, value in zip(curve.x, curve.seconds, strict=True))
    return Curve(x=curve.x, seconds=seconds)
