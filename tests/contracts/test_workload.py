"""The joint law of lengths, its probes, and the files it is read from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.lengths import from_histogram, truncated_normal
from exegpt_planner.manifest import LengthSpec, WorkloadSpec
from exegpt_planner.workload import Workload, read_trace, read_workload

PAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(PAIRS)
def test_a_trace_keeps_its_joint_law(pairs: list[tuple[int, int]]) -> None:
    workload = Workload.from_trace(pairs)
    inputs, outputs = np.array(pairs).T
    assert workload.input_output == pytest.approx((inputs * outputs).mean())
    for k in range(workload.output.max + 1):
        given_k = inputs[outputs == k] if (outputs == k).any() else inputs
        assert workload.input_mean[k] == pytest.approx(given_k.mean())
        assert workload.input_square[k] == pytest.approx((given_k**2.0).mean())
    # The law of total expectation.
    assert workload.output.pmf @ workload.input_mean == pytest.approx(workload.input.mean)
    assert workload.output.pmf @ workload.input_square == pytest.approx(workload.input.square)


@given(PAIRS, st.floats(0.01, 0.9), st.sampled_from([50.0, 90.0, 99.0]))
def test_probes_keep_the_percentile_and_the_input_law(
    pairs: list[tuple[int, int]], share: float, percentile: float
) -> None:
    plain = Workload.from_trace(pairs)
    probed = plain.with_probes(share, percentile=percentile)
    length = plain.percentile_length(percentile)
    assert probed.percentile_length(percentile) == length
    assert probed.output.mean == pytest.approx((1 - share) * plain.output.mean + share * length)
    assert probed.output.pmf @ probed.input_mean == pytest.approx(plain.input.mean)
    assert probed.output.pmf @ probed.input_square == pytest.approx(plain.input.square)
    assert probed.input_output == pytest.approx(
        (1 - share) * plain.input_output + share * plain.input.mean * length
    )


@pytest.mark.parametrize(("moments", "s99"), [((32, 13, 80), 63), ((192, 93, 480), 417)])
def test_probes_keep_the_papers_99th_percentiles(
    moments: tuple[float, float, int], s99: int
) -> None:
    inputs = truncated_normal(64, 23, 128)
    workload = Workload.independent(inputs, truncated_normal(*moments), source="truncated normal")
    probed = workload.with_probes()
    assert workload.s99 == probed.s99 == s99
    assert probed.output.pmf[s99] > 0.2
    assert probed.source == f"truncated normal, with 20% probes of {s99} tokens"


def test_probes_are_not_mixed_in_twice() -> None:
    with pytest.raises(InvalidSpec, match="already has 20% probes"):
        Workload.prior(1000).with_probes().with_probes()


def test_samples_of_a_probed_trace_are_its_pairs_and_probes() -> None:
    pairs = [(10, 1), (20, 2), (30, 3)]
    inputs, outputs = (
        Workload.from_trace(pairs).with_probes(0.25).sample(np.random.default_rng(3), 30_000)
    )
    is_pair = inputs == 10 * outputs
    assert set(outputs[~is_pair]) == {3}
    assert set(inputs[~is_pair]) == {10, 20}
    assert (~is_pair).mean() == pytest.approx(0.25 * 2 / 3, abs=0.01)
    assert outputs.mean() == pytest.approx(0.75 * 2 + 0.25 * 3, abs=0.02)


def test_independent_lengths_are_sampled_independently() -> None:
    law = from_histogram([1, 9], [1, 1])
    workload = Workload.independent(law, law, source="histogram")
    inputs, outputs = workload.sample(np.random.default_rng(5), 20_000)
    assert np.corrcoef(inputs, outputs)[0, 1] == pytest.approx(0, abs=0.03)
    assert workload.input_output == pytest.approx(25)


@pytest.mark.parametrize("context", [2, 3, 17, 100, 1663, 1664, 8192, 131_072])
def test_the_prior_fits_every_context(context: int) -> None:
    prior = Workload.prior(context)
    assert prior.input.max + prior.output.max <= context
    if context >= 1664:  # task C2 itself
        assert (prior.input.max, prior.output.max, prior.s99) == (1024, 640, 579)


def test_without_a_spec_the_workload_is_the_prior() -> None:
    assert read_workload(None, 4096).source == "prior"


def test_a_spec_becomes_its_laws() -> None:
    spec = WorkloadSpec(
        input=LengthSpec(histogram={"lengths": [4, 8], "counts": [1, 3]}),
        output=LengthSpec(mean=32, std=13, max=80),
    )
    workload = read_workload(spec, 88)
    assert (workload.input.mean, workload.s99) == (7, 63)
    assert workload.source == "histogram inputs, truncated normal outputs"


def test_a_workload_longer_than_the_context_is_refused_with_both_lengths() -> None:
    law = LengthSpec(mean=32, std=13, max=80)
    with pytest.raises(
        InvalidSpec, match=r"input \(80 tokens\) and the longest output \(80\) make 160.*of 159"
    ):
        read_workload(WorkloadSpec(input=law, output=law), 159)


def test_a_trace_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("input_tokens, output_tokens\n3,4\n\n 5 ,6\n")
    np.testing.assert_array_equal(read_trace(path), [[3, 4], [5, 6]])
    workload = read_workload(WorkloadSpec(trace=str(path)), 100)
    assert (workload.source, workload.input.mean) == ("trace of 2 requests", 4)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ("line 1: expected input_tokens,output_tokens, found ''",)),
        (
            "prompt,answer\n1,2\n",
            ("line 1: expected input_tokens,output_tokens, found 'prompt,answer'",),
        ),
        ("input_tokens,output_tokens\n", ("holds no requests, only the header",)),
        (
            "input_tokens,output_tokens\n1,2\n0,2\n1,2.5\n1\n1,99999999999\n",
            (
                "line 3: expected whole numbers from 1 to 2,097,152, found '0,2'",
                "line 4: expected whole numbers from 1 to 2,097,152, found '1,2.5'",
                "line 5: expected 2 numbers, found 1",
                "line 6: expected whole numbers from 1 to 2,097,152, found '1,99999999999'",
            ),
        ),
    ],
)
def test_a_trace_says_which_lines_are_wrong(
    tmp_path: Path, text: str, problems: tuple[str, ...]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        read_trace(path)
    assert caught.value.problems == problems


def test_a_trace_of_the_wrong_kind_does_not_fill_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("input_tokens,output_tokens\n" + "a,b\n" * 500)
    with pytest.raises(InvalidSpec) as caught:
        read_trace(path)
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "and 490 more lines like these"


def test_a_missing_trace_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot read trace .*No such file"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize("pairs", [[], [(1, 2, 3)], [(0, 1)], [(1, 2.5)]])
def test_pairs_that_are_no_lengths_are_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidSpec):
        Workload.from_trace(pairs)
