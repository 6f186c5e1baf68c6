"""Laws of lengths against the paper's table, scipy's truncated normal, and their own invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.lengths import (
    LengthLaw,
    empirical,
    from_histogram,
    mixture,
    point,
    truncated_normal,
)
from exegpt_planner.truncation import largest_std, moment_parent

# task: mean, std, max, printed 99th percentile, parent mean and std
TASKS = {
    "S": (32, 13, 80, 63, 31.68, 13.42),
    "T": (128, 68, 320, 292, 117.76, 79.89),
    "G": (192, 93, 480, 417, 184.35, 102.10),
    "C1": (64, 30, 160, 137, 62.00, 32.40),
    "C2": (256, 134, 640, 579, 237.73, 155.30),
}


@st.composite
def feasible(draw: st.DrawFn) -> tuple[float, float, int]:
    longest = draw(st.integers(2, 4000))
    mean = longest * draw(st.floats(0.02, 0.98))
    std = largest_std(mean, longest) * draw(st.floats(0.02, 0.999))
    return mean, max(std, 0.011), longest


@st.composite
def laws(draw: st.DrawFn) -> LengthLaw:
    weights = draw(st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any))
    return from_histogram(range(1, len(weights) + 1), weights)


@pytest.mark.parametrize("task", TASKS)
def test_the_papers_tasks_have_their_printed_99th_percentiles(task: str) -> None:
    mean, std, longest, printed, *_ = TASKS[task]
    assert truncated_normal(mean, std, longest).quantile(0.99) == printed


@pytest.mark.parametrize("task", TASKS)
def test_the_papers_tasks_have_the_known_parents(task: str) -> None:
    mean, std, longest, _, *parent = TASKS[task]
    assert moment_parent(mean, std, longest) == pytest.approx(parent, abs=0.006)


@pytest.mark.parametrize("task", TASKS)
def test_cells_are_differences_of_scipys_truncated_normal(task: str) -> None:
    mean, std, longest, *_ = TASKS[task]
    centre, spread = moment_parent(mean, std, longest)
    exact = stats.truncnorm(-centre / spread, (longest - centre) / spread, centre, spread)
    assert exact.mean() == pytest.approx(mean, rel=1e-9)
    assert exact.std() == pytest.approx(std, rel=1e-9)
    cells = np.diff(exact.cdf(np.arange(longest + 1)))
    np.testing.assert_allclose(
        truncated_normal(mean, std, longest).pmf[1:], cells, rtol=1e-8, atol=1e-15
    )


@given(feasible())
def test_moments_after_truncation_are_those_asked_for(moments: tuple[float, float, int]) -> None:
    mean, std, longest = moments
    law = truncated_normal(mean, std, longest)
    assert law.pmf.sum() == pytest.approx(1, abs=1e-12)
    assert law.max <= longest
    # ceil moves every X by less than a token; a wide X by half a token, with Sheppard's 1/12.
    assert mean <= law.mean <= mean + 1
    if std > 3 and law.max > 20:
        edges = abs(law.pmf[1]) + abs(law.pmf[-1])
        assert law.mean == pytest.approx(mean + 0.5, abs=1e-3 + edges)
        assert law.var == pytest.approx(std**2 + 1 / 12, rel=0.02)


@given(st.integers(2, 5000))
def test_the_largest_std_at_the_middle_is_the_uniforms(longest: int) -> None:
    limit = largest_std(longest / 2, longest)
    assert limit == pytest.approx(longest / math.sqrt(12), rel=1e-12)
    np.testing.assert_allclose(
        truncated_normal(longest / 2, limit, longest).pmf[1:], 1 / longest, rtol=1e-5
    )


@pytest.mark.parametrize("mean", [1.0, 20.0, 64.0, 100.0, 127.0])
def test_the_largest_std_is_where_refusal_begins(mean: float) -> None:
    limit = largest_std(mean, 128)
    assert truncated_normal(mean, limit * 0.9999, 128).mean > mean
    with pytest.raises(InvalidSpec, match=f"std lies between 0 and {limit:.1f}"):
        truncated_normal(mean, limit * 1.0001, 128)


def test_a_law_near_the_exponential_is_solved() -> None:
    """Its parent lies tens of thousands of standard deviations outside."""
    law = truncated_normal(20.0, largest_std(20.0, 4000) * (1 - 1e-9), 4000)
    k = np.arange(1, 200)
    np.testing.assert_allclose(law.pmf[1:200], np.exp(-k / 20) * math.expm1(1 / 20), rtol=1e-3)


@pytest.mark.parametrize(
    ("mean", "std", "longest", "reason"),
    [
        (256, 252, 512, "between 0 and 147.8"),  # the paper's input row S
        (128, 81, 256, "between 0 and 73.9"),  # the paper's input row T
        (600, 10, 512, "must lie between 0 and max 512"),
        (0, 1, 512, "must lie between 0"),
        (5, -1, 10, "must not be negative"),
        (5, float("nan"), 10, "must not be negative"),
        (5, 0.001, 10, "write 0 for a fixed length"),
        (5, 1, 10**9, "more than any context holds"),
    ],
)
def test_moments_of_no_law_are_refused_with_the_reason(
    mean: float, std: float, longest: int, reason: str
) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        truncated_normal(mean, std, longest)


@pytest.mark.parametrize("moments", [(256, 138, 512), (128, 62, 256), (512, 252, 1024)])
def test_the_feasible_input_rows_are_accepted(moments: tuple[float, float, int]) -> None:
    law = truncated_normal(*moments)
    assert law.max == moments[2]
    assert law.mean == pytest.approx(moments[0] + 0.5, abs=1e-6)


@pytest.mark.parametrize(("mean", "length"), [(5, 5), (5.2, 6), (10, 10)])
def test_a_std_of_0_is_a_point_mass_at_the_ceiling(mean: float, length: int) -> None:
    law = truncated_normal(mean, 0, 10)
    assert (law.max, law.mean, law.var) == (length, length, 0)


@given(laws(), st.floats(0.001, 1), st.floats(0.001, 1))
def test_quantiles_rise_and_invert_the_distribution(law: LengthLaw, a: float, b: float) -> None:
    low, high = law.quantile(min(a, b)), law.quantile(max(a, b))
    assert 1 <= low <= high <= law.max
    assert law.pmf[: low + 1].sum() >= min(a, b) - 1e-9
    assert law.pmf[:low].sum() < min(a, b)


@given(laws())
def test_survival_sums_to_the_mean(law: LengthLaw) -> None:
    assert law.survival[0] == pytest.approx(1)
    assert law.survival[-1] == 0
    assert len(law.survival) == len(law.pmf)
    assert law.survival.sum() == pytest.approx(law.mean)
    assert law.square - law.mean**2 == pytest.approx(law.var, abs=1e-9)


@given(laws(), laws(), st.floats(0, 1))
def test_a_mixture_weighs_its_parts(a: LengthLaw, b: LengthLaw, share: float) -> None:
    law = mixture(a, b, share)
    assert law.pmf.sum() == pytest.approx(1)
    assert law.mean == pytest.approx((1 - share) * a.mean + share * b.mean)


def test_an_empirical_law_counts_what_it_was_given() -> None:
    law = empirical([3, 1, 3, 3])
    np.testing.assert_array_equal(law.pmf, [0, 0.25, 0, 0.75])
    np.testing.assert_array_equal(law.pmf, from_histogram([1, 3, 7], [1, 3, 0]).pmf)
    assert point(4).quantile(0.5) == 4


def test_samples_follow_the_law() -> None:
    law = from_histogram([2, 5, 9], [1, 2, 1])
    drawn = law.sample(np.random.default_rng(7), 40_000)
    shares = np.bincount(drawn, minlength=10) / len(drawn)
    np.testing.assert_allclose(shares, law.pmf, atol=0.01)
    assert set(drawn) == {2, 5, 9}


@pytest.mark.parametrize(
    ("lengths", "counts", "reason"),
    [
        ([], [], "no lengths"),
        ([1, 2], [1], "2 lengths but 1 counts"),
        ([0, 2], [1, 1], "whole numbers from 1"),
        ([1.5], [1], "whole numbers from 1"),
        ([10**12], [1], "whole numbers from 1"),
        ([1, 2], [0, 0], "not all 0"),
        ([1, 2], [3, -1], "not negative"),
    ],
)
def test_a_histogram_of_no_law_is_refused(
    lengths: list[int], counts: list[float], reason: str
) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        from_histogram(lengths, counts)


@pytest.mark.parametrize("pmf", [[1.0], [0.5, 0.5], [0, 0.5], [0, 1.5, -0.5, 0.0], [0, 1.0, 0.0]])
def test_a_law_that_is_none_is_refused(pmf: list[float]) -> None:
    with pytest.raises(InvalidSpec):
        LengthLaw(pmf=np.array(pmf))
