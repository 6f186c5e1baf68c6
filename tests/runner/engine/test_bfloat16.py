"""In bfloat16, teacher-forced logits stay near those of the same weights in float32.

Tolerance: the error's root mean square is at most 3 % of the logits' own. bfloat16 keeps 8 bits, 0.4 % a rounding, and
a logit goes through a dozen of them here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_oracle import VARIANTS
from exegpt_planner.model_spec import read_model_spec
from exegpt_runner.engine import EncodeChunk, Engine, Sampling
from exegpt_runner.models.families import load
from exegpt_runner.models.model import Model
from tiny_models import write_model

TOLERANCE = 0.03
PROMPTS = (5, 130, 33)
STEPS = 70  # beyond a granule of KV


@dataclass
class Forced:
    """A model that records its logits and answers with the tokens it is told to."""

    model: Model
    outputs: np.ndarray  # (queries, STEPS)
    recorded: list[Tensor] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def logits(self, x: Tensor) -> Tensor:
        self.recorded.append(self.model.logits(x).float())
        forced = torch.zeros_like(self.recorded[-1])
        forced[torch.arange(len(x)), self.outputs[:, len(self.recorded) - 1]] = 1
        return forced


def forced_logits(folder: Path, dtype: torch.dtype) -> Tensor:
    """Logits at every step, over a chunked encode and decoding. (STEPS * queries, V)."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 97, size) for size in PROMPTS]
    forced = Forced(
        load(folder, read_model_spec(folder), dtype), rng.integers(3, 97, (len(PROMPTS), STEPS))
    )
    engine = Engine(forced, 1024)  # type: ignore[arg-type]  # what the engine uses of a model
    sampling = Sampling(max_tokens=STEPS)
    firsts = [
        EncodeChunk(query=i, tokens=prompt[:4], is_last=False, sampling=sampling)
        for i, prompt in enumerate(prompts)
    ]
    rests = [EncodeChunk(query=i, tokens=prompt[4:], start=4) for i, prompt in enumerate(prompts)]
    engine.iterate(firsts, decode=False)
    assert not forced.recorded  # nothing is sampled, so there is no head to pay for
    engine.iterate(rests, decode=False)
    while engine.active:
        engine.iterate([], decode=True)
    return torch.cat(forced.recorded)


# Head sizes for which there are kernels, where not said otherwise.
WIDE: dict[str, Any] = {"initializer_range": 0.1, "hidden_size": 64, "head_dim": 32}
SIZES: dict[str, dict[str, Any]] = {
    "opt": {"init_std": 0.1, "hidden_size": 64, "num_attention_heads": 2},
    "opt_350m": {"init_std": 0.1},  # heads of 8, for which there are none
    "gpt2": {"initializer_range": 0.1, "n_embd": 64, "n_head": 2},
}


@pytest.mark.parametrize(
    "variant",
    ["grouped", "ungrouped", "wide_heads", "biased", "llama3", "qwen3", "opt", "opt_350m", "gpt2"],
)
def test_logits_are_within_the_tolerance_of_float32(variant: str, tmp_path: Path) -> None:
    options = VARIANTS[variant] | SIZES[variant] if variant in SIZES else WIDE | VARIANTS[variant]
    write_model(tmp_path, dtype=torch.bfloat16, **options)
    exact = forced_logits(tmp_path, torch.float32)
    rounded = forced_logits(tmp_path, torch.bfloat16)
    error = (rounded - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 0 < error < TOLERANCE
