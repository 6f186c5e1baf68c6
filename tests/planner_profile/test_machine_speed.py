"""The steps' sensitivity to the machine's speed, from timings of the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.machine_speed import Sensitivity, fit_sensitivity

TOKENS = (1, 4, 32, 256, 2048)


def test_the_line_that_made_the_timings_is_found() -> None:
    true = Sensitivity(one_token=0.3, per_doubling=0.08)
    rng = np.random.default_rng(0)
    tokens = [TOKENS[i % 5] for i in range(200)]
    kernel_s = [rng.uniform(0.004, 0.007, 4) for _ in tokens]
    step_s = [
        0.01 * num * (kernel / 0.004) ** true.of(num) * np.exp(rng.normal(0, 0.02, 4))
        for num, kernel in zip(tokens, kernel_s, strict=True)
    ]
    found = fit_sensitivity(tokens, step_s, kernel_s)
    assert found.of(1) == pytest.approx(true.of(1), abs=0.03)
    assert found.of(2048) == pytest.approx(true.of(2048), abs=0.03)


def test_a_machine_that_holds_its_speed_teaches_nothing() -> None:
    """Steps count as moving with the kernel until timings say otherwise."""
    rng = np.random.default_rng(1)
    kernel_s = [0.006 * np.exp(rng.normal(0, 0.001, 3)) for _ in range(50)]
    step_s = [0.02 * np.exp(rng.normal(0, 0.05, 3)) for _ in range(50)]
    found = fit_sensitivity([32] * 50, step_s, kernel_s)
    assert found.of(32) == pytest.approx(1.0, abs=0.1)
    assert fit_sensitivity([32] * 3, [[0.01]] * 3, [[0.006]] * 3) == Sensitivity()
    assert fit_sensitivity([32], [[0.01, 0.02]], [[0.006, 0.006]]) == Sensitivity()


def test_a_slower_machine_makes_no_step_faster() -> None:
    low = Sensitivity(one_token=-0.2, per_doubling=0.1)
    assert low.slowdown(1, 1.5) == 1.0
    assert low.slowdown(2**7, 1.5) == pytest.approx(1.5**0.5)
    rng = np.random.default_rng(2)
    kernel_s = [rng.uniform(0.004, 0.007, 4) for _ in range(40)]
    backwards = [1e-6 / kernel for kernel in kernel_s]
    found = fit_sensitivity([8, 512] * 20, backwards, kernel_s)
    assert min(found.of(8), found.of(512)) >= 0.0


def test_the_same_speed_is_the_same_time() -> None:
    for tokens in (1, 3, 700):
        assert Sensitivity(one_token=0.4, per_doubling=0.1).slowdown(tokens, 1.0) == 1.0
