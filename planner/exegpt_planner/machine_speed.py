"""How much slower a step runs where the calibration kernel does.

Neighbours on a shared host slow arithmetic by up to 1.6 and reads of memory by much less, and the more tokens a step
packs, the more of it is arithmetic: log(step) moves by `Sensitivity.of(tokens)` of log(kernel), a line in log2(tokens).
The profile times its steps several times, minutes apart; how they moved with the kernel gives the line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field
from scipy.optimize import lsq_linear

from exegpt_planner.strict import StrictModel

# Before any timing: as much as the kernel, whatever the step. A machine that holds its speed teaches nothing else.
_LEVEL, _LEVEL_SD = 1.0, 0.3
_DOUBLING_SD = 0.1


class Sensitivity(StrictModel):
    """d log(step) / d log(kernel): of a step of one token, and more for each doubling of its tokens."""

    one_token: float = 1.0
    per_doubling: float = Field(default=0.0, ge=0)

    def of(self, tokens: float) -> float:
        """Of a step that packs `tokens` (1 or more); at least 0: a slower machine makes no step faster."""
        return max(0.0, self.one_token + self.per_doubling * float(np.log2(max(tokens, 1.0))))

    def slowdown(self, tokens: float, kernel_ratio: float) -> float:
        """Time of the step now / while profiling, where the kernel's is `kernel_ratio`."""
        return float(kernel_ratio ** self.of(tokens))


def fit_sensitivity(
    tokens: Sequence[float], step_s: Sequence[ArrayLike], kernel_s: Sequence[ArrayLike]
) -> Sensitivity:
    """From steps of `tokens`, each timed once or more: its times and the kernel's beside them.

    Least squares on the deviations of the logarithms from their means over each step, with a normal prior.
    """
    size, x, y = [], [], []
    for num, seconds, kernel in zip(tokens, step_s, kernel_s, strict=True):
        kernel_log, log = np.log(kernel), np.log(seconds)
        size += [np.log2(max(num, 1.0))] * log.size
        x += list(kernel_log - kernel_log.mean())
        y += list(log - log.mean())
    moved, steps = np.array(x), np.array(y)
    freedom = len(steps) - len(tokens)
    if freedom < 1 or not moved.any():
        return Sensitivity()
    middle = float(np.mean(size))
    columns = np.column_stack([moved, moved * (np.array(size) - middle)])
    noise = float(np.std(steps - moved)) * np.sqrt(len(steps) / freedom) or 1e-9
    prior = np.diag([noise / _LEVEL_SD, noise / _DOUBLING_SD])
    found = lsq_linear(
        np.vstack([columns, prior]),
        np.concatenate([steps, prior @ np.array([_LEVEL, 0.0])]),
        bounds=([0.0, 0.0], [np.inf, np.inf]),
    ).x
    level, doubling = (float(value) for value in found)
    return Sensitivity(one_token=level - doubling * middle, per_doubling=doubling)
