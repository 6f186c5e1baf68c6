"""The paper's tasks, to the token where it prints one."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.tasks import TASKS, paper_task

S99 = {"S": 63, "T": 292, "G": 417, "C1": 137, "C2": 579}


def test_the_tasks_are_the_papers() -> None:
    assert list(TASKS) == list(S99)


@pytest.mark.parametrize("name", S99)
def test_the_99th_percentile_is_the_printed_one(name: str) -> None:
    assert paper_task(name).s99 == S99[name]


@pytest.mark.parametrize("name", S99)
def test_lengths_have_the_printed_mean_and_end(name: str) -> None:
    workload, task = paper_task(name), TASKS[name]
    for law, (mean, _, longest) in ((workload.input, task.input), (workload.output, task.output)):
        assert law.mean == pytest.approx(mean + 0.5, abs=0.1)  # whole tokens: half a token more
        assert law.max == longest
    assert np.ptp(workload.input_mean) == 0  # independent


@pytest.mark.parametrize("name", ["G", "C1", "C2"])
def test_feasible_inputs_have_the_printed_std(name: str) -> None:
    assert paper_task(name).input.var ** 0.5 == pytest.approx(TASKS[name].input[1], abs=0.01)


@pytest.mark.parametrize("name", ["S", "T"])
def test_infeasible_inputs_are_the_normal_of_the_printed_std_cut_to_the_range(name: str) -> None:
    mean, std, longest = TASKS[name].input
    x = (np.arange(1_000_000) + 0.5) * longest / 1_000_000
    density = np.exp(-0.5 * ((x - mean) / std) ** 2)
    cut = np.sqrt(density @ (x - mean) ** 2 / density.sum())
    # ceil(X) spreads by the uniform's 1 / 12 more.
    assert paper_task(name).input.var == pytest.approx(cut**2 + 1 / 12, rel=1e-4)


def test_an_unknown_task_lists_all() -> None:
    with pytest.raises(InvalidSpec, match="known: S, T, G, C1, C2"):
        paper_task("C3")
