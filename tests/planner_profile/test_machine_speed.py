"""The steps' sensitivity to the machine's speed, from timings of the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.machine_speed import Sensitivity, fit_sensitivity

TOKENS = np.array([1.0, 4.0, 32.0, 256.0, 2048.0])
NUM = 1600


def measured(
    true: Sensitivity, *, drift: float, kernel_noise: float, step_noise: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, log steps, log kernel) on a machine whose state wanders slowly."""
    rng = np.random.default_rng(seed)
    state = drift * np.sin(np.arange(NUM) / 60)
    tokens = rng.choice(TOKENS, NUM)
    follows = np.array([true.of(num) for num in tokens])
    slowed = follows * state + rng.normal(0, step_noise, NUM)
    return tokens, slowed, state + rng.normal(0, kernel_noise, NUM)


def test_the_line_that_made_the_timings_is_found() -> None:
    true = Sensitivity(one_token=0.3, per_doubling=0.08)
    found = fit_sensitivity(*measured(true, drift=0.3, kernel_noise=0.0, step_noise=0.02, seed=0))
    assert found.of(1) == pytest.approx(true.of(1), abs=0.06)
    assert found.of(2048) == pytest.approx(true.of(2048), abs=0.06)


def test_noise_of_the_kernel_does_not_flatten_the_line() -> None:
    """As much noise as state: measurement by measurement the slope would be half."""
    true = Sensitivity(one_token=0.8)
    tokens, slowed, moved = measured(true, drift=0.2, kernel_noise=0.15, step_noise=0.1, seed=3)
    plain = float(moved @ slowed / (moved @ moved))
    assert plain < 0.5
    assert fit_sensitivity(tokens, slowed, moved).of(32) == pytest.approx(0.8, abs=0.08)


def test_a_machine_that_holds_its_speed_teaches_nothing() -> None:
    """Steps count as moving with the kernel until timings say otherwise."""
    true = Sensitivity(one_token=0.2)
    found = fit_sensitivity(*measured(true, drift=0.0, kernel_noise=0.001, step_noise=0.05, seed=1))
    assert found.of(32) == pytest.approx(1.0, abs=0.1)
    assert fit_sensitivity([32.0] * 20, [0.1] * 20, [0.1] * 20) == Sensitivity(), "one block"
    assert fit_sensitivity([32.0] * 99, [0.1] * 99, [0.0] * 99) == Sensitivity()
    assert fit_sensitivity([], [], []) == Sensitivity()


def test_a_slower_machine_makes_no_step_faster() -> None:
    low = Sensitivity(one_token=-0.2, per_doubling=0.1)
    assert low.slowdown(1, 1.5) == 1.0
    assert low.slowdown(2**7, 1.5) == pytest.approx(1.5**0.5)
    tokens, slowed, moved = measured(
        Sensitivity(), drift=0.3, kernel_noise=0.0, step_noise=0.01, seed=2
    )
    found = fit_sensitivity(tokens, -slowed, moved)
    assert min(found.of(1), found.of(2048)) >= 0.0


def test_the_same_speed_is_the_same_time() -> None:
    for tokens in (1, 3, 700):
        assert Sensitivity(one_token=0.4, per_doubling=0.1).slowdown(tokens, 1.0) == 1.0
