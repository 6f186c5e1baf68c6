"""Whose lengths hold, and what annotations may say."""

from __future__ import annotations

from typing import Any

import pytest

from exegpt_operator.names import DETECTOR, OBSERVED_INPUT, OBSERVED_OUTPUT
from exegpt_operator.observed import HistogramRef, Malformed, Moments, lengths, parse
from exegpt_planner.manifest import Histogram, LengthSpec, WorkloadSpec

SPEC = WorkloadSpec(
    input=LengthSpec(mean=128, std=62, max=256), output=LengthSpec(mean=64, std=31, max=128)
)
IN, OUT = "mean=20,std=5,max=64", "mean=147.2,std=70.1,max=320,n=5000"
BOTH = {OBSERVED_INPUT: IN, OBSERVED_OUTPUT: OUT}
BY_HAND = dict.fromkeys(BOTH, "kubectl-annotate")
BY_DETECTOR = dict.fromkeys(BOTH, DETECTOR)


def moments(workload: WorkloadSpec | None, side: str) -> tuple[float, float, int]:
    assert workload is not None
    law: Any = getattr(workload, side)
    found: tuple[float, float, int] = law.moments
    return found


def test_numbers_and_histograms_are_read() -> None:
    assert parse(OBSERVED_OUTPUT, OUT) == Moments(mean=147.2, std=70.1, max=320, num_queries=5000)
    assert parse(OBSERVED_INPUT, " mean=3 , std=1 ") == Moments(mean=3, std=1)
    assert parse(OBSERVED_INPUT, "histogram=seen-today") == HistogramRef("seen-today")


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ("", ["'' is not one of", "mean is missing", "std is missing"]),
        ("fast", ["'fast' is not one of", "mean is missing"]),
        ("mean=3", ["std is missing"]),
        ("mean=x,std=y", ["mean='x' is not a number", "std='y' is not a number"]),
        ("mean=-3,std=1", ["mean=-3 is not between"]),
        ("mean=0,std=1", ["mean=0 is not between"]),
        ("mean=nan,std=1", ["mean=nan is not between"]),
        ("mean=inf,std=1", ["mean=inf is not between"]),
        ("mean=1e308,std=1", ["mean=1e308 is not between"]),
        ("mean=3,std=1,max=4.5", ["max='4.5' is not a whole number"]),
        ("mean=3,mean=4,std=1", ["mean is given twice"]),
        ("mean=3,std=1,histogram=a", ["'histogram=a' is not one of"]),
        ("histogram=", ["is not a ConfigMap's name"]),
        ("histogram=../x", ["is not a ConfigMap's name"]),
    ],
)
def test_what_is_no_law_is_refused_with_all_its_problems(value: str, problems: list[str]) -> None:
    with pytest.raises(Malformed) as error:
        parse(OBSERVED_INPUT, value)
    assert OBSERVED_INPUT in str(error.value)
    for problem in problems:
        assert problem in str(error.value)


def test_a_person_is_heard_before_the_spec_and_the_spec_before_the_detector() -> None:
    found = lengths(BOTH, BY_HAND, SPEC, {})
    assert (found.source, found.set_by) == ("Annotation", "kubectl-annotate")
    assert moments(found.workload, "output") == (147.2, 70.1, 320)
    assert lengths(BOTH, BY_DETECTOR, SPEC, {}).source == "Spec"
    assert lengths(BOTH, BY_DETECTOR, SPEC, {}).workload == SPEC
    assert lengths(BOTH, BY_DETECTOR, None, {}).source == "Observed"
    assert lengths({}, {}, SPEC, {}).source == "Spec"
    assert lengths({}, {}, None, {}).source == "Prior"
    assert lengths({}, {}, None, {}).workload is None


def test_one_side_by_hand_leaves_the_other_as_it_was() -> None:
    found = lengths({OBSERVED_OUTPUT: "mean=50,std=10"}, BY_HAND, SPEC, {})
    assert moments(found.workload, "input") == (128, 62, 256)
    assert moments(found.workload, "output") == (50, 10, 128), "the longest is the spec's"
    with pytest.raises(Malformed, match="observed-input is needed too"):
        lengths({OBSERVED_OUTPUT: OUT}, BY_HAND, None, {})


def test_moments_of_no_law_are_refused() -> None:
    with pytest.raises(Malformed):
        lengths({OBSERVED_OUTPUT: "mean=127,std=90,max=128"}, BY_HAND, SPEC, {})


def test_a_histogram_comes_from_its_config_map() -> None:
    histogram = Histogram(lengths=(1, 5), counts=(3, 4))
    annotations = {OBSERVED_OUTPUT: "histogram=seen"}
    found = lengths(annotations, BY_HAND, SPEC, {"seen": histogram})
    assert found.workload is not None
    assert found.workload.output is not None
    assert found.workload.output.histogram == histogram
    with pytest.raises(Malformed, match="there is no ConfigMap seen"):
        lengths(annotations, BY_HAND, SPEC, {"seen": None})
