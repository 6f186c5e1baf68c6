from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exegpt_planner.expectation import Hinges, add, on_counts
from exegpt_planner.profile_table import Curve
from planner.builders import KINDS, Floats, line, rough_curve


def curve_of(seed: int) -> Hinges:
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    return add([(2.0, rough_curve(rng, limit=60, top_s=1.0, kind=kind))])


def by_quadrature(curve: Hinges, mean: float, sd: float) -> float:
    z = np.linspace(-9, 9, 400_001)
    weights: Floats = np.exp(-0.5 * z * z)
    return float(np.sum(weights / weights.sum() * curve(mean + sd * z)))


@pytest.mark.parametrize("seed", range(8))
def test_mean_agrees_with_quadrature(seed: int) -> None:
    curve = curve_of(seed)
    for mean, sd in ((3.0, 2.0), (30.0, 6.0), (55.0, 1.5)):
        expected = by_quadrature(curve, mean, sd)
        assert curve.mean(np.array([mean]), np.array([sd]))[0] == pytest.approx(expected, rel=1e-6)


def test_affine_curve_is_exact_even_where_the_law_reaches_below_zero() -> None:
    curve = add([(1.0, line(2.0, 0.5, 100))])
    assert curve.mean(np.array([0.7]), np.array([3.0]))[0] == pytest.approx(2.35, abs=1e-12)


def test_slope_is_the_derivative_of_the_mean() -> None:
    curve = curve_of(2)
    sd, step = np.array([5.0]), 1e-5
    up, down = (curve.mean(np.array([20.0 + each]), sd)[0] for each in (step, -step))
    assert curve.slope_mean(np.array([20.0]), sd)[0] == pytest.approx(
        (up - down) / (2 * step), rel=1e-6
    )


def test_counts_keep_their_values_at_whole_numbers() -> None:
    curve = add([(1.0, Curve(x=(0, 1, 2, 8, 16), seconds=(0, 5, 6, 11, 30)))])
    extended = on_counts(curve)
    whole = np.arange(1.0, 17)
    assert extended(whole) == pytest.approx(curve(whole))
    assert extended.at_zero == pytest.approx(4.0)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_floor_does_not_fall_and_stays_below(seed: int) -> None:
    curve = curve_of(seed)
    floor = curve.floor()
    x = np.linspace(-20, 80, 2001)
    assert np.all(np.diff(floor(x)) >= -1e-9)
    assert np.all(floor(x) <= curve(x) + 1e-9)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.1, 50), st.floats(0, 8), st.floats(0, 4))
def test_lower_bound_holds_for_larger_means_and_every_sd(
    seed: int, mean: float, sd: float, more: float
) -> None:
    curve = curve_of(seed)
    low = curve.floor().mean_at_least(np.array([mean]), np.array([sd]), np.array([sd + more]))[0]
    for share in (0.0, 0.3, 1.0):
        for further in (0.0, 1.0, 7.0):
            law = np.array([mean + further]), np.array([sd + share * more])
            assert low <= curve.mean(*law)[0] + 1e-9


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_lines_lie_below_the_curve(seed: int) -> None:
    curve = curve_of(seed)
    intercepts, slopes = curve.lines()
    x = np.linspace(0, curve.limit, 1001)[:, None]
    assert np.all(intercepts >= 0)
    assert np.all(intercepts + slopes * x <= curve(x[:, 0])[:, None] + 1e-9)
