"""The ExeGPT paper's Tables 6 and 7 (arXiv 2404.07947; OPT-13B, task S, four A40): its rows follow from its own laws.

The paper counts a decode iteration for every token of an answer, so q = ceil(s / N_D), Lat = q T_E + s T_D and
X = B_E / (T_E + N_D T_D), s = 63; `delayed` is the workload that counts so.
"""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.profile_table import LayerCurves, OutsideCurves, ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.tasks import TASKS, paper_task
from planner.builders import line, table

S99 = 63
# Table 6: bound 11.5 s and none
BATCH_13, X_13, LATENCY_13 = 52, 25.23, 10.23
BATCH_7, X_7, LATENCY_7 = 49, 26.15, 16.87
# Table 7: seconds, spread
ENCODE = 1.68, 0.071
DECODE = 0.038, 0.024


def solved(batch: int, interval: int, rate: float, latency_s: float) -> tuple[float, float]:
    """(T_E, T_D) of a row: its throughput and its latency are two equations."""
    encodes = -(-S99 // interval)
    equations = np.array([[1.0, interval], [encodes, S99]])
    encode_s, decode_s = np.linalg.solve(equations, [batch / rate, latency_s])
    return float(encode_s), float(decode_s)


def machine(batch: int, encode_s: float, decode_s: float) -> ProfileTable:
    """Steps of no fluctuation: decode iterations take as long whoever is in them, encodes `encode_s` at this B_E.

    A step's fixed cost is that of all its curves, so an encode has the decode's in it.
    """
    nothing = line(0.0, 0.0, 1e6)
    plain = table(overhead_s=0.0, dispatch_s=0.0, error=0.0)
    return plain.model_copy(
        update={
            "num_layers": 1,
            "layer": LayerCurves(
                tokens=nothing,
                decode_queries=line(decode_s, 0.0, 1e6),
                decode_context=nothing,
                encode_chunks=line(0.0, (encode_s - decode_s) / batch, 1e4),
                encode_pairs=line(0.0, 0.0, 1e12),
            ),
            "outside": OutsideCurves(tokens=nothing, sampled=nothing),
        }
    )


def played(batch: int, encode_s: float, decode_s: float) -> RraModel:
    """RRA with the paper's count of iterations on that machine."""
    law = CompletionLaw(paper_task("S").delayed())
    pipeline = Pipeline.one_device(machine(batch, encode_s, decode_s))
    return RraModel(pipeline, law, prompt_moments(law.workload), batch)


def candidates(longest: int) -> set[int]:
    """The smallest N_D of each number of encodes that an answer sees: latency falls only there."""
    return {-(-longest // encodes) for encodes in range(1, longest + 1)}


def test_where_n_divides_the_answer_latency_is_so_many_cycles() -> None:
    assert S99 % 7 == 0
    assert pytest.approx(LATENCY_7, rel=1e-3) == 9 * BATCH_7 / X_7


def test_the_row_of_n_13_has_the_stage_times_of_table_7() -> None:
    encode_s, decode_s = solved(BATCH_13, 13, X_13, LATENCY_13)
    for found, (mean, spread) in ((encode_s, ENCODE), (decode_s, DECODE)):
        assert abs(found / mean - 1) <= spread
    assert (encode_s, decode_s) == pytest.approx((1.572, 0.0376), rel=2e-3)


def test_the_model_says_what_table_6_prints() -> None:
    encode_s, decode_s = solved(BATCH_13, 13, X_13, LATENCY_13)
    model = played(BATCH_13, encode_s, decode_s)
    assert model.throughput(BATCH_13, 13) == pytest.approx(X_13, rel=1e-9)
    assert model.latency_mean_s(BATCH_13, 13, S99 + 1) == pytest.approx(LATENCY_13, rel=1e-9)
    cycle_s = BATCH_7 / X_7
    model = played(BATCH_7, cycle_s - 7 * DECODE[0], DECODE[0])
    assert model.throughput(BATCH_7, 7) == pytest.approx(X_7, rel=1e-9)
    assert model.latency_mean_s(BATCH_7, 7, S99 + 1) == pytest.approx(LATENCY_7, rel=1e-3)


def test_both_intervals_of_table_6_are_corners_of_the_staircase() -> None:
    assert {13, 7} <= candidates(S99)
    assert [len(candidates(paper_task(name).s99)) for name in TASKS] == [15, 34, 40, 23, 48]
    model = played(BATCH_13, *solved(BATCH_13, 13, X_13, LATENCY_13))
    latencies_s = [model.latency_mean_s(BATCH_13, n, S99 + 1) for n in range(1, S99 + 1)]
    falls = [n for n in range(2, S99 + 1) if latencies_s[n - 1] < latencies_s[n - 2] - 1e-9]
    assert {1, *falls} == candidates(S99)


@pytest.mark.parametrize(
    ("batch", "interval", "exact", "papers"), [(52, 13, 154.1, 131.0), (49, 7, 248.6, 202.8)]
)
def test_the_pools_of_table_6_and_what_the_papers_law_makes_of_them(
    batch: int, interval: int, exact: float, papers: float
) -> None:
    workload = paper_task("S").delayed()
    found = CompletionLaw(workload).phase(interval).queries[0]
    assert batch * found == pytest.approx(exact, abs=0.05)
    found = CompletionLaw(workload, "paper").phase(interval).queries[0]
    assert batch * found == pytest.approx(papers, abs=0.05)
