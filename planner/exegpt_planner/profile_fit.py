"""Curves of a profile table from timed steps.

The time of a step is linear in the increments of its curves between their knots, and those are not negative: a non-
negative least squares problem. What is fitted is the mean: promises are made of sums of steps, and where neighbours
stretch some steps, the median lies some per cent below. Errors count relative to the fitted time, so that small and
large steps weigh alike; relative to the measured time, quick measurements would weigh more and the curves come out low.
Gross outliers count linearly (Huber, iterated reweighting).

Adjacent segments are drawn towards one slope, as much as the noise asks for: noise fitted as steps would draw the
search to its accidental bargains. How much is cross-validated: the smoothest curves that predict steps left out no
worse. The layers and what lies outside them are fitted apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from exegpt_planner.profile_table import Curve, LayerCurves, OutsideCurves, StepShape

Floats = NDArray[np.float64]

HUBER = 4.0  # in usual errors: less would take the long tail, and with it the mean, for outliers
LEAST_NOISE = (
    0.005  # no step is timed better; a smaller scale would take the rare kinds for outliers
)
ROUNDS = 12  # reweightings by outliers; they settle in fewer than ten
WEIGHINGS = 3  # times that errors are weighed by the time fitted before
SMOOTHINGS = (0.05, 0.5, 5.0, 50.0)  # weights of a change of slope, in relative errors of a step
FOLDS = 5

_LAYER = ("tokens", "decode_queries", "decode_context", "encode_chunks", "encode_pairs")
_OUTSIDE = ("tokens", "sampled")
_GROWTH = {"tokens": math.sqrt(2), "sampled": 2.0}  # knots are dense where kernels change regime
_FIRST = {"decode_context": 64.0, "encode_pairs": 64.0}  # below, linear from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed step, normalised to the profile's machine speed."""

    shape: StepShape
    step_s: float
    layers_s: float  # of step_s, all layers together
    held_out: bool
    noise: float = 0.0  # relative standard error of step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted curves, and the constant of a step."""

    num_layers: int
    layer: LayerCurves
    outside: OutsideCurves
    step_overhead_s: float

    def step_s(self, shape: StepShape) -> float:
        """Seconds of a step of this shape."""
        return (
            self.num_layers * self.layer.sum_s(shape)
            + self.outside.sum_s(shape)
            + self.step_overhead_s
        )


def fit(samples: Sequence[Sample], *, num_layers: int, largest: StepShape) -> Fit:
    """Curves up to `largest` from the samples that are not held out."""
    used = [sample for sample in samples if not sample.held_out]
    if not used:
        raise ValueError("no samples to fit")
    return _fit(used, num_layers, largest, _smoothing_for(used, num_layers, largest))


def _smoothing_for(used: Sequence[Sample], num_layers: int, largest: StepShape) -> float:
    """The greatest smoothing whose errors on steps left out exceed the least by no more than chance."""
    if len(used) < 2 * FOLDS:
        return SMOOTHINGS[0]
    errors = np.array([_left_out_errors(used, num_layers, largest, s) for s in SMOOTHINGS])
    excess = errors - errors[errors.mean(axis=1).argmin()]  # step by step: these differ far less
    chance = excess.std(axis=1) / math.sqrt(len(used))
    fair = excess.mean(axis=1) <= chance
    return max(s for s, is_fair in zip(SMOOTHINGS, fair, strict=True) if is_fair)


def _left_out_errors(
    used: Sequence[Sample], num_layers: int, largest: StepShape, smoothing: float
) -> Floats:
    """|relative error| of each sample under the fit to the other folds."""
    errors = np.empty(len(used))
    for fold in range(FOLDS):
        others = [sample for index, sample in enumerate(used) if index % FOLDS != fold]
        fitted = _fit(others, num_layers, largest, smoothing)
        left_out = used[fold::FOLDS]
        predicted_s = [fitted.step_s(sample.shape) for sample in left_out]
        errors[fold::FOLDS] = np.abs(relative_errors(predicted_s, [s.step_s for s in left_out]))
    return errors


def _fit(used: Sequence[Sample], num_layers: int, largest: StepShape, smoothing: float) -> Fit:
    step_s = np.array([sample.step_s for sample in used])
    layers_s = np.array([sample.layers_s for sample in used])
    shapes = [sample.shape for sample in used]
    scale_s = step_s
    for _ in range(WEIGHINGS):
        base, layer = _fit_curves(
            shapes, layers_s / num_layers, num_layers / scale_s, _LAYER, largest, smoothing
        )
        constant, outside = _fit_curves(
            shapes, step_s - layers_s, 1 / scale_s, _OUTSIDE, largest, smoothing
        )
        # A layer's constant has no field of its own; every step packs tokens, so it lies in their curve.
        fitted = Fit(
            num_layers=num_layers,
            layer=LayerCurves(**layer | {"tokens": _raised(layer["tokens"], base)}),
            outside=OutsideCurves(**outside),
            step_overhead_s=constant,
        )
        scale_s = np.array([fitted.step_s(shape) for shape in shapes])
    return fitted


