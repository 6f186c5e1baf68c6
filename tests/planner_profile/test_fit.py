"""Fitting: known curves come back from noisy steps with outliers, within the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from exegpt_planner.profile_design import Coverage, DesignedStep, design
from exegpt_planner.profile_fit import Fit, Sample, error_p95, fit, relative_errors
from exegpt_planner.profile_table import StepShape

LAYERS = 30
COVERAGE = Coverage(
    decode_queries=64, context=600, encode_tokens=4096, encode_chunks=32, kv_tokens=32_000
)


def _shape(step: DesignedStep) -> StepShape:
    n = len(step.decode_contexts)
    return StepShape(
        tokens=n + sum(step.chunk_tokens),
        decode_queries=n,
        decode_context=sum(step.decode_contexts) + n,
        encode_chunks=len(step.chunk_tokens),
        encode_pairs=sum(
            t * (s + (t + 1) / 2) for s, t in zip(step.chunk_starts, step.chunk_tokens, strict=True)
        ),
        sampled=n + (len(step.chunk_tokens) if step.sample_chunks else 0),
    )


def _layer_s(shape: StepShape) -> float:
    """A layer that streams its weights until 40 tokens, then computes."""
    return (
        max(4e-4, 1e-5 * shape.tokens)
        + 2.5e-5 * shape.decode_queries
        + 2e-8 * shape.decode_context
        + 5e-5 * shape.encode_chunks
        + 4e-9 * shape.encode_pairs
    )


def _outside_s(shape: StepShape) -> float:
    head = 3e-3 + 3e-5 * shape.sampled if shape.sampled else 0.0
    return 2e-4 + 1e-6 * shape.tokens + head


def _step_s(shape: StepShape) -> float:
    return LAYERS * _layer_s(shape) + _outside_s(shape)


def _samples(
    noise: Callable[[np.random.Generator], float], *, seed: int = 1, num: int = 240
) -> list[Sample]:
    rng = np.random.default_rng(7)
    found = []
    for step in design(COVERAGE, seed=seed, num_steps=num):
        shape, factor = _shape(step), noise(rng)
        found.append(
            Sample(
                shape=shape,
                step_s=factor * _step_s(shape),
                layers_s=factor * LAYERS * _layer_s(shape),
                held_out=step.held_out,
            )
        )
    return found


def _errors(fitted: Fit, shapes: Sequence[StepShape]) -> np.ndarray:
    return relative_errors(
        [fitted.step_s(shape) for shape in shapes], [_step_s(shape) for shape in shapes]
    )


def _fresh() -> list[StepShape]:
    return [_shape(step) for step in design(COVERAGE, seed=99, num_steps=1000)]


def test_exact_times_are_predicted_almost_exactly() -> None:
    fitted = fit(_samples(lambda rng: 1.0), num_layers=LAYERS, largest=COVERAGE.largest)
    errors = _errors(fitted, _fresh())
    assert abs(errors.mean()) < 0.003
    assert np.quantile(np.abs(errors), 0.95) < 0.02


def test_noise_and_outliers_are_averaged_out() -> None:
    def noise(rng: np.random.Generator) -> float:
        return 1 + 0.02 * rng.standard_normal() + (0.4 if rng.random() < 0.07 else 0.0)

    fitted = fit(_samples(noise), num_layers=LAYERS, largest=COVERAGE.largest)
    errors = _errors(fitted, _fresh())
    assert abs(errors.mean()) < 0.01  # the outliers alone would raise the mean by 2.8 %
    assert np.quantile(np.abs(errors), 0.95) < 0.04


def test_curves_never_fall_and_end_where_coverage_ends() -> None:
    def noise(rng: np.random.Generator) -> float:
        return 1 + 0.05 * rng.standard_normal()

    fitted = fit(_samples(noise), num_layers=LAYERS, largest=COVERAGE.largest)
    for curves in (fitted.layer, fitted.outside):
        for name in type(curves).model_fields:
            curve = getattr(curves, name)
            assert list(curve.seconds) == sorted(curve.seconds)
            assert curve.x[-1] == getattr(COVERAGE.largest, name)
            assert curve.seconds[0] == 0 or (curves is fitted.layer and name == "tokens")


def test_the_parts_are_told_apart() -> None:
    """What a decode query and a chunk cost by themselves is seen only in mixtures."""
    fitted = fit(_samples(lambda rng: 1.0), num_layers=LAYERS, largest=COVERAGE.largest)
    assert fitted.layer.decode_queries(64) == pytest.approx(64 * 2.5e-5, rel=0.1)
    assert fitted.layer.encode_chunks(32) == pytest.approx(32 * 5e-5, rel=0.15)
    assert fitted.layer.encode_pairs(1e6) == pytest.approx(4e-3, rel=0.1)
    assert fitted.outside.sampled(64) == pytest.approx(3e-3 + 64 * 3e-5, rel=0.05)


def test_segments_without_samples_continue_their_neighbours() -> None:
    samples = [s for s in _samples(lambda rng: 1.0) if not 300 < s.shape.tokens < 1500]
    fitted = fit(samples, num_layers=LAYERS, largest=COVERAGE.largest)
    for tokens in (500, 700, 1000):
        shape = StepShape(
            tokens=tokens,
            decode_queries=0,
            decode_context=0,
            encode_chunks=2,
            encode_pairs=tokens * tokens / 4,
            sampled=2,
        )
        assert fitted.step_s(shape) == pytest.approx(_step_s(shape), rel=0.05)


def test_noise_is_not_fitted_as_steps() -> None:
    """Under much noise the curves are smooth, so that a search finds no bargains that are none."""

    def noise(rng: np.random.Generator) -> float:
        return 1 + 0.15 * rng.standard_normal()

    fitted = fit(_samples(noise), num_layers=LAYERS, largest=COVERAGE.largest)
    seconds = np.array([fitted.layer.tokens(n) for n in range(64, 4096, 16)])
    per_token_s = np.diff(seconds) / 16  # 1e-5 of them are true
    assert per_token_s.min() > 0.6e-5
    assert per_token_s.max() < 1.5e-5


def test_a_step_of_the_kernels_is_fitted_where_the_noise_is_small() -> None:
    def jump(shape: StepShape) -> float:
        return 0.1 if shape.tokens > 512 else 0.0

    samples = [
        replace(s, step_s=s.step_s + jump(s.shape), layers_s=s.layers_s + jump(s.shape))
        for s in _samples(lambda rng: 1.0)
    ]
    fitted = fit(samples, num_layers=LAYERS, largest=COVERAGE.largest)
    rise_s = LAYERS * (fitted.layer.tokens(1024) - fitted.layer.tokens(362))
    assert rise_s == pytest.approx(0.1 + LAYERS * 662e-5, rel=0.1)  # straightened, it is 0.19 s


def test_held_out_samples_do_not_move_the_fit() -> None:
    samples = _samples(lambda rng: 1.0)
    spoiled = [replace(s, step_s=9.0, layers_s=8.0) if s.held_out else s for s in samples]
    assert fit(samples, num_layers=LAYERS, largest=COVERAGE.largest) == fit(
        spoiled, num_layers=LAYERS, largest=COVERAGE.largest
    )


def test_a_single_kind_of_step_can_be_fitted() -> None:
    samples = [s for s in _samples(lambda rng: 1.0) if not s.shape.encode_chunks]
    fitted = fit(samples, num_layers=LAYERS, largest=COVERAGE.largest)
    errors = _errors(fitted, [s.shape for s in samples])
    assert np.abs(errors).max() < 0.05


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        fit([], num_layers=LAYERS, largest=COVERAGE.largest)


@pytest.mark.parametrize("own", [0.0, 0.03, 0.1])
def test_the_error_is_the_curves_own_without_the_noise_of_measuring(own: float) -> None:
    rng = np.random.default_rng(3)
    noise = 0.06
    measured = [
        replace(sample, noise=noise)
        for sample in _samples(lambda rng: 1 + noise * rng.standard_normal(), num=2000)
    ]
    predicted_s = [_step_s(s.shape) * (1 + own * rng.standard_normal()) for s in measured]
    assert error_p95(predicted_s, measured) == pytest.approx(1.96 * own, rel=0.1, abs=0.03)


def test_measuring_badly_never_makes_a_profile_look_exact() -> None:
    """32 steps whose errors are all noise: a quarter of their variance cannot be told from the curves' own."""
    measured = [
        replace(sample, noise=0.12)  # overstated: it explains more than is seen
        for sample in _samples(lambda rng: 1 + 0.06 * rng.standard_normal(), num=32)
    ]
    predicted_s = [_step_s(s.shape) for s in measured]
    seen = np.quantile(np.abs(relative_errors(predicted_s, [s.step_s for s in measured])), 0.95)
    assert error_p95(predicted_s, measured) == pytest.approx(seen / 2)


def test_without_noise_the_error_is_as_seen() -> None:
    measured = _samples(lambda rng: 1.0, num=100)
    predicted_s = [1.2 * sample.step_s for sample in measured]
    assert error_p95(predicted_s, measured) == pytest.approx(0.2)
