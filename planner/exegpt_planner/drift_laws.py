"""How far two laws of lengths are apart, and a law whose mean or deviation has drifted.

Three distances, as no one of them says all. KS is the largest difference of the two distribution functions: a chance,
blind to how far lengths moved. Transport is Wasserstein's distance over the sum of the means,

    sum_k |F(k) - G(k)| / (E X + E Y)  <=  1,   as |X - Y| <= X + Y,

which is 0 for equal laws alone, the same in any unit, and rises with a shift. The change of the mean, a share of the
planned one, is what `spec.drift.threshold` is about; it has no upper end.

A law that has drifted is, of those with the new mean and deviation, the one nearest to the old (in Kullback-Leibler's
sense): p(k) exp(a k + b k**2). No length comes in that was impossible, so limits on lengths hold, and of a truncated
normal it makes another on the same interval.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import minimize

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.lengths import LengthLaw
from exegpt_planner.strict import StrictModel
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]

PAIRS = 100_000  # of a trace whose law has drifted, at least: its requests in their new numbers
EXACT = 1e-6  # relative: as near as the wanted moments are met


class SideDistance(StrictModel):
    """Between the planned and the observed law of inputs, or of outputs."""

    ks: float = Field(ge=0, le=1)
    transport: float = Field(ge=0, le=1)
    mean_change: float  # observed / planned - 1
    percentile_change: float  # the same of the bound's percentile


class Distance(StrictModel):
    """Between two workloads."""

    input: SideDistance
    output: SideDistance

    @property
    def of_means(self) -> float:
        """The larger of the two means' changes, either way: what a threshold on drift is held against."""
        return max(abs(self.input.mean_change), abs(self.output.mean_change))


def mean_change(planned: float, observed: float) -> float:
    """Of a mean length, as a share of the planned one."""
    return observed / planned - 1


def distance(planned: Workload, observed: Workload, *, percentile: float = 99) -> Distance:
    """How far the observed lengths are from the planned ones."""
    return Distance(
        input=side_distance(planned.input, observed.input, percentile=percentile),
        output=side_distance(planned.output, observed.output, percentile=percentile),
    )


def side_distance(planned: LengthLaw, observed: LengthLaw, *, percentile: float) -> SideDistance:
    """How far one law is from another."""
    apart = np.abs(_cumulative(planned, observed) - _cumulative(observed, planned))
    q = percentile / 100
    return SideDistance(
        ks=float(min(apart.max(), 1.0)),
        transport=float(min(apart.sum() / (planned.mean + observed.mean), 1.0)),
        mean_change=mean_change(planned.mean, observed.mean),
        percentile_change=observed.quantile(q) / planned.quantile(q) - 1,
    )


def _cumulative(law: LengthLaw, other: LengthLaw) -> Floats:
    """P(length <= k), as far as the longer of the two laws reaches."""
    found = np.cumsum(law.pmf)
    return np.append(found, np.full(max(0, other.max - law.max), found[-1]))


def shifted(workload: Workload, *, mean: float = 1.0, std: float = 1.0) -> Workload:
    """The workload with the outputs' mean and standard deviation times these factors.

    Inputs given an answer's length stay what they were, so inputs drift along where the two go together. Raises
    `InvalidSpec` where no law on the same lengths has such moments.
    """
    if mean == std == 1:
        return workload
    outputs = tilted(workload.output, mean * workload.output.mean, std * workload.output.var**0.5)
    source = f"{workload.source}, outputs' mean x {mean:g}, std x {std:g}"
    if workload.pairs is not None and not workload.probe_share:
        return replace(Workload.from_trace(_repeated(workload, outputs)), source=source)
    if not np.allclose(workload.input_mean, workload.input.mean):
        raise InvalidSpec(
            "drift", ["inputs and outputs go together, and no pairs say how: give the trace itself"]
        )
    longest = len(outputs.pmf)
    return replace(
        workload,
        output=outputs,
        input_mean=workload.input_mean[:longest],
        input_square=workload.input_square[:longest],
        source=source,
    )


def tilted(law: LengthLaw, mean: float, std: float) -> LengthLaw:
    """The law nearest to `law` that has this mean and standard deviation."""
    support = np.flatnonzero(law.pmf)
    low, high = float(support[0]), float(support[-1])
    wanted = f"mean {mean:.6g} and std {std:.6g}"
    if not (low < mean < high and 0 < std**2 < (mean - low) * (high - mean)):
        raise InvalidSpec("drift", [f"no law on lengths {low:g} to {high:g} has {wanted}"])
    scale = law.var**0.5
    x = (support - mean) / scale
    features = np.stack([x, x * x])
    target = np.array([0.0, (std / scale) ** 2])
    logs = np.log(law.pmf[support])

    def chances(tilt: Floats) -> tuple[Floats, float]:
        exponents = logs + tilt @ features
        peak = exponents.max()
        weights = np.exp(exponents - peak)
        total = float(weights.sum())
        return weights / total, float(peak + np.log(total))

    def value(tilt: Floats) -> float:
        return chances(tilt)[1] - float(tilt @ target)

    def slope(tilt: Floats) -> Floats:
        return np.asarray(features @ chances(tilt)[0] - target)

    def curvature(tilt: Floats) -> Floats:
        chance = chances(tilt)[0]
        means = features @ chance
        return np.asarray((features * chance) @ features.T - np.outer(means, means))

    found = minimize(
        value, np.zeros(2), jac=slope, hess=curvature, method="trust-exact", options={"gtol": 1e-12}
    ).x
    if np.abs(slope(found)).max() > EXACT:
        raise InvalidSpec("drift", [f"no law near this one has {wanted} on the same lengths"])
    pmf = np.zeros(len(law.pmf))
    pmf[support] = chances(found)[0]
    return LengthLaw(pmf=np.trim_zeros(pmf, "b"))


def _repeated(workload: Workload, outputs: LengthLaw) -> NDArray[np.int64]:
    """The trace's pairs, each as often as the new law of outputs has it: to a whole number, on average exactly."""
    pairs = workload.pairs
    assert pairs is not None, workload
    ratio = np.zeros(len(workload.output.pmf))
    seen = np.flatnonzero(outputs.pmf)
    ratio[seen] = outputs.pmf[seen] / workload.output.pmf[seen]
    ordered = pairs[np.argsort(pairs[:, 1], kind="stable")]
    each = ratio[ordered[:, 1]] * max(1.0, PAIRS / len(pairs))
    ends = np.round(np.cumsum(each)).astype(np.int64)
    return np.asarray(np.repeat(ordered, np.diff(ends, prepend=0), axis=0))