def relative_errors(predicted_s: Sequence[float], measured_s: Sequence[float]) -> Floats:
    """Prediction over measurement, minus one."""
    predicted = np.asarray(predicted_s, dtype=np.float64)
    measured = np.asarray(measured_s, dtype=np.float64)
    errors: Floats = predicted / measured - 1
    return errors


def error_p95(predicted_s: Sequence[float], measured: Sequence[Sample]) -> float:
    """95th percentile of the curves' own |relative error|.

    What is seen is that error and the measurements' noise together, and their variances add: the errors are shrunk by
    the share that the noise explains. What is left is known to seen * sqrt(2 / n) only, with n errors, and that is
    added: no profile looks exact because it was measured badly.
    """
    errors = relative_errors(predicted_s, [sample.step_s for sample in measured])
    seen = float(np.mean(errors**2))
    if not seen:
        return 0.0
    noise = float(np.mean([sample.noise**2 for sample in measured]))
    own = max(0.0, seen - noise) + seen * math.sqrt(2 / len(measured))
    return float(np.quantile(np.abs(errors), 0.95)) * math.sqrt(min(1.0, own / seen))


def _raised(curve: Curve, constant_s: float) -> Curve:
    return Curve(x=curve.x, seconds=tuple(value + constant_s for value in curve.seconds))


def _fit_curves(
    shapes: Sequence[StepShape],
    seconds: Floats,
    weights: Floats,
    names: Sequence[str],
    largest: StepShape,
    smoothing: float,
) -> tuple[float, dict[str, Curve]]:
    """The constant and the curves whose sum is `seconds`, errors counted times `weights`."""
    knots = {name: _knots(name, getattr(largest, name)) for name in names}
    values = {name: np.array([getattr(shape, name) for shape in shapes]) for name in names}
    design = np.hstack(
        [np.ones((len(shapes), 1)), *(_basis(values[name], knots[name]) for name in names)]
    )
    smooth = smoothing * _slope_changes(values, knots, weights)
    increments = _robust_nnls(design * weights[:, None], seconds * weights, smooth)
    curves = {}
    first = 1
    for name in names:
        last = first + len(knots[name]) - 1
        total = np.concatenate([[0.0], np.cumsum(increments[first:last])])
        curves[name] = Curve(x=tuple(knots[name]), seconds=tuple(total.tolist()))
        first = last
    return float(increments[0]), curves


def _knots(name: str, last: float) -> list[float]:
    """Knots from 0 to `last`, growing by a factor, whole numbers."""
    x = _FIRST.get(name, 1.0)
    growth = _GROWTH.get(name, 4.0 if name in _FIRST else 2.0)
    knots = [0.0]
    while x < last / math.sqrt(growth):  # the last segment is no shorter than half a step
        if round(x) > knots[-1]:
            knots.append(float(round(x)))
        x *= growth
    return [*knots, float(last)]


def _basis(values: Floats, knots: Sequence[float]) -> Floats:
    """How much of each segment lies below each value, 0..1; (values, segments)."""
    low, high = np.array(knots[:-1]), np.array(knots[1:])
    shares: Floats = np.clip((values[:, None] - low) / (high - low), 0.0, 1.0)
    return shares


def _slope_changes(
    values: dict[str, Floats], knots: dict[str, list[float]], weights: Floats
) -> Floats:
    """Rows that take the change of slope at each knot, in the same relative errors as the samples."""
    width = 1 + sum(len(x) - 1 for x in knots.values())
    rows = []
    first = 1
    for name, x in knots.items():
        lengths = np.diff(x)
        scale = _weight_at(np.array(x[1:]), values[name], weights)
        for index in range(len(lengths) - 1):
            row = np.zeros(width)
            reach = scale[index] * lengths[index]
            row[first + index] = -reach / lengths[index]
            row[first + index + 1] = reach / lengths[index + 1]
            rows.append(row)
        first += len(lengths)
    return np.array(rows).reshape(-1, width)


def _weight_at(x: Floats, values: Floats, weights: Floats) -> Floats:
    """The usual weight of samples of size `x`: a line through the logarithms."""
    used = values > 0
    if np.unique(values[used]).size < 2:
        return np.full(len(x), float(np.median(weights)))
    slope, level = np.polyfit(np.log(values[used]), np.log(weights[used]), 1)
    usual: Floats = np.exp(level + slope * np.log(x))
    return usual


def _robust_nnls(design: Floats, target: Floats, smooth: Floats) -> Floats:
    """Non-negative coefficients; rows of `design` beyond the usual error count linearly."""
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)  # columns differ by orders of magnitude
    trust = np.ones(len(target))
    coefficients = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        rows = np.vstack([design * trust[:, None], smooth]) / scale
        sides = np.concatenate([target * trust, np.zeros(len(smooth))])
        coefficients = nnls(rows, sides, maxiter=50 * design.shape[1])[0] / scale
        errors = np.abs(design @ coefficients - target)
        usual = max(1.4826 * float(np.median(errors)), LEAST_NOISE)
        trust = np.sqrt(np.minimum(1.0, HUBER * usual / np.maximum(errors, 1e-300)))
    return coefficients
