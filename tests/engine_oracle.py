"""Tiny models, once for the engine and once for transformers, and the greedy outputs the latter gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exegpt_runner.models.model import Model

# What these families call what a Llama calls otherwise.
OPT: dict[str, Any] = {"ffn_dim": 48, "init_std": 0.25}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 48}

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "ungrouped": {"num_key_value_heads": 4},
    "one_kv_head": {"num_key_value_heads": 1},
    "wide_heads": {"head_dim": 16},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3_biased": {"model_type": "qwen3", "head_dim": 8, "attention_bias": True},
    "opt": {"model_type": "opt"} | OPT,
    "opt_untied": {"model_type": "opt", "enable_bias": False, "tie_word_embeddings": False} | OPT,
    "opt_350m": {"model_type": "opt", "do_layer_norm_before": False, "word_embed_proj_dim": 24}
    | OPT,
    "gpt2": {"model_type": "gpt2"} | GPT2,
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
}


@dataclass
class Oracle:
    """One model, both ways."""

    folder: Path
    model: Model
    reference: Any  # transformers' model
    _known: dict[tuple[tuple[int, ...], int], list[int]] = field(default_factory=dict)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What transformers generates after `prompt`, end tokens or not."""
        key = (tuple(prompt), num_tokens)
        if key not in self._known:
            ids = torch.tensor([list(prompt)])
            output = self.reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
            )
            self._known[key] = output[0, len(prompt) :].tolist()
        return self._known[key]

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """transformers' logits at every position. (t, V)."""
        with torch.no_grad():
            result: torch.Tensor = self.reference(torch.tensor([list(tokens)])).logits[0]
        return result
