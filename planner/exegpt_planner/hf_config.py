"""Which family a Hugging Face config.json is of, and its fields as that family's spec has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exegpt_planner.hf_llama import LlamaReading
from exegpt_planner.hf_opt import OptReading
from exegpt_planner.hf_reading import Reading

# Name in config.json: ours, and how it is read.
ARCHITECTURES: dict[str, tuple[str, type[LlamaReading] | type[OptReading]]] = {
    "LlamaForCausalLM": ("llama", LlamaReading),
    "MistralForCausalLM": ("mistral", LlamaReading),
    "Qwen2ForCausalLM": ("qwen2", LlamaReading),
    "Qwen3ForCausalLM": ("qwen3", LlamaReading),
    "OPTForCausalLM": ("opt", OptReading),
    "GPT2LMHeadModel": ("gpt2", OptReading),
}


def read_fields(config: Mapping[str, Any]) -> tuple[Reading, dict[str, Any]]:
    """The fields of the model's spec, its end tokens apart, and what was wrong or unsupported on the way."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    known = ARCHITECTURES.get(name) if isinstance(name, str) else None
    ours, family = known or ("llama", LlamaReading)  # so that its other faults are told too
    reading = family(config)
    if known is None:
        accepted = ", ".join(ARCHITECTURES)
        given = "no architecture is named" if name is None else f"architecture {name!r}"
        reading.unsupported.append(f"{given}; supported are {accepted}")
    return reading, reading.fields(ours)
