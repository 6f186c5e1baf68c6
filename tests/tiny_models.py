"""Tiny random models in Hugging Face folders, for tests: the same weights for the engine and for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Large weights: logits then differ by far more than rounding, and greedy outputs do not fall into loops.
    "initializer_range": 0.25,
}


def write_model(
    folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float64, **config: Any
) -> Path:
    """Writes a random model (config.json, model.safetensors) to `folder`; `config` overrides `TINY`.

    It is a Llama unless `config` has another `model_type`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # slow to import

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"model_type": "llama"} | TINY | config
        config_of = AutoConfig.for_model(**options)
        model: Any = AutoModelForCausalLM.from_config(config_of)  # type: ignore[no-untyped-call]  # half typed
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers starts them at zero
                torch.nn.init.normal_(parameter, std=0.25)
    torch.nn.Module.to(model, dtype)  # transformers' own override is mistyped
    model.save_pretrained(folder, safe_serialization=True)
    return folder
