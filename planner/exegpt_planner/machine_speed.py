"""How much slower a step runs where the calibration kernel does.

Neighbours on a shared host slow arithmetic by up to 1.6 and reads of memory by much less, and the more tokens a step
packs, the more of it is arithmetic: log(step) moves by `Sensitivity.of(tokens)` of log(kernel), a line in log2(tokens).
The profile times its steps several times, minutes apart; how they moved with the kernel gives the line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.optimize import lsq_linear

from exegpt_planner.strict import StrictModel

Floats = NDArray[np.float64]

BLOCK = 16  # measurements, a second or two
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


def fit_sensitivity(tokens: ArrayLike, slowed: ArrayLike, moved: ArrayLike) -> Sensitivity:
    """From measurements in the order they were made: log(step) and log(kernel), less their means over the same step.

    Least squares with a normal prior, on means over blocks of BLOCK measurements: a single reading of the kernel is
    noisy, and noise in what is fitted to would flatten the line; the machine's states last longer than a block.
    """
    size, steps, kernel = np.log2(np.maximum(tokens, 1.0)), np.asarray(slowed), np.asarray(moved)
    num_blocks = len(steps) // BLOCK
    if num_blocks < 2 or not kernel.any():
        return Sensitivity()
    middle = float(size.mean())
    columns = _means(np.column_stack([kernel, kernel * (size - middle)]), num_blocks)
    target = _means(steps, num_blocks)
    noise = max(float(np.std(target - columns[:, 0])), 1e-9)
    prior = np.diag([noise / _LEVEL_SD, noise / _DOUBLING_SD])
    found = lsq_linear(
        np.vstack([columns, prior]),
        np.concatenate([target, prior @ np.array([_LEVEL, 0.0])]),
        bounds=([0.0, 0.0], [np.inf, np.inf]),
    ).x
    level, doubling = (float(value) for value in found)
    return Sensitivity(one_token=level - doubling * middle, per_doubling=doubling)


def _means(values: Floats, num_blocks: int) -> Floats:
    """Means over consecutive blocks of the first axis; what fills no block is left out."""
    blocks = values[: num_blocks * BLOCK].reshape(num_blocks, BLOCK, *values.shape[1:])
    found: Floats = blocks.mean(axis=1)
    return found
