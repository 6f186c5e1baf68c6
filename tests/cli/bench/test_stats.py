from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from exegpt_cli.bench.stats import clopper_pearson, percentile, share_within, summarise

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


def test_a_percentile_is_the_smallest_value_with_that_share_at_or_below_it() -> None:
    values = [float(x) for x in range(1, 101)]
    assert percentile(values, 0.50) == 50.0
    assert percentile(values, 0.90) == 90.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([7.0], 0.01) == 7.0


@settings(max_examples=200)
@given(SAMPLES, st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentiles_agree_with_numpys_inverse_of_the_empirical_law(
    values: list[float], q: float
) -> None:
    assert percentile(values, q) == np.quantile(values, q, method="inverted_cdf")


def test_a_summary_of_nothing_is_none() -> None:
    assert summarise([]) is None
    assert share_within([], 1.0) is None
    summary = summarise([3.0, 1.0, 2.0])
    assert summary is not None
    assert (summary.num, summary.mean, summary.p50, summary.p99) == (3, 2.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("kept", "num", "low", "high"),
    [  # Clopper and Pearson's interval as printed in textbooks and by R's binom.test
        (0, 10, 0.0, 0.3084971),
        (10, 10, 0.6915029, 1.0),
        (5, 10, 0.1870860, 0.8129140),
    ],
)
def test_clopper_pearson_gives_the_known_intervals(
    kept: int, num: int, low: float, high: float
) -> None:
    assert clopper_pearson(kept, num) == pytest.approx((low, high), abs=5e-7)


@settings(max_examples=100)
@given(st.integers(1, 500), st.data())
def test_clopper_pearson_agrees_with_scipys_exact_test(num: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, num))
    expected = binomtest(kept, num).proportion_ci(0.95, method="exact")
    assert clopper_pearson(kept, num) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_an_impossible_count_is_refused() -> None:
    with pytest.raises(ValueError, match="11 successes in 10 trials"):
        clopper_pearson(11, 10)


def test_the_share_within_a_bound_counts_the_bound_itself() -> None:
    share = share_within([1.0, 2.0, 2.5, 3.0], 2.5)
    assert share is not None
    assert (share.kept, share.num, share.share) == (3, 4, 0.75)
    assert share.low < 0.75 < share.high
