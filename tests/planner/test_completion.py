"""The pool law against the paper's tasks: paper.md counts decode iterations, so its L is our D, an output of D + 1."""

from __future__ import annotations

import numpy as np
import pytest

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.lengths import LengthLaw, point, truncated_normal
from exegpt_planner.workload import Workload

TASKS = {"S": (32, 13, 80), "T": (128, 68, 320), "C2": (256, 134, 640)}


def task(name: str) -> Workload:
    decodes = truncated_normal(*TASKS[name])
    outputs = LengthLaw(pmf=np.append(0.0, decodes.pmf))
    return Workload.independent(point(100), outputs, source="test")


@pytest.mark.parametrize(
    ("name", "interval", "batch", "pool", "paper_pool"),
    [
        # printed to one digit; C2's is the next one up of 204.05
        ("S", 13, 52, 154.1, 131.0),
        ("S", 7, 49, 248.6, 202.8),
        ("T", 16, 32, 272.1, 176.1),
        ("C2", 32, 24, 204.1, 133.8),
    ],
)
def test_pool_is_that_of_the_derivation_and_the_papers_own_is_too_small(
    name: str, interval: int, batch: int, pool: float, paper_pool: float
) -> None:
    workload = task(name)
    exact, paper = CompletionLaw(workload), CompletionLaw(workload, "paper")
    assert batch * exact.phase(interval).stay == pytest.approx(pool, abs=0.06)
    assert batch * paper.phase(interval).stay == pytest.approx(paper_pool, abs=0.06)


@pytest.mark.parametrize("interval", [1, 3, 7, 64, 400])
def test_every_query_decodes_its_iterations_and_completes_once(interval: int) -> None:
    law = CompletionLaw(task("T"))
    phase = law.phase(interval)
    assert phase.queries.sum() == pytest.approx(law.decode_mean)
    assert phase.context.sum() == pytest.approx(law.context_mean)
    assert law.completions(interval).sum() == pytest.approx(1.0)  # no answer has D = 0 here


def test_pool_falls_by_what_completes() -> None:
    law = CompletionLaw(task("S"))
    phase, completions = law.phase(13), law.completions(13)
    assert np.diff(phase.queries) == pytest.approx(-completions[:-1])


def test_paper_law_is_exact_where_the_stay_is_constant() -> None:
    workload = task("S")
    exact, paper = CompletionLaw(workload).phase(80), CompletionLaw(workload, "paper").phase(80)
    assert paper.queries == pytest.approx(exact.queries)


def test_answers_of_one_token_do_not_decode() -> None:
    workload = Workload.independent(point(5), point(1), source="test")
    phase = CompletionLaw(workload).phase(3)
    assert phase.queries == pytest.approx([0.0, 0.0, 0.0])
    assert np.exp(phase.log_empty) == pytest.approx([1.0, 1.0, 1.0])


def test_context_follows_the_joint_law() -> None:
    pairs = [(10, 3), (50, 3), (90, 5)]
    law = CompletionLaw(Workload.from_trace(pairs))
    phase = law.phase(2)  # iterations 1 and 3 meet at u = 1, 2 and 4 at u = 2
    first = ((10 + 1) + (50 + 1) + (90 + 1) + (90 + 3)) / 3
    second = ((10 + 2) + (50 + 2) + (90 + 2) + (90 + 4)) / 3
    assert phase.context == pytest.approx([first, second])
