"""The ExeGPT paper's five tasks as workloads (arXiv 2404.07947, Table 3).

Its averages and standard deviations are read as moments after truncation on (0, max], under which all five printed
99th percentiles of outputs come out exactly: 63, 292, 417, 137, 579. For the inputs of S and T no such law exists (std
252 up to 512 and 81 up to 256, beyond the uniform's max / sqrt(12)); there the printed std is taken as the parent's,
before truncation, which leaves the mean, at the middle, where it is. Inputs and outputs are independent, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr

from exegpt_planner.lengths import LengthLaw, truncated_normal
from exegpt_planner.named import named
from exegpt_planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A row of the paper's table: (mean, std, max) of inputs and outputs, tokens."""

    title: str
    input: tuple[float, float, int]
    output: tuple[float, float, int]
    input_std_is_the_parents: bool = False


TASKS = {
    "S": Task(
        title="summarization",
        input=(256, 252, 512),
        output=(32, 13, 80),
        input_std_is_the_parents=True,
    ),
    "T": Task(
        title="translation",
        input=(128, 81, 256),
        output=(128, 68, 320),
        input_std_is_the_parents=True,
    ),
    "G": Task(title="code generation", input=(64, 23, 128), output=(192, 93, 480)),
    "C1": Task(title="conversational, short", input=(256, 115, 512), output=(64, 30, 160)),
    "C2": Task(title="conversational, long", input=(512, 252, 1024), output=(256, 134, 640)),
}


def paper_task(name: str) -> Workload:
    """The workload of a task: S, T, G, C1 or C2; raises `InvalidSpec` for others."""
    task = named(TASKS, name, what="task")
    return Workload.independent(
        _input_law(task),
        truncated_normal(*task.output),
        source=f"the paper's task {name}, {task.title}",
    )


def _input_law(task: Task) -> LengthLaw:
    mean, std, longest = task.input
    if task.input_std_is_the_parents:
        std = _truncated_std(std, longest)
    return truncated_normal(mean, std, longest)


def _truncated_std(parent_std: float, longest: int) -> float:
    """The std of a normal around longest / 2 once it is truncated to (0, longest]."""
    reach = longest / 2 / parent_std
    density = math.exp(-0.5 * reach**2) / math.sqrt(2 * math.pi)
    return parent_std * math.sqrt(1 - 2 * reach * density / (2 * float(ndtr(reach)) - 1))
