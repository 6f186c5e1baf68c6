"""How wrong a mean may be: laws with every length times a factor, and where the old schedule breaks the bound."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.explanation.margin import FACTORS, margin, margin_at, stretched
from exegpt_planner.lengths import truncated_normal
from exegpt_planner.simulator import simulate
from exegpt_planner.workload import Workload
from planner.builders import bell, correlated, independent, point, summarization_like, table
from planner.test_explanation import question


@pytest.mark.parametrize("factor", [0.7, 0.95, 1.0, 1.13, 1.5])
def test_every_length_is_stretched(factor: float) -> None:
    planned = independent(bell(32, 17, 64), bell(60, 9, 100))
    true = stretched(planned, factor)
    assert true.output.mean == pytest.approx(factor * planned.output.mean)
    assert np.sqrt(true.output.var) == pytest.approx(factor * np.sqrt(planned.output.var), rel=0.01)
    for q in (0.5, 0.9, 0.99):
        assert abs(true.output.quantile(q) - factor * planned.output.quantile(q)) <= 1
    assert true.input is planned.input


def test_once_is_the_law_itself() -> None:
    planned = summarization_like()
    true = stretched(planned, 1.0)
    np.testing.assert_allclose(true.output.pmf, planned.output.pmf, rtol=1e-12)
    np.testing.assert_allclose(true.input_mean, planned.input_mean)


def test_a_stretched_truncated_normal_is_that_of_the_stretched_moments() -> None:
    planned = independent(bell(32, 17, 64), truncated_normal(128, 68, 320))
    direct = truncated_normal(1.2 * 128, 1.2 * 68, 384)
    ours = stretched(planned, 1.2).output
    assert ours.quantile(0.99) == pytest.approx(direct.quantile(0.99), abs=1)
    assert ours.mean == pytest.approx(direct.mean, abs=0.2)
    assert ours.var == pytest.approx(direct.var, rel=1e-3)


def test_inputs_stay_with_the_outputs_they_went_with() -> None:
    planned = correlated(bell(40, 8, 70))
    true = stretched(planned, 1.25)
    assert true.input_output == pytest.approx(1.25 * planned.input_output, rel=1e-3)
    inputs = float(true.output.pmf @ true.input_mean)
    assert inputs == pytest.approx(planned.input.mean)


def test_a_trace_is_stretched_too() -> None:
    pairs = [(10, 20), (30, 40), (50, 40), (20, 100)]
    true = stretched(Workload.from_trace(pairs), 0.75)
    assert [int(k) for k in np.flatnonzero(true.output.pmf)] == [15, 30, 75]
    assert true.input_mean[30] == pytest.approx(40)
    fixed = stretched(independent(point(8), point(101)), 1.5)
    np.testing.assert_allclose(fixed.output.pmf[[151, 152]], [0.5, 0.5])


@pytest.mark.parametrize("strategy", ["RRA", "CRA", "WAA"])
def test_the_curve_is_the_old_schedule_simulated_on_the_true_law(strategy: str) -> None:
    asked = question(0.3, strategies=(strategy,))
    plan = asked.plan(with_sensitivity=False)
    found = margin(asked, plan, asked.site(plan.schedule))
    assert tuple(each.factor for each in found.points) == FACTORS
    for each in found.points:
        true = stretched(summarization_like(), each.factor)
        assert each.length_tokens == true.s99
        if each.promised_s is None:
            assert each.problem
            continue
        expected = simulate(plan.schedule, table(), true)
        assert each.promised_s == pytest.approx(expected.promised_s)
        assert each.queries_per_s == pytest.approx(expected.queries_per_s)
        assert each.keeps_bound == (expected.promised_s <= 0.3)
    planned = next(each for each in found.points if each.factor == 1)
    assert planned.promised_s == pytest.approx(plan.prediction.promised_s)


def test_the_bound_breaks_where_it_is_said_to() -> None:
    asked = question(0.3, strategies=("RRA",))
    plan = asked.plan(with_sensitivity=False)
    with_room = plan.model_copy(update={"bound": plan.bound.model_copy(update={"seconds": 0.4})})
    found = margin(asked, with_room, asked.site(plan.schedule))
    assert found.keeps_at is not None
    assert found.breaks_at is not None
    assert 1.0 < found.keeps_at < found.breaks_at <= found.keeps_at + 0.01
    kept, broken = (
        simulate(plan.schedule, table(), stretched(summarization_like(), factor)).promised_s
        for factor in (found.keeps_at, found.breaks_at)
    )
    assert kept <= 0.4 < broken


def test_beyond_the_profile_it_says_that_it_does_not_know() -> None:
    narrow = table().model_copy(
        update={
            "layer": table().layer.model_copy(
                update={
                    "decode_queries": table().layer.decode_queries.model_copy(
                        update={"x": (0.0, 24.0), "seconds": (0.0, 4e-4)}
                    )
                }
            )
        }
    )
    asked = question(10.0, table=narrow, strategies=("RRA",))
    plan = asked.plan(with_sensitivity=False)
    site = asked.site(plan.schedule)
    longer = margin_at(asked, plan, site, 1.5)
    assert longer.promised_s is None
    assert longer.keeps_bound is None
    assert "goes beyond the profile" in (longer.problem or "")
    found = margin(asked, plan, site)
    assert found.breaks_at is None
    assert found.keeps_at is not None
    assert found.keeps_at < 1.5
    with pytest.raises(IncompleteProfile):
        simulate(plan.schedule, narrow, stretched(summarization_like(), 1.5))
