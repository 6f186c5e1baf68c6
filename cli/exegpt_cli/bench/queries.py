"""The queries of a load: lengths from the workload's law, prompts of random token ids, all from one seed.

Probes are part of the law (`Workload.with_probes`): the server is planned for the very mixture that is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from exegpt_planner.workload import Workload

FIRST_ID = 3  # below lie the special tokens of the supported families
DRAWN_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One request: a prompt and how many tokens to answer with."""

    index: int
    prompt: tuple[int, ...]
    output_tokens: int


def draw(workload: Workload, *, vocab: int, seed: int) -> Iterator[Query]:
    """Queries without end, the same for the same seed; prompt ids lie in [FIRST_ID, vocab)."""
    rng = np.random.default_rng(seed)
    first = min(FIRST_ID, vocab - 1)
    index = 0
    while True:
        inputs, outputs = workload.sample(rng, DRAWN_AT_ONCE)
        for num_input, num_output in zip(inputs, outputs, strict=True):
            prompt = rng.integers(first, vocab, size=int(num_input)).tolist()
            yield Query(index=index, prompt=tuple(prompt), output_tokens=int(num_output))
            index += 1
